// PURE. Which chunks of a contribution are complete: a chunk may leave as soon as the gradients of all its tensors are
// ready; chunks that hold buffers (whose values the forward pass still changes) wait for the end of the step.
#pragma once

#include <memory>
#include <vector>

#include "schema/parameter_spec.h"

namespace everstep {

class Slicer {
 public:
  explicit Slicer(std::shared_ptr<const ChunkLayout> layout);

  // A new step: nothing is ready.
  void Reset();
  // The tensor's gradient is complete. Returns the chunks that are complete with it, each once a step.
  std::vector<ChunkId> Ready(size_t tensor);
  // Everything that has not been returned yet; afterwards nothing is left.
  std::vector<ChunkId> TakeRest();

 private:
  std::shared_ptr<const ChunkLayout> layout_;
  std::vector<uint32_t> needed_;  // per chunk: distinct trainable tensors; 0 for chunks that must wait for the end
  std::vector<uint32_t> missing_;
  std::vector<bool> taken_;
  std::vector<bool> ready_;  // per tensor
};

}  // namespace everstep
