#include "ps/kernels/update.h"

#include <algorithm>
#include <cmath>

namespace everstep::kernels {
namespace {

// By squaring, in plain multiplications: std::pow differs in the last bit between machines, and replicas must not.
double Power(double base, uint64_t exponent) {
  double power = 1;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) power *= base;
    base *= base;
  }
  return power;
}

SgdCoefficients MakeSgd(const OptimizerOptions& o, const ApplyOptions& a) {
  const bool first = a.update <= 1;
  SgdCoefficients c;
  c.scale = static_cast<float>(a.scale);
  c.decay = static_cast<float>(o.weight_decay);
  c.keep = first ? 0.0f : static_cast<float>(o.momentum);
  c.take = first ? 1.0f : static_cast<float>(1 - o.dampening);
  c.look = static_cast<float>(o.momentum);
  c.minus_rate = static_cast<float>(-a.learning_rate);
  return c;
}

AdamCoefficients MakeAdam(const OptimizerOptions& o, const ApplyOptions& a) {
  const uint64_t update = std::max<uint64_t>(a.update, 1);
  const bool decoupled = o.kind == OptimizerKind::kAdamW;
  AdamCoefficients c;
  c.scale = static_cast<float>(a.scale);
  c.decay = decoupled ? 0.0f : static_cast<float>(o.weight_decay);
  c.shrink = decoupled ? static_cast<float>(1 - a.learning_rate * o.weight_decay) : 1.0f;
  c.beta1 = static_cast<float>(o.beta1);
  c.take1 = static_cast<float>(1 - o.beta1);
  c.beta2 = static_cast<float>(o.beta2);
  c.take2 = static_cast<float>(1 - o.beta2);
  c.root_correction = static_cast<float>(std::sqrt(1 - Power(o.beta2, update)));
  c.epsilon = static_cast<float>(o.epsilon);
  c.minus_step = static_cast<float>(-(a.learning_rate / (1 - Power(o.beta1, update))));
  return c;
}

SgdMomentum MomentumOf(const OptimizerOptions& o) {
  if (o.momentum == 0) return SgdMomentum::kNone;
  return o.nesterov ? SgdMomentum::kNesterov : SgdMomentum::kPlain;
}

}  // namespace

std::vector<std::string> StateNames(const OptimizerOptions& o) {
  if (o.kind != OptimizerKind::kSgd) return {"exp_avg", "exp_avg_sq"};
  if (o.momentum != 0) return {"momentum"};
  return {};
}

Loops::Adam At(const Loops::Adam& state, size_t offset) {
  const auto at = [offset](std::byte* p) { return p == nullptr ? nullptr : p + offset; };
  return {at(state.exp_avg), at(state.exp_avg_sq)};
}

Update::Update(const Loops& loops, const OptimizerOptions& optimizer, const ApplyOptions& options)
    : loops_(loops),
      is_sgd_(optimizer.kind == OptimizerKind::kSgd),
      momentum_(MomentumOf(optimizer)),
      sgd_(MakeSgd(optimizer, options)),
      adam_(MakeAdam(optimizer, options)) {}

void Update::Run(std::byte* out, Loops::Adam next, Loops::Adam state, const std::byte* parameters, const std::byte* sum,
                 size_t elements) const {
  if (is_sgd_) {
    loops_.sgd(momentum_, sgd_, out, next.exp_avg, state.exp_avg, parameters, sum, elements);
  } else {
    loops_.adam(adam_, out, next, state, parameters, sum, elements);
  }
}

double Update::SumAndRun(const Loops::Weighted& sum, std::byte* out, Loops::Adam next, Loops::Adam state,
                         const std::byte* parameters, size_t elements, bool stream) const {
  return is_sgd_ ? loops_.sum_sgd(momentum_, sgd_, sum, out, next.exp_avg, state.exp_avg, parameters, elements, stream)
                 : loops_.sum_adam(adam_, sum, out, next, state, parameters, elements, stream);
}

}  // namespace everstep::kernels
