// The numbers of one server: weighted sums and optimizer passes over chunks, cache-blocked, in fixed order, on TBB.
// The only door to TBB (and later Highway). No protocol in here: ps/replica.h decides what is summed and applied when.
//
// A chunk is a run of the flat index space, cut into segments (schema/parameter_spec.h): trainable fp32 elements,
// fp32 buffers (weighted mean of the contributed values), and int64 buffers (maximum over the contributors: counters
// only grow). Contributions and sums have the layout of the chunk itself, byte for byte, and may start at any address.
// Padding between segments is never read and is zero in everything that comes out.
//
// Determinism: the result depends on the inputs and their order alone, not on the number of threads, the compiler or
// the instruction set. Each element's sum runs over the contributions in the given order, in fp32, as
// acc += w[i] * g[i] starting from 0 (w[i] is the float nearest to the double given). For fp32 buffers w[i] is the
// float nearest to weight[i] / (sum of the weights), so that the mean is one for staleness weights too; when the
// weights have no positive finite sum, each counts the same. Norms are summed in double: per block of 4096 elements of
// a segment in 16 interleaved lanes (a single sequential sum would be slower than memory), lanes as a balanced tree,
// then the blocks in index order.
//
// Formulas: torch::optim (SGD with momentum, dampening, Nesterov and weight decay; Adam; AdamW), equal to a few ULP;
// tests/ps/optimizer_torch_test.cc compares and states the bounds.
//
// Threads: one ShardMath may work on different chunks at the same time (ForEachChunk does exactly that), and on one
// chunk from one thread at a time. ExportState, ShareState and ImportState count as work on their chunk.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "schema/job.h"
#include "schema/parameter_spec.h"

namespace everstep::kernels {

// Result of summing one chunk.
struct ChunkSum {
  Buffer sum;               // layout of the chunk
  double squared_norm = 0;  // of the trainable elements of the sum
  // Positions (in the contribution order, rising) of contributions with a NaN or Inf in a segment of this chunk; then
  // `sum` and `squared_norm` are meaningless. A sum that overflows from finite inputs names all of them.
  std::vector<uint32_t> nonfinite;
};

// The same together with the update that it leads to (SumAndApply).
struct ChunkUpdate {
  Buffer parameters;  // new ones; with `nonfinite` meaningless, like the norm
  double squared_norm = 0;
  std::vector<uint32_t> nonfinite;
};

struct ApplyOptions {
  double learning_rate = 0;  // of this step, schedule included
  double scale = 1;          // the clip scale, multiplies the trainable part of the sum
  // 1 for the first optimizer update: Adam's bias correction counts from it, and SGD's momentum buffer starts as the
  // gradient of update 1, without dampening.
  uint64_t update = 1;
};

// Optimizer state of the chunks that one server holds.
class ShardMath {
 public:
  // `allocator`: where sums and parameters live; the heap by default.
  ShardMath(const OptimizerOptions& optimizer, std::shared_ptr<const ChunkLayout> layout,
            BufferPool::Allocator allocator = {});
  ~ShardMath();

  // sum_i weight[i] * contribution[i]; each contribution has the chunk's size (checked). The sum goes to a pooled
  // buffer. int64 segments: element-wise maximum. REQUIRES: at least one contribution (a sum of none would wipe the
  // buffers), as many weights as contributions.
  ChunkSum Sum(ChunkId chunk, std::span<const Buffer> contributions, std::span<const double> weights);

  // Memory for the parameters of one version: all chunks of the model end to end, so that a tensor which was cut into
  // chunks lies in one piece. Chunks that are not written cost nothing. Any number of threads may write different
  // chunks.
  class Version {
   public:
    Version(std::shared_ptr<MutableBuffer> memory, ptrdiff_t begin) : memory_(std::move(memory)), begin_(begin) {}

   private:
    friend class ShardMath;
    std::shared_ptr<MutableBuffer> memory_;
    ptrdiff_t begin_;  // of the first chunk
  };
  // `update` as in ApplyOptions.
  Version NewVersion(uint64_t update);

  // One optimizer update: reads `parameters` and `sum`, updates the state of the chunk in place (in a copy, when it is
  // shared), returns the new parameters, in `into` (`parameters` itself stays as it is: readers may hold it).
  // fp32 and int64 buffers are taken from `sum` as they are. Not idempotent: the caller applies each update once.
  Buffer Apply(ChunkId chunk, const Version& into, const Buffer& parameters, const Buffer& sum,
               const ApplyOptions& options);
  // The same into memory of the chunk's own.
  Buffer Apply(ChunkId chunk, const Buffer& parameters, const Buffer& sum, const ApplyOptions& options);

  // Sum and Apply in one pass over memory, bit-equal to the two. The chunk's optimizer state stays as it is; the new
  // one waits beside it until Adopt makes it the state, or is forgotten with the next SumAndApply, Apply or
  // ImportState.
  ChunkUpdate SumAndApply(ChunkId chunk, const Version& into, const Buffer& parameters,
                          std::span<const Buffer> contributions, std::span<const double> weights,
                          const ApplyOptions& options);
  // REQUIRES: SumAndApply was the last update of the chunk, and found only finite values.
  void Adopt(ChunkId chunk);

  // The optimizer state of a chunk as named arrays of the chunk's size ("momentum"; "exp_avg", "exp_avg_sq"; none for
  // SGD without momentum), zero where no update has happened. Copies: for checkpoints, catching up and tests.
  std::map<std::string, Buffer> ExportState(ChunkId chunk) const;

  // The same arrays without a copy, for checkpoints: as long as any of these buffers lives, the next Apply on the chunk
  // leaves it as it is and goes on in a copy (which costs it the traffic of one more array, once). The buffers may be
  // dropped on any thread and outlive the ShardMath.
  std::map<std::string, Buffer> ShareState(ChunkId chunk);

  // Sets a chunk's state to what ExportState gave, here or elsewhere; the updates that follow are then bit-equal to
  // those there. Other names or sizes than this optimizer's: kInvalidArgument, and the state stays as it was.
  Status ImportState(ChunkId chunk, const std::map<std::string, Buffer>& state);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Runs body(i) for i in [0, count) on the TBB arena, in any order, the caller's thread included; returns when all are
// done. Any thread may call it, also several at once; they share the arena.
void ForEachChunk(size_t count, const std::function<void(size_t)>& body);

// Threads that ForEachChunk may use: 0 = all cores (the default). While no ForEachChunk runs.
void SetThreads(unsigned threads);

}  // namespace everstep::kernels
