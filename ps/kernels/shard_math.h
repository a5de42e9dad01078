// The numbers of one server: weighted sums and optimizer passes over chunks, cache-blocked, in fixed order, on TBB.
// The only door to TBB (and later Highway). No protocol in here: ps/replica.h decides what is summed and applied when.
//
// A chunk is a run of the flat index space, cut into segments (schema/parameter_spec.h): trainable fp32 elements,
// fp32 buffers (weighted mean of the contributed values), and int64 buffers (maximum over the contributors: counters
// only grow). Contributions and sums have the layout of the chunk itself, byte for byte.
//
// Determinism: the result depends on the inputs and their order alone, not on the number of threads. Each element's
// sum runs over the contributions in the given order, in fp32, as acc += w[i] * g[i] starting from 0 (w[i] is the float
// nearest to the double given). Norms are summed in double over the elements in index order, chunk by chunk.
//
// Formulas: torch::optim (SGD with momentum, dampening, Nesterov and weight decay; Adam; AdamW), equal to a few ULP;
// tests/ps/optimizer_torch_test.cc compares.
//
// Threads: Sum and Apply of different chunks may run at the same time; ForEachChunk does exactly that.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "schema/job.h"
#include "schema/parameter_spec.h"

namespace everstep::kernels {

// Result of summing one chunk.
struct ChunkSum {
  Buffer sum;                      // layout of the chunk
  double squared_norm = 0;         // of the trainable elements of the sum
  std::vector<uint32_t> nonfinite; // positions (in the contribution order) of contributions with a NaN or Inf; then
                                   // `sum` is meaningless. A sum that overflows from finite inputs names all of them.
};

struct ApplyOptions {
  double learning_rate = 0;   // of this step, schedule included
  double scale = 1;           // the clip scale, multiplies the trainable part of the sum
  uint64_t update = 1;        // 1 for the first optimizer update (Adam's bias correction)
};

// Optimizer state of the chunks that one server holds.
class ShardMath {
 public:
  ShardMath(const OptimizerOptions& optimizer, std::shared_ptr<const ChunkLayout> layout);
  ~ShardMath();

  // sum_i weight[i] * contribution[i]; each contribution has the chunk's size (checked). The sum goes to a pooled
  // buffer. int64 segments: element-wise maximum.
  ChunkSum Sum(ChunkId chunk, std::span<const Buffer> contributions, std::span<const double> weights);

  // One optimizer update: reads `parameters` and `sum`, updates the state of the chunk in place, returns the new
  // parameters in a pooled buffer (`parameters` itself stays as it is: readers may hold it). fp32 and int64 buffers
  // are taken from `sum` as they are.
  Buffer Apply(ChunkId chunk, const Buffer& parameters, const Buffer& sum, const ApplyOptions& options);

  // The optimizer state of a chunk as named arrays of the chunk's size ("momentum"; "exp_avg", "exp_avg_sq"), zero
  // where no update has happened. For checkpoints and tests.
  std::map<std::string, Buffer> ExportState(ChunkId chunk) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Runs body(i) for i in [0, count) on the TBB arena; returns when all are done.
void ForEachChunk(size_t count, const std::function<void(size_t)>& body);

// Threads that ForEachChunk may use: 0 = all cores. Once, before the first use.
void SetThreads(unsigned threads);

}  // namespace everstep::kernels
