// Who takes part: Everstep itself, and what a step could cost at best (copies, plain sockets) or costs elsewhere
// (Gloo).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "bench/step/contest.h"

namespace everstep::bench {

struct Surroundings {
  std::string folder;    // for sockets and logs; short, because socket paths are
  std::string programs;  // the folder of everstep-ps and of this binary
};

struct EverstepOptions {
  std::string scheme = "tcp";  // or "ipc", "shm-copy", "shm-zero" (step_main.cc)
  unsigned servers = 1;
  uint64_t chunk_bytes = 0;     // 0: the servers' default
  unsigned server_threads = 0;  // 0: the servers' default
  std::string programs;         // of another build, whose servers and workers are measured; empty: this one's
};

// One Everstep job: so many everstep-ps and the cell's workers.
std::unique_ptr<Contestant> MakeEverstep(const Surroundings& around, const Cell& cell, const EverstepOptions& options);

// memcpy of what a step moves between processes: each worker's bytes up and down, within this process.
std::unique_ptr<Contestant> MakeMemcpy(const Cell& cell, unsigned threads);

// The servers' own pass over the same numbers, within this process and with all cores: sum of the workers' gradients
// and momentum SGD (kernels::ShardMath::SumAndApply). What a step costs when nothing has to be moved.
std::unique_ptr<Contestant> MakeFusedPass(const Cell& cell);

// The same bytes over plain blocking sockets ("tcp" or "unix") between processes, into reused buffers: a hub with a
// thread a worker takes everything up, then sends everything down.
std::unique_ptr<Contestant> MakeSockets(const Surroundings& around, const Cell& cell, const std::string& kind);

// c10d's Gloo ring all-reduce of the gradients and a local update on every rank, from the libtorch of the build
// (everstep-gloo-baseline).
std::unique_ptr<Contestant> MakeGloo(const Surroundings& around, const Cell& cell);

}  // namespace everstep::bench
