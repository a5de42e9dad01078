// What every contestant that trains does, so that all do the same work and each can be checked: momentum SGD on one
// fp32 vector that starts at zero; worker i contributes the constant gradient i + 1, so the mean over W workers is
// (W + 1) / 2 and a parameter after n updates is a pure function of n and W.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace everstep::bench {

inline constexpr float kLearningRate = 1.0f / 1024;
inline constexpr float kMomentum = 0.875f;

inline float GradientOf(unsigned worker) { return static_cast<float>(worker + 1); }

inline double ExpectedParameter(unsigned workers, uint64_t updates) {
  const double mean = (workers + 1) / 2.0;
  double momentum = 0;
  double parameter = 0;
  for (uint64_t i = 0; i < updates; ++i) {
    momentum = kMomentum * momentum + mean;
    parameter -= kLearningRate * momentum;
  }
  return parameter;
}

// Whether the first, a middle and the last parameter are what `updates` make of them.
inline Status CheckParameters(const float* parameters, uint64_t count, unsigned workers, uint64_t updates) {
  const double expected = ExpectedParameter(workers, updates);
  for (const uint64_t i : {uint64_t{0}, count / 2, count - 1}) {
    if (std::abs(parameters[i] - expected) > 1e-3 * std::abs(expected) + 1e-6) {
      return {Code::kInternal, "parameter " + std::to_string(i) + " is " + std::to_string(parameters[i]) + " after " +
                                   std::to_string(updates) + " updates and should be " + std::to_string(expected)};
    }
  }
  return Status::Ok();
}

}  // namespace everstep::bench
