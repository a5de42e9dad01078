// Compiled with -ffp-contract=off: each operation is rounded by itself.
#include "tests/sim/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace everstep::sim {
namespace {

template <typename T>
T Load(const Buffer& buffer, uint64_t at) {
  T value;
  std::memcpy(&value, buffer.data() + at, sizeof value);
  return value;
}

template <typename T>
void Store(std::byte* out, uint64_t at, T value) {
  std::memcpy(out + at, &value, sizeof value);
}

// The norm of one block: sixteen lanes, then a balanced tree over them.
double BlockNorm(const std::vector<float>& values) {
  double lane[16] = {};
  for (size_t i = 0; i < values.size(); ++i)
    lane[i % 16] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  for (size_t width : {8u, 4u, 2u, 1u}) {
    for (size_t i = 0; i < width; ++i) lane[i] += lane[i + width];
  }
  return lane[0];
}

double PowerBySquaring(double base, uint64_t exponent) {
  double result = 1;
  while (exponent > 0) {
    if (exponent % 2 == 1) result *= base;
    base *= base;
    exponent /= 2;
  }
  return result;
}

}  // namespace

Reference::Reference(const OptimizerOptions& optimizer, std::shared_ptr<const ChunkLayout> layout)
    : optimizer_(optimizer), layout_(std::move(layout)) {}

Chunks Reference::Sum(const Step& step, double* squared_norm) const {
  double total_weight = 0;
  for (double w : step.weights) total_weight += w;
  const bool usable = std::isfinite(total_weight) && total_weight > 0;
  Chunks sums;
  *squared_norm = 0;
  for (uint32_t i = 0; i < layout_->size(); ++i) {
    const Chunk& chunk = layout_->chunk({i});
    MutableBuffer bytes(chunk.bytes);
    std::memset(bytes.data(), 0, chunk.bytes);
    double chunk_norm = 0;
    for (const Segment& segment : chunk.segments) {
      if (segment.dtype == DType::kInt64) {
        for (uint64_t at = segment.chunk_offset; at < segment.chunk_offset + segment.bytes; at += 8) {
          int64_t largest = Load<int64_t>(step.contributions[0]->at({i}), at);
          for (const Chunks* c : step.contributions) largest = std::max(largest, Load<int64_t>(c->at({i}), at));
          Store(bytes.data(), at, largest);
        }
        continue;
      }
      std::vector<float> block;
      for (uint64_t at = segment.chunk_offset; at < segment.chunk_offset + segment.bytes; at += 4) {
        float accumulator = 0.0f;
        for (size_t k = 0; k < step.contributions.size(); ++k) {
          double weight = step.weights[k];
          if (segment.role == Role::kBuffer)
            weight = usable ? weight / total_weight : 1.0 / static_cast<double>(step.weights.size());
          const float term = static_cast<float>(weight) * Load<float>(step.contributions[k]->at({i}), at);
          accumulator += term;
        }
        Store(bytes.data(), at, accumulator);
        block.push_back(accumulator);
        if (block.size() == 4096 || at + 4 == segment.chunk_offset + segment.bytes) {
          if (segment.role == Role::kTrainable) chunk_norm += BlockNorm(block);
          block.clear();
        }
      }
    }
    *squared_norm += chunk_norm;
    sums.emplace(ChunkId{i}, std::move(bytes).Freeze());
  }
  return sums;
}

void Reference::UpdateSgd(const Step& step, float scale, ChunkId id, const Segment& segment, const Buffer& before,
                          const Buffer& sum, std::byte* out) {
  const auto rate = static_cast<float>(-step.learning_rate);
  const auto decay = static_cast<float>(optimizer_.weight_decay);
  const auto momentum = static_cast<float>(optimizer_.momentum);
  const auto take = static_cast<float>(1 - optimizer_.dampening);
  for (uint64_t at = segment.chunk_offset; at < segment.chunk_offset + segment.bytes; at += 4) {
    const float p = Load<float>(before, at);
    float g = scale * Load<float>(sum, at);
    if (decay != 0) {
      const float pull = decay * p;
      g = g + pull;
    }
    if (momentum != 0) {
      float& m = first_[{id, at}];
      const float kept = step.number <= 1 ? 0.0f * m : momentum * m;
      const float taken = step.number <= 1 ? 1.0f * g : take * g;
      m = kept + taken;
      if (optimizer_.nesterov) {
        const float ahead = momentum * m;
        g = g + ahead;
      } else {
        g = m;
      }
    }
    const float move = rate * g;
    Store(out, at, p + move);
  }
}

void Reference::UpdateAdam(const Step& step, float scale, ChunkId id, const Segment& segment, const Buffer& before,
                           const Buffer& sum, std::byte* out) {
  const bool decoupled = optimizer_.kind == OptimizerKind::kAdamW;
  const uint64_t t = std::max<uint64_t>(step.number, 1);
  const float decay = decoupled ? 0.0f : static_cast<float>(optimizer_.weight_decay);
  const float shrink = decoupled ? static_cast<float>(1 - step.learning_rate * optimizer_.weight_decay) : 1.0f;
  const auto beta1 = static_cast<float>(optimizer_.beta1);
  const auto beta2 = static_cast<float>(optimizer_.beta2);
  const auto rest1 = static_cast<float>(1 - optimizer_.beta1);
  const auto rest2 = static_cast<float>(1 - optimizer_.beta2);
  const auto root = static_cast<float>(std::sqrt(1 - PowerBySquaring(optimizer_.beta2, t)));
  const auto epsilon = static_cast<float>(optimizer_.epsilon);
  const auto rate = static_cast<float>(-(step.learning_rate / (1 - PowerBySquaring(optimizer_.beta1, t))));
  for (uint64_t at = segment.chunk_offset; at < segment.chunk_offset + segment.bytes; at += 4) {
    const float p = Load<float>(before, at);
    float g = scale * Load<float>(sum, at);
    if (decay != 0) {
      const float pull = decay * p;
      g = g + pull;
    }
    float& m = first_[{id, at}];
    float& v = second_[{id, at}];
    const float m_old = beta1 * m;
    const float m_new = rest1 * g;
    m = m_old + m_new;
    const float v_old = beta2 * v;
    const float half = rest2 * g;
    const float v_new = half * g;
    v = v_old + v_new;
    const float root_v = std::sqrt(v) / root;
    const float denominator = root_v + epsilon;
    const float numerator = rate * m;
    const float kept = shrink * p;
    const float move = numerator / denominator;
    Store(out, at, kept + move);
  }
}

Reference::Outcome Reference::Run(const Step& step, const Chunks& before) {
  Outcome outcome;
  double squared_norm = 0;
  Chunks sums = Sum(step, &squared_norm);
  if (step.clip_norm > 0) outcome.scale = std::min(1.0, step.clip_norm / (std::sqrt(squared_norm) + 1e-6));
  for (uint32_t i = 0; i < layout_->size(); ++i) {
    const Chunk& chunk = layout_->chunk({i});
    const Buffer& sum = sums.at({i});
    MutableBuffer out(chunk.bytes);
    std::memcpy(out.data(), sum.data(), chunk.bytes);
    for (const Segment& segment : chunk.segments) {
      if (segment.role == Role::kBuffer || step.number == 0) continue;  // taken as they are
      const auto scale = static_cast<float>(outcome.scale);
      if (optimizer_.kind == OptimizerKind::kSgd) {
        UpdateSgd(step, scale, {i}, segment, before.at({i}), sum, out.data());
      } else {
        UpdateAdam(step, scale, {i}, segment, before.at({i}), sum, out.data());
      }
    }
    Buffer done = std::move(out).Freeze();
    for (const Segment& segment : chunk.segments) {
      if (segment.dtype != DType::kFloat32) continue;
      for (uint64_t at = 0; at < segment.bytes; at += 4)
        outcome.finite &= std::isfinite(Load<float>(done, segment.chunk_offset + at));
    }
    outcome.parameters.emplace(ChunkId{i}, std::move(done));
  }
  return outcome;
}

}  // namespace everstep::sim
