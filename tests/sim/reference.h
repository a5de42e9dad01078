// The maths of a step, written down once more in plain scalar code from the rules in ps/kernels/shard_math.h: what a
// version must be, bit for bit, given the contributions, their order and their weights. Shares no code with the
// kernels.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "schema/job.h"
#include "tests/sim/model.h"

namespace everstep::sim {

class Reference {
 public:
  Reference(const OptimizerOptions& optimizer, std::shared_ptr<const ChunkLayout> layout);

  struct Step {
    uint64_t number = 0;  // 0 initialises
    std::vector<const Chunks*> contributions;
    std::vector<double> weights;
    double learning_rate = 0;
    double clip_norm = 0;
  };
  struct Outcome {
    Chunks parameters;
    double scale = 1;
    bool finite = true;
  };
  // Moves the optimizer's state on: each step once, in order.
  Outcome Run(const Step& step, const Chunks& before);
  // Takes over the optimizer's state as another had it.
  void Restore(const Reference& other) {
    first_ = other.first_;
    second_ = other.second_;
  }

 private:
  Chunks Sum(const Step& step, double* squared_norm) const;
  void UpdateSgd(const Step& step, float scale, ChunkId id, const Segment& segment, const Buffer& before,
                 const Buffer& sum, std::byte* out);
  void UpdateAdam(const Step& step, float scale, ChunkId id, const Segment& segment, const Buffer& before,
                  const Buffer& sum, std::byte* out);

  const OptimizerOptions optimizer_;
  const std::shared_ptr<const ChunkLayout> layout_;
  // By chunk and byte offset in it.
  std::map<std::pair<ChunkId, uint64_t>, float> first_;
  std::map<std::pair<ChunkId, uint64_t>, float> second_;
};

}  // namespace everstep::sim
