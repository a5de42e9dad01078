// Planned changes of the map, and nothing else: servers join and are drained one after the other while the job runs.
// Whatever the order in which what they cause arrives, no step may wait for a timer: heartbeats and retransmissions are
// so rare here that one which does is seen at once.
#pragma once

#include "tests/sim/run.h"

namespace everstep::sim {

RunResult RunPlanned(uint64_t seed, const RunOptions& options);

}  // namespace everstep::sim
