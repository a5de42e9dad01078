// One optimizer update of a run of elements: what all blocks of a step have in common, worked out once (formulas in
// ps/kernels/loops.h). Private to ps/kernels; immutable, any thread.
#pragma once

#include <string>
#include <vector>

#include "ps/kernels/loops.h"
#include "ps/kernels/shard_math.h"
#include "schema/job.h"

namespace everstep::kernels {

// The arrays of an optimizer's state, in the order of Loops::Adam; SGD has the first, or none.
std::vector<std::string> StateNames(const OptimizerOptions& optimizer);

// Both arrays from `offset` on.
Loops::Adam At(const Loops::Adam& state, size_t offset);

class Update {
 public:
  Update(const Loops& loops, const OptimizerOptions& optimizer, const ApplyOptions& options);

  // All pointers are to the run; `next` may be `state`.
  void Run(std::byte* out, Loops::Adam next, Loops::Adam state, const std::byte* parameters, const std::byte* sum,
           size_t elements) const;
  // The sum and the update in one pass; returns the sum's squared norm.
  double SumAndRun(const Loops::Weighted& sum, std::byte* out, Loops::Adam next, Loops::Adam state,
                   const std::byte* parameters, size_t elements, bool stream) const;

 private:
  const Loops& loops_;
  const bool is_sgd_;
  const SgdMomentum momentum_;
  const SgdCoefficients sgd_;
  const AdamCoefficients adam_;
};

}  // namespace everstep::kernels
