// ps/kernels against torch::optim: 50 updates, many hyper-parameters, fresh gradients, rates and clip scales.
//
// Torch fuses some multiplications and additions (depending on its build and the processor), the kernels never do, so
// the two differ by rounding, and momentum carries such differences on. Errors are counted in units in the last place
// (ULP) of the largest magnitude that the element had so far or moved by in one update: where it crosses zero, one
// rounding of an operand is many ULP of the result. Gradients stay clear of zero and of the decay's size, since Adam
// divides by their size: with a gradient of nearly nothing, both results are noise.
//
// Bounds, over parameters and state, and the worst that 10 seeds gave with torch 1.13:
//   one update from the same parameters and state   8 ULP    (4)
//   50 updates, Adam and AdamW                      48 ULP   (17)
//   50 updates, SGD with momentum up to 0.99        128 ULP  (46)
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "ps/kernels/shard_math.h"
#include "tests/ps/kernels_testing.h"
#include "tests/support/seed.h"

namespace everstep::kernels {
namespace {

constexpr int64_t kElements = 1031;
constexpr uint64_t kUpdates = 50;
constexpr double kMaxUlpsOfOne = 8;
constexpr double kMaxUlpsAdam = 48;
constexpr double kMaxUlpsSgd = 128;

std::string Describe(const OptimizerOptions& o) {
  std::string text = std::string(Name(o.kind)) + " rate " + std::to_string(o.learning_rate);
  if (o.kind == OptimizerKind::kSgd) {
    text += " momentum " + std::to_string(o.momentum) + " dampening " + std::to_string(o.dampening);
    if (o.nesterov) text += " nesterov";
  } else {
    text +=
        " betas " + std::to_string(o.beta1) + ", " + std::to_string(o.beta2) + " epsilon " + std::to_string(o.epsilon);
  }
  return text + " decay " + std::to_string(o.weight_decay);
}

std::unique_ptr<torch::optim::Optimizer> MakeTorch(const OptimizerOptions& o, const torch::Tensor& parameter) {
  const std::vector<torch::Tensor> parameters = {parameter};
  switch (o.kind) {
    case OptimizerKind::kSgd:
      return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(o.learning_rate)
                                                                 .momentum(o.momentum)
                                                                 .dampening(o.dampening)
                                                                 .nesterov(o.nesterov)
                                                                 .weight_decay(o.weight_decay));
    case OptimizerKind::kAdam:
      return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(o.learning_rate)
                                                                  .betas({o.beta1, o.beta2})
                                                                  .eps(o.epsilon)
                                                                  .weight_decay(o.weight_decay));
    case OptimizerKind::kAdamW:
      return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(o.learning_rate)
                                                                   .betas({o.beta1, o.beta2})
                                                                   .eps(o.epsilon)
                                                                   .weight_decay(o.weight_decay));
  }
  return nullptr;
}

std::vector<float> ToFloats(const Buffer& buffer) {
  std::vector<float> values(buffer.size() / 4);
  std::memcpy(values.data(), buffer.data(), buffer.size());
  return values;
}

std::vector<float> ToFloats(const torch::Tensor& tensor) {
  const float* const data = tensor.data_ptr<float>();
  return {data, data + tensor.numel()};
}

// The largest difference of two trajectories of an array, in ULP of the largest magnitude that the element had so far.
class UlpMeter {
 public:
  explicit UlpMeter(std::vector<float> initial) : before_(std::move(initial)), largest_(before_.size()) {
    for (size_t i = 0; i < before_.size(); ++i) largest_[i] = std::abs(before_[i]);
  }

  void Add(const std::vector<float>& ours, const std::vector<float>& theirs) {
    ASSERT_EQ(ours.size(), before_.size());
    ASSERT_EQ(theirs.size(), before_.size());
    for (size_t i = 0; i < ours.size(); ++i) {
      largest_[i] = std::max({largest_[i], std::abs(theirs[i]), std::abs(theirs[i] - before_[i])});
      const float unit = std::nextafter(largest_[i], INFINITY) - largest_[i];
      worst_ = std::max(worst_, std::abs(static_cast<double>(ours[i]) - theirs[i]) / unit);
    }
    before_ = theirs;
  }
  double worst() const { return worst_; }

 private:
  std::vector<float> before_, largest_;
  double worst_ = 0;
};

// The state tensor that torch keeps under one of our names.
torch::Tensor TorchState(torch::optim::Optimizer& optimizer, const std::string& name) {
  torch::optim::OptimizerParamState& state = *optimizer.state().begin()->second;
  if (name == "momentum") return static_cast<torch::optim::SGDParamState&>(state).momentum_buffer();
  if (auto* adam = dynamic_cast<torch::optim::AdamParamState*>(&state)) {
    return name == "exp_avg" ? adam->exp_avg() : adam->exp_avg_sq();
  }
  auto& adamw = dynamic_cast<torch::optim::AdamWParamState&>(state);
  return name == "exp_avg" ? adamw.exp_avg() : adamw.exp_avg_sq();
}

// One optimizer of torch and two of ours: `alone` makes 50 updates by itself; `beside` takes parameters and state over
// from torch before each, so that it shows what one update adds.
class Race {
 public:
  Race(const OptimizerOptions& o, uint64_t seed) : options_(o), random_(seed), alone_(o, layout_), beside_(o, layout_) {
    parameters_ = Draw(0, 1);
    std::memcpy(tensor_.data_ptr<float>(), parameters_.data(), parameters_.size());
    tensor_.requires_grad_(true);
    tensor_.mutable_grad() = torch::zeros({kElements});
    torch_ = MakeTorch(o, tensor_);
    for (auto* meters : {&alone_meters_, &beside_meters_}) {
      meters->emplace("parameters", ToFloats(parameters_));
      for (const auto& [name, zeros] : alone_.ExportState({0})) meters->emplace(name, ToFloats(zeros));
    }
  }

  void Update(uint64_t update) {
    const double size = 0.5 + 3 * random_.Uniform();
    const Buffer sum = Draw(size / 2, size);
    const double scale = random_.Chance(0.3) ? 0.8 + 0.4 * random_.Uniform() : 1.0;
    const double rate = options_.learning_rate * (random_.Chance(0.3) ? random_.Uniform() : 1.0);
    const ApplyOptions apply = {rate, scale, update};
    parameters_ = alone_.Apply({0}, parameters_, sum, apply);
    if (update > 1) {
      ASSERT_TRUE(beside_.ImportState({0}, TorchStates()).ok());
    }
    const Buffer beside = beside_.Apply({0}, ToBuffer(tensor_), sum, apply);
    std::memcpy(tensor_.mutable_grad().data_ptr<float>(), sum.data(), sum.size());
    tensor_.mutable_grad().mul_(scale);
    torch_->param_groups()[0].options().set_lr(rate);
    torch_->step();
    Measure(alone_, parameters_, &alone_meters_);
    Measure(beside_, beside, &beside_meters_);
  }

  double WorstAlone() const { return Worst(alone_meters_); }
  double WorstOfOneUpdate() const { return Worst(beside_meters_); }

 private:
  using Meters = std::map<std::string, UlpMeter>;

  static Buffer ToBuffer(const torch::Tensor& tensor) {
    return Buffer::Copy(tensor.data_ptr<float>(), static_cast<size_t>(tensor.numel()) * 4);
  }

  static double Worst(const Meters& meters) {
    double worst = 0;
    for (const auto& [name, meter] : meters) worst = std::max(worst, meter.worst());
    return worst;
  }

  // Sizes between the bounds, of either sign.
  Buffer Draw(double smallest, double largest) {
    MutableBuffer buffer(kElements * 4);
    for (int64_t i = 0; i < kElements; ++i) {
      const double size = smallest + (largest - smallest) * random_.Uniform();
      buffer.as<float>()[i] = static_cast<float>(random_.Chance(0.5) ? size : -size);
    }
    return std::move(buffer).Freeze();
  }

  std::map<std::string, Buffer> TorchStates() const {
    std::map<std::string, Buffer> states;
    for (const auto& [name, ours] : alone_.ExportState({0})) states.emplace(name, ToBuffer(TorchState(*torch_, name)));
    return states;
  }

  void Measure(const ShardMath& math, const Buffer& parameters, Meters* meters) const {
    meters->at("parameters").Add(ToFloats(parameters), ToFloats(tensor_.detach()));
    for (const auto& [name, ours] : math.ExportState({0})) {
      meters->at(name).Add(ToFloats(ours), ToFloats(TorchState(*torch_, name)));
    }
  }

  const OptimizerOptions options_;
  Random random_;
  const std::shared_ptr<const ChunkLayout> layout_ =
      ChunkLayout::Make({{{"w", {kElements}, DType::kFloat32, Role::kTrainable}}}, 1 << 20);
  ShardMath alone_, beside_;
  Buffer parameters_;  // of `alone`
  torch::Tensor tensor_ = torch::zeros({kElements});
  std::unique_ptr<torch::optim::Optimizer> torch_;
  Meters alone_meters_, beside_meters_;
};

class OptimizerTorch : public testing::Test {
 protected:
  OptimizerTorch() { torch::set_num_threads(1); }
  ~OptimizerTorch() override {
    RecordProperty("worst_after_all_updates", std::to_string(worst_alone_));
    RecordProperty("worst_of_one_update", std::to_string(worst_of_one_));
  }

  void ExpectFollowsTorch(const OptimizerOptions& o, uint64_t seed) {
    SCOPED_TRACE(Describe(o));
    Race race(o, seed);
    for (uint64_t update = 1; update <= kUpdates; ++update) race.Update(update);
    EXPECT_LE(race.WorstAlone(), o.kind == OptimizerKind::kSgd ? kMaxUlpsSgd : kMaxUlpsAdam);
    EXPECT_LE(race.WorstOfOneUpdate(), kMaxUlpsOfOne);
    worst_alone_ = std::max(worst_alone_, race.WorstAlone());
    worst_of_one_ = std::max(worst_of_one_, race.WorstOfOneUpdate());
  }

  void ExpectAdamsFollowTorch(OptimizerKind kind, uint64_t seed) {
    for (double rate : {1e-4, 1e-3, 0.1}) {
      for (double beta1 : {0.0, 0.8, 0.9}) {
        for (double beta2 : {0.9, 0.95, 0.999}) {
          for (double epsilon : {1e-8, 1e-3}) {
            for (double decay : {0.0, 1e-3, 0.03}) {
              OptimizerOptions o;
              o.kind = kind;
              o.learning_rate = rate;
              o.beta1 = beta1;
              o.beta2 = beta2;
              o.epsilon = epsilon;
              o.weight_decay = decay;
              ExpectFollowsTorch(o, seed);
            }
          }
        }
      }
    }
  }

  double worst_alone_ = 0, worst_of_one_ = 0;
};

TEST_F(OptimizerTorch, Sgd) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  for (double rate : {1e-3, 0.1, 1.0}) {
    for (double momentum : {0.0, 0.5, 0.9, 0.99}) {
      for (double dampening : {0.0, 0.1, 0.9}) {
        for (double decay : {0.0, 1e-4, 0.05}) {
          for (bool nesterov : {false, true}) {
            if (nesterov && (momentum == 0 || dampening != 0)) continue;
            OptimizerOptions o;
            o.learning_rate = rate;
            o.momentum = momentum;
            o.dampening = dampening;
            o.weight_decay = decay;
            o.nesterov = nesterov;
            ExpectFollowsTorch(o, seed);
          }
        }
      }
    }
  }
}

TEST_F(OptimizerTorch, Adam) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  ExpectAdamsFollowTorch(OptimizerKind::kAdam, seed);
}

TEST_F(OptimizerTorch, AdamW) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  ExpectAdamsFollowTorch(OptimizerKind::kAdamW, seed);
}

}  // namespace
}  // namespace everstep::kernels
