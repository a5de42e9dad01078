// PURE. How long steps took: a fair sample of them all in bounded memory (reservoir sampling, Vitter's algorithm R),
// and the longest. Exact up to kKept steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/random.h"

namespace everstep {

class StepTimes {
 public:
  static constexpr size_t kKept = 8192;

  void Add(float ms);
  // The time that `share` (0 to 1) of the steps did not exceed; 0 before the first one.
  double Percentile(double share) const;
  double max() const { return max_; }

 private:
  std::vector<float> kept_;
  uint64_t seen_ = 0;
  float max_ = 0;
  Random random_{1};
};

}  // namespace everstep
