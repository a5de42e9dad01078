#include "ps/step_times.h"

#include <algorithm>

namespace everstep {

void StepTimes::Add(float ms) {
  max_ = std::max(max_, ms);
  ++seen_;
  if (kept_.size() < kKept) {
    kept_.push_back(ms);
  } else if (const uint64_t place = random_.Below(seen_); place < kKept) {
    kept_[place] = ms;
  }
}

double StepTimes::Percentile(double share) const {
  if (kept_.empty()) return 0;
  std::vector<float> values = kept_;
  const auto index = static_cast<size_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<long>(index), values.end());
  return values[index];
}

}  // namespace everstep
