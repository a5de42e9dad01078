#include "tests/support/plain_models.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/random.h"

namespace everstep::test {

PlainModel::Array& PlainModel::Add(std::string name, std::vector<int64_t> shape, Role role) {
  Array array{{std::move(name), std::move(shape), DType::kFloat32, role}, {}, {}};
  array.values.resize(array.spec.elements());
  if (role == Role::kTrainable) array.gradient.resize(array.spec.elements());
  return arrays_.emplace_back(std::move(array));
}

std::vector<ArrayModel::Tensor> PlainModel::Tensors() {
  std::vector<ArrayModel::Tensor> tensors;
  for (Array& a : arrays_) {
    tensors.push_back({a.spec, a.values.data(), a.gradient.empty() ? nullptr : a.gradient.data()});
  }
  return tensors;
}

std::vector<float> PlainModel::Values() const {
  std::vector<float> all;
  for (const Array& a : arrays_) all.insert(all.end(), a.values.begin(), a.values.end());
  return all;
}

void PlainModel::Poison(float value) { arrays_.front().gradient.front() = value; }

namespace {

class VectorModel final : public PlainModel {
 public:
  VectorModel(uint64_t elements, bool odd_shapes) : p_(Add("p", {static_cast<int64_t>(elements)})) {
    if (!odd_shapes) return;
    Add("empty", {0, 7});
    scalar_ = &Add("scalar", {});
    scalar_->values[0] = 1;
    statistic_ = &Add("statistic", {1}, Role::kBuffer);
  }

  double Compute(const std::vector<uint64_t>& samples) override {
    double target = 0;
    for (uint64_t sample : samples) target += static_cast<double>(Mix64(sample) % 1000) / 1000.0;
    if (!samples.empty()) target /= static_cast<double>(samples.size());
    for (size_t i = 0; i < p_.values.size(); ++i) p_.gradient[i] = p_.values[i] - static_cast<float>(target);
    // The targets' own spread is part of every sample's loss whatever p is; what training can lower is this.
    const size_t looked_at = std::min<size_t>(p_.values.size(), 1024);
    double loss = 0;
    for (size_t i = 0; i < looked_at; ++i) {
      loss += 0.5 * p_.gradient[i] * p_.gradient[i] / static_cast<double>(looked_at);
    }
    if (scalar_ != nullptr) {
      scalar_->gradient[0] = scalar_->values[0];
      loss += 0.5 * scalar_->values[0] * scalar_->values[0];
      statistic_->values[0] = static_cast<float>(target);
    }
    return loss;
  }

 private:
  Array& p_;
  Array* scalar_ = nullptr;
  Array* statistic_ = nullptr;
};

constexpr size_t kInputs = 16;
constexpr size_t kHidden = 32;
constexpr size_t kClasses = 4;

struct Sample {
  std::array<float, kInputs> x;
  size_t label = 0;
};

Sample MakeSample(uint64_t index) {
  Sample sample;
  Random random(Mix64(index ^ 0x5a3c));
  for (float& x : sample.x) x = static_cast<float>(2 * random.Uniform() - 1);
  Random teacher(7);
  double best = -1e9;
  for (size_t c = 0; c < kClasses; ++c) {
    double score = 0;
    for (float x : sample.x) score += x * (2 * teacher.Uniform() - 1);
    if (score > best) {
      best = score;
      sample.label = c;
    }
  }
  return sample;
}

class MlpModel final : public PlainModel {
 public:
  explicit MlpModel(uint64_t seed)
      : w1_(Add("w1", {kHidden, kInputs})),
        b1_(Add("b1", {kHidden})),
        w2_(Add("w2", {kClasses, kHidden})),
        b2_(Add("b2", {kClasses})) {
    Random random(seed);
    for (float& w : w1_.values) w = static_cast<float>((2 * random.Uniform() - 1) / std::sqrt(kInputs));
    for (float& w : w2_.values) w = static_cast<float>((2 * random.Uniform() - 1) / std::sqrt(kHidden));
  }

  double Compute(const std::vector<uint64_t>& samples) override {
    for (Array* a : {&w1_, &b1_, &w2_, &b2_}) std::fill(a->gradient.begin(), a->gradient.end(), 0.0f);
    double loss = 0;
    for (uint64_t index : samples) loss += AddSample(MakeSample(index), 1.0f / static_cast<float>(samples.size()));
    return samples.empty() ? 0 : loss / static_cast<double>(samples.size());
  }

 private:
  // Adds `share` of the sample's gradient; returns the sample's loss.
  double AddSample(const Sample& sample, float share) {
    std::array<float, kHidden> h;
    for (size_t j = 0; j < kHidden; ++j) {
      float sum = b1_.values[j];
      for (size_t i = 0; i < kInputs; ++i) sum += w1_.values[j * kInputs + i] * sample.x[i];
      h[j] = std::tanh(sum);
    }
    std::array<float, kClasses> p;
    for (size_t c = 0; c < kClasses; ++c) {
      p[c] = b2_.values[c];
      for (size_t j = 0; j < kHidden; ++j) p[c] += w2_.values[c * kHidden + j] * h[j];
    }
    const float top = *std::max_element(p.begin(), p.end());
    float total = 0;
    for (float& x : p) total += x = std::exp(x - top);
    for (float& x : p) x /= total;
    const double loss = -std::log(std::max(p[sample.label], 1e-30f));

    std::array<float, kHidden> dh{};
    for (size_t c = 0; c < kClasses; ++c) {
      const float d = (p[c] - (c == sample.label ? 1.0f : 0.0f)) * share;
      b2_.gradient[c] += d;
      for (size_t j = 0; j < kHidden; ++j) {
        w2_.gradient[c * kHidden + j] += d * h[j];
        dh[j] += d * w2_.values[c * kHidden + j];
      }
    }
    for (size_t j = 0; j < kHidden; ++j) {
      const float d = dh[j] * (1 - h[j] * h[j]);
      b1_.gradient[j] += d;
      for (size_t i = 0; i < kInputs; ++i) w1_.gradient[j * kInputs + i] += d * sample.x[i];
    }
    return loss;
  }

  Array& w1_;
  Array& b1_;
  Array& w2_;
  Array& b2_;
};

}  // namespace

std::unique_ptr<PlainModel> MakeVectorModel(uint64_t elements, bool odd_shapes) {
  return std::make_unique<VectorModel>(elements, odd_shapes);
}

std::unique_ptr<PlainModel> MakeMlpModel(uint64_t seed) { return std::make_unique<MlpModel>(seed); }

}  // namespace everstep::test
