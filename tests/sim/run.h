// One run: a seed, its scenario, a phase of faults, and then a calm one in which the job must come to its end (P7).
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>

#include "tests/sim/world.h"

namespace everstep::sim {

struct RunResult {
  uint64_t seed = 0;
  std::optional<Violation> violation;
  std::string scenario;
  std::string states;             // of all nodes, when a promise was broken
  std::deque<std::string> lines;  // the end of the trace, when tracing
  std::map<std::string, uint64_t> faults;
  uint64_t steps = 0;  // training steps committed
  uint64_t messages = 0;
  uint64_t events = 0;
  uint64_t coordinators = 0;
  bool job_failed = false;  // as it had to
  Duration virtual_time{0};
  uint64_t trace_hash = 0;
};

struct RunOptions {
  bool tracing = false;
  size_t trace_lines = 40;
  bool planned = false;  // planned changes of the map instead (planned.h)
};

RunResult RunSeed(uint64_t seed, const RunOptions& options);

}  // namespace everstep::sim
