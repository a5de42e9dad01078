// Many seeds, side by side in child processes: a CHECK of a core that fires, a crash or an endless loop ends a child,
// is reported with its seed, and takes nothing else down.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "tests/sim/run.h"

namespace everstep::sim {

struct BatchOptions {
  uint64_t first_seed = 1;
  uint64_t seeds = 200;
  unsigned jobs = 0;
  std::string plant;
  bool twice = false;  // each seed twice, the second time with its trace: the runs must be the same, bit for bit
  bool progress = false;
  bool planned = false;  // as in RunOptions
};

struct BatchTotals {
  uint64_t seeds = 0;
  uint64_t steps = 0;
  uint64_t messages = 0;
  uint64_t events = 0;
  uint64_t coordinators = 0;
  uint64_t job_failures = 0;
  double virtual_seconds = 0;
  std::map<std::string, uint64_t> faults;
};

struct BatchOutcome {
  BatchTotals totals;
  std::optional<RunResult> failure;  // of the lowest seed that failed, with the end of its trace
};

BatchOutcome RunBatch(const BatchOptions& options);

}  // namespace everstep::sim
