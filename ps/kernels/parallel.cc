#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>
#include <tbb/task_arena.h>

#include "ps/kernels/shard_math.h"

namespace everstep::kernels {
namespace {

// One arena a process: servers in one process (the simulator, inproc jobs) share the cores. Never destroyed, since a
// driver's thread may still be in it when main returns.
tbb::task_arena& Arena() {
  static tbb::task_arena& arena = *new tbb::task_arena();
  return arena;
}

}  // namespace

void ForEachChunk(size_t count, const std::function<void(size_t)>& body) {
  if (count == 1) return body(0);  // waking a thread costs more than a small model's whole update
  if (count == 0) return;
  Arena().execute([&] {
    tbb::parallel_for(
        tbb::blocked_range<size_t>(0, count, 1),
        [&](const tbb::blocked_range<size_t>& range) {
          for (size_t i = range.begin(); i != range.end(); ++i) body(i);
        },
        tbb::simple_partitioner());
  });
}

void SetThreads(unsigned threads) {
  Arena().terminate();
  Arena().initialize(threads == 0 ? tbb::task_arena::automatic : static_cast<int>(threads));
}

}  // namespace everstep::kernels
