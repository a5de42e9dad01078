// The contest: everything that is compared does the same number of bytes' worth of work in turns, round by round, so
// that what else the machine does hits all of them alike. Each contestant is measured by wall time, and by the
// processor time and page faults of its processes, which a busy machine disturbs less.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace everstep::bench {

struct Cell {
  uint64_t bytes = 0;  // of the model
  unsigned workers = 1;

  uint64_t elements() const { return bytes / 4; }
};

class Contestant {
 public:
  virtual ~Contestant() = default;

  virtual std::string name() const = 0;
  // A rough bound of the memory that it needs.
  virtual uint64_t memory() const = 0;
  // Everything up to the first step. An error is shown as "n/a" with its message, and the others go on.
  virtual Status Start() = 0;
  // Runs that many steps; from the first worker's begin to the last one's end.
  virtual Result<Duration> Run(uint64_t steps) = 0;
  // Its processes, in two groups for the accounting of faults.
  virtual std::vector<pid_t> servers() const { return {}; }
  virtual std::vector<pid_t> workers() const = 0;
};

struct Measured {
  std::string name;
  std::string missing;     // why there are no figures; empty: there are
  uint64_t steps = 0;      // of one round
  std::vector<double> ms;  // per step, one a round
  double user_ms = 0;      // processor time a step, all processes
  double system_ms = 0;
  double server_faults = 0;  // minor page faults a step
  double worker_faults = 0;
  double waits = 0;  // voluntary context switches a step, all processes
};

struct ContestOptions {
  int rounds = 5;
  double round_seconds = 0.6;
  uint64_t least_steps = 3;
};

// In the order of `contestants`.
std::vector<Measured> RunContest(std::vector<std::unique_ptr<Contestant>> contestants, const ContestOptions& options);

}  // namespace everstep::bench
