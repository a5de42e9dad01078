// Optimizer passes of ps/kernels against a scalar reference; tests/ps/optimizer_torch_test.cc compares with torch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "ps/kernels/loops.h"
#include "ps/kernels/shard_math.h"
#include "tests/ps/kernels_testing.h"
#include "tests/support/seed.h"

namespace everstep::kernels {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Key;

struct Named {
  std::string name;
  OptimizerOptions options;
};

std::vector<Named> Optimizers() {
  std::vector<Named> all;
  for (double decay : {0.0, 0.01}) {
    const std::string with = decay == 0 ? "" : " with decay";
    OptimizerOptions o;
    o.weight_decay = decay;
    all.push_back({"sgd" + with, o});
    o.momentum = 0.9;
    all.push_back({"sgd momentum" + with, o});
    o.nesterov = true;
    all.push_back({"sgd nesterov" + with, o});
    o.nesterov = false;
    o.dampening = 0.3;
    all.push_back({"sgd dampening" + with, o});
    OptimizerOptions adam;
    adam.weight_decay = decay;
    adam.kind = OptimizerKind::kAdam;
    all.push_back({"adam" + with, adam});
    adam.kind = OptimizerKind::kAdamW;
    adam.beta1 = 0.8;
    adam.beta2 = 0.95;
    adam.epsilon = 1e-6;
    all.push_back({"adamw" + with, adam});
  }
  return all;
}

// One parameter and its state, updated as the documentation of torch.optim says, one rounding an operation.
struct Scalar {
  float p = 0;
  float first = 0;
  float second = 0;

  void Update(const OptimizerOptions& o, const ApplyOptions& a, float sum) {
    float g = sum * static_cast<float>(a.scale);
    if (o.kind == OptimizerKind::kSgd) {
      Sgd(o, a, g);
      return;
    }
    const float decay = static_cast<float>(o.weight_decay);
    if (o.kind == OptimizerKind::kAdam && decay != 0) g = g + p * decay;
    if (o.kind == OptimizerKind::kAdamW) p = p * static_cast<float>(1 - a.learning_rate * o.weight_decay);
    const double t = static_cast<double>(a.update);
    const double correction1 = 1 - std::pow(o.beta1, t);
    const double correction2 = 1 - std::pow(o.beta2, t);
    first = first * static_cast<float>(o.beta1) + g * static_cast<float>(1 - o.beta1);
    second = second * static_cast<float>(o.beta2) + static_cast<float>(1 - o.beta2) * g * g;
    const float root = std::sqrt(second) / static_cast<float>(std::sqrt(correction2));
    const float denominator = root + static_cast<float>(o.epsilon);
    p = p + static_cast<float>(-a.learning_rate / correction1) * first / denominator;
  }

  void Sgd(const OptimizerOptions& o, const ApplyOptions& a, float g) {
    const float momentum = static_cast<float>(o.momentum);
    if (o.weight_decay != 0) g = g + p * static_cast<float>(o.weight_decay);
    if (momentum != 0) {
      first = a.update == 1 ? g + 0.0f : first * momentum + static_cast<float>(1 - o.dampening) * g;
      g = o.nesterov ? g + momentum * first : first;
    }
    p = p + static_cast<float>(-a.learning_rate) * g;
  }
};

ApplyOptions OptionsOf(uint64_t update) {
  return {0.1 / static_cast<double>(update), update % 3 == 0 ? 0.37 : 1.0, update};
}

// Updates each chunk of the layout ten times and compares parameters and state bit by bit.
void ExpectApplyMatches(const std::shared_ptr<const ChunkLayout>& layout, const OptimizerOptions& o, Random* random) {
  ShardMath math(o, layout);
  for (uint32_t id = 0; id < layout->size(); ++id) {
    const Chunk& chunk = layout->chunk({id});
    const Bytes initial = RandomPayload(chunk, random);
    std::vector<Scalar> scalars(chunk.bytes / 4);
    for (size_t i = 0; i < scalars.size(); ++i) scalars[i].p = Load<float>(initial, i * 4);
    Buffer parameters = At(initial, random->Below(65));
    for (uint64_t update = 1; update <= 10; ++update) {
      const Bytes sum = RandomPayload(chunk, random);
      parameters = math.Apply({id}, parameters, At(sum, random->Below(65)), OptionsOf(update));
      Bytes want(chunk.bytes), first(chunk.bytes), second(chunk.bytes);
      for (const Segment& segment : chunk.segments) {
        if (segment.role == Role::kBuffer) {
          std::memcpy(&want[segment.chunk_offset], &sum[segment.chunk_offset], segment.bytes);
          continue;
        }
        for (size_t at = segment.chunk_offset; at < segment.chunk_offset + segment.bytes; at += 4) {
          Scalar& scalar = scalars[at / 4];
          scalar.Update(o, OptionsOf(update), Load<float>(sum, at));
          Store(&want, at, scalar.p);
          Store(&first, at, scalar.first);
          Store(&second, at, scalar.second);
        }
      }
      ASSERT_EQ(Difference(ToBytes(parameters), want), "") << "chunk " << id << ", update " << update;
      for (const auto& [name, array] : math.ExportState({id})) {
        EXPECT_EQ(Difference(ToBytes(array), name == "exp_avg_sq" ? second : first), "") << name;
      }
    }
  }
}

TEST(Apply, MatchesTheScalarReferenceAtAllSizes) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  for (const Named& optimizer : Optimizers()) {
    for (int64_t size : kSizes) {
      SCOPED_TRACE(testing::Message() << optimizer.name << ", " << size << " elements");
      ExpectApplyMatches(OneTensor(size), optimizer.options, &random);
    }
  }
}

TEST(Apply, MatchesTheScalarReferenceOnMixedSegments) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  for (const Named& optimizer : Optimizers()) {
    SCOPED_TRACE(optimizer.name);
    ExpectApplyMatches(MixedModel(1 << 20), optimizer.options, &random);
    ExpectApplyMatches(MixedModel(4096), optimizer.options, &random);
  }
}

TEST(Apply, LeavesItsInputsAsTheyAre) {
  const auto layout = MixedModel(1 << 20);
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  for (const Named& optimizer : Optimizers()) {
    ShardMath math(optimizer.options, layout);
    std::vector<Buffer> versions = {At(RandomPayload(layout->chunk({0}), &random), 0)};
    std::vector<Bytes> copies = {ToBytes(versions[0])};
    for (uint64_t update = 1; update <= 4; ++update) {
      const Buffer sum = At(RandomPayload(layout->chunk({0}), &random), 0);
      const Bytes before = ToBytes(sum);
      versions.push_back(math.Apply({0}, versions.back(), sum, OptionsOf(update)));
      copies.push_back(ToBytes(versions.back()));
      EXPECT_EQ(Difference(ToBytes(sum), before), "") << optimizer.name;
    }
    for (size_t i = 0; i < versions.size(); ++i) EXPECT_EQ(Difference(ToBytes(versions[i]), copies[i]), "");
    EXPECT_NE(copies[3], copies[4]) << "updates change something";
  }
}

TEST(Apply, DecayAndScaleDoNotTouchBuffers) {
  const auto layout = ChunkLayout::Make({{{"w", {1}, DType::kFloat32, Role::kTrainable},
                                          {"mean", {1}, DType::kFloat32, Role::kBuffer},
                                          {"n", {1}, DType::kInt64, Role::kBuffer}}},
                                        1024);
  for (const Named& optimizer : Optimizers()) {
    ShardMath math(optimizer.options, layout);
    Bytes parameters(layout->chunk({0}).bytes), sum(layout->chunk({0}).bytes);
    Store(&parameters, 64, 100.0f);
    Store(&sum, 0, 1.0f);
    Store(&sum, 64, 3.0f);
    Store(&sum, 128, INT64_MAX);
    const Bytes next = ToBytes(math.Apply({0}, At(parameters, 0), At(sum, 0), {0.5, 0.01, 1}));
    EXPECT_LT(Load<float>(next, 0), 0) << optimizer.name;
    EXPECT_EQ(Load<float>(next, 64), 3.0f) << optimizer.name;
    EXPECT_EQ(Load<int64_t>(next, 128), INT64_MAX) << optimizer.name;
  }
}

TEST(Apply, IsBitEqualInAnyOrderAndOnAnyNumberOfThreads) {
  const auto layout = MixedModel(1024);
  ASSERT_GT(layout->size(), 50u);
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  for (const Named& optimizer : Optimizers()) {
    SCOPED_TRACE(optimizer.name);
    std::vector<std::vector<Buffer>> results;
    for (unsigned threads : {1u, 2u, 4u, 0u}) {
      SetThreads(threads);
      ShardMath math(optimizer.options, layout);
      Random payloads(seed), shuffle(seed + threads + 1);
      std::vector<Buffer> parameters;
      for (const Chunk& chunk : layout->chunks()) parameters.push_back(At(RandomPayload(chunk, &payloads), 0));
      for (uint64_t update = 1; update <= 3; ++update) {
        std::vector<Buffer> sums;
        for (const Chunk& chunk : layout->chunks()) sums.push_back(At(RandomPayload(chunk, &payloads), 0));
        std::vector<uint32_t> order(layout->size());
        std::iota(order.begin(), order.end(), 0u);
        for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[shuffle.Below(i + 1)]);
        ForEachChunk(order.size(), [&](size_t i) {
          const uint32_t id = order[i];
          parameters[id] = math.Apply({id}, parameters[id], sums[id], OptionsOf(update));
        });
      }
      results.push_back(std::move(parameters));
    }
    for (size_t run = 1; run < results.size(); ++run) {
      for (size_t id = 0; id < layout->size(); ++id) EXPECT_EQ(Difference(results[run][id], results[0][id]), "");
    }
  }
}

TEST(State, NamesAndZerosBeforeTheFirstUpdate) {
  const auto layout = OneTensor(10);
  EXPECT_THAT(ShardMath({}, layout).ExportState({0}), IsEmpty());
  OptimizerOptions o;
  o.momentum = 0.9;
  const auto momentum = ShardMath(o, layout).ExportState({0});
  EXPECT_THAT(momentum, ElementsAre(Key("momentum")));
  EXPECT_EQ(ToBytes(momentum.at("momentum")), Bytes(40));
  o.kind = OptimizerKind::kAdam;
  EXPECT_THAT(ShardMath(o, layout).ExportState({0}), ElementsAre(Key("exp_avg"), Key("exp_avg_sq")));
}

TEST(State, AfterImportUpdatesAreBitEqual) {
  const auto layout = MixedModel(1 << 20);
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  for (const Named& optimizer : Optimizers()) {
    SCOPED_TRACE(optimizer.name);
    ShardMath here(optimizer.options, layout);
    Buffer parameters = At(RandomPayload(layout->chunk({0}), &random), 0);
    const auto update = [&](ShardMath* math, uint64_t step, const Buffer& sum) {
      return math->Apply({0}, parameters, sum, OptionsOf(step));
    };
    for (uint64_t step = 1; step <= 3; ++step) {
      parameters = update(&here, step, At(RandomPayload(layout->chunk({0}), &random), 0));
    }
    ShardMath there(optimizer.options, layout);
    ASSERT_TRUE(there.ImportState({0}, here.ExportState({0})).ok());
    const Buffer sum = At(RandomPayload(layout->chunk({0}), &random), 0);
    EXPECT_EQ(Difference(update(&there, 4, sum), update(&here, 4, sum)), "");
  }
}

// One pass gives the bits of two, leaves the state alone until it is adopted, and forgets what is not: in a model that
// fits the caches and in one that is streamed past them.
TEST(SumAndApply, EqualsSumThenApply) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  const auto small = MixedModel(4096);
  const auto large = OneTensor((40 << 20) / 4 + 77);
  for (const Named& optimizer : Optimizers()) {
    SCOPED_TRACE(optimizer.name);
    for (const auto& layout : {small, large}) {
      if (layout == large && random.Chance(0.5)) continue;
      ShardMath one(optimizer.options, layout);
      ShardMath two(optimizer.options, layout);
      const ChunkId id{static_cast<uint32_t>(random.Below(layout->size()))};
      const Chunk& chunk = layout->chunk(id);
      Buffer parameters = At(RandomPayload(chunk, &random), 0);
      for (uint64_t step = 1; step <= 4; ++step) {
        std::vector<Buffer> contributions;
        for (uint64_t i = 0; i < step; ++i) contributions.push_back(At(RandomPayload(chunk, &random), 8 * i));
        const std::vector<double> weights(step, 1.0 / static_cast<double>(step));
        ApplyOptions options = OptionsOf(step);
        options.scale = 1;
        const ChunkSum sum = two.Sum(id, contributions, weights);
        const Buffer want = two.Apply(id, parameters, sum.sum, options);
        for (const bool adopted : {false, true}) {
          const ChunkUpdate got =
              one.SumAndApply(id, one.NewVersion(step), parameters, contributions, weights, options);
          EXPECT_EQ(Difference(got.parameters, want), "") << step;
          EXPECT_EQ(got.squared_norm, sum.squared_norm);
          EXPECT_THAT(got.nonfinite, IsEmpty());
          if (adopted) one.Adopt(id);
        }
        for (const auto& [name, array] : two.ExportState(id))
          EXPECT_EQ(Difference(one.ExportState(id).at(name), array), "") << name << " after step " << step;
        parameters = want;
      }
    }
  }
}

TEST(SumAndApply, NamesWhoIsNotFinite) {
  const auto layout = OneTensor(5000);
  Bytes poisoned(20000);
  Store(&poisoned, 4096, std::numeric_limits<float>::quiet_NaN());
  const std::vector<Buffer> contributions{At(Bytes(20000), 0), At(poisoned, 0)};
  ShardMath math({}, layout);
  const ChunkUpdate update =
      math.SumAndApply({0}, math.NewVersion(1), contributions[0], contributions, std::vector<double>{0.5, 0.5}, {});
  EXPECT_THAT(update.nonfinite, ElementsAre(1u));
}

// A checkpoint that is still being written keeps what it was given, and the training does not notice it.
TEST(State, WhatIsSharedStaysAsItIsAndUpdatesAreBitEqual) {
  const auto layout = MixedModel(1 << 20);
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  for (const Named& optimizer : Optimizers()) {
    SCOPED_TRACE(optimizer.name);
    ShardMath plain(optimizer.options, layout);
    ShardMath saved(optimizer.options, layout);
    Buffer parameters = At(RandomPayload(layout->chunk({0}), &random), 0);
    std::vector<std::pair<std::map<std::string, Buffer>, std::map<std::string, Buffer>>> snapshots;
    for (uint64_t step = 1; step <= 6; ++step) {
      const Buffer sum = At(RandomPayload(layout->chunk({0}), &random), 0);
      // Held over several updates, dropped before the next one, and two readers of one state.
      if (step == 2 || step == 4) snapshots.emplace_back(saved.ShareState({0}), plain.ExportState({0}));
      if (step == 4) snapshots.emplace_back(saved.ShareState({0}), plain.ExportState({0}));
      if (step == 5) (void)saved.ShareState({0});
      const Buffer next = saved.Apply({0}, parameters, sum, OptionsOf(step));
      parameters = plain.Apply({0}, parameters, sum, OptionsOf(step));
      ASSERT_EQ(Difference(ToBytes(next), ToBytes(parameters)), "") << step;
      for (const auto& [shared, copy] : snapshots) {
        for (const auto& [name, array] : copy) EXPECT_EQ(Difference(ToBytes(shared.at(name)), ToBytes(array)), "");
      }
    }
  }
}

TEST(State, WhatIsSharedIsNoCopyAndOutlivesTheMath) {
  const auto layout = OneTensor(1000);
  OptimizerOptions o;
  o.momentum = 0.9;
  std::map<std::string, Buffer> shared;
  {
    ShardMath math(o, layout);
    const std::byte* first = math.ShareState({0}).at("momentum").data();
    shared = math.ShareState({0});  // the first reader is done: the same memory
    EXPECT_EQ(shared.at("momentum").data(), first);
  }
  EXPECT_EQ(ToBytes(shared.at("momentum")), Bytes(4000));
}

TEST(State, ImportRefusesAnotherOptimizersOrModelsState) {
  const auto layout = OneTensor(10);
  OptimizerOptions o;
  o.kind = OptimizerKind::kAdam;
  ShardMath math(o, layout);
  const Buffer good = Buffer::Copy(Bytes(40, std::byte{1}).data(), 40);
  const Buffer small = Buffer::Copy(Bytes(36).data(), 36);
  EXPECT_EQ(math.ImportState({0}, {{"exp_avg", good}}).code(), Code::kInvalidArgument);
  EXPECT_EQ(math.ImportState({0}, {{"momentum", good}}).code(), Code::kInvalidArgument);
  EXPECT_EQ(math.ImportState({0}, {{"exp_avg", good}, {"exp_avg_sq", small}}).code(), Code::kInvalidArgument);
  EXPECT_EQ(ToBytes(math.ExportState({0}).at("exp_avg")), Bytes(40)) << "a refusal leaves the state as it was";
  EXPECT_TRUE(math.ImportState({0}, {{"exp_avg", good}, {"exp_avg_sq", good}}).ok());
}

TEST(Loops, BothInstructionSetsGiveTheSameBitsForUpdates) {
  const Loops* const avx2 = Avx2Loops();
  if (avx2 == nullptr) GTEST_SKIP() << "no AVX2 here";
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  for (size_t elements = 0; elements < 100; ++elements) {
    const Chunk chunk{elements * 4, {{0, 0, 0, elements * 4, DType::kFloat32, Role::kTrainable}}};
    const Bytes p = RandomPayload(chunk, &random), g = RandomPayload(chunk, &random);
    const Bytes first = RandomPayload(chunk, &random);
    Bytes second = RandomPayload(chunk, &random);
    for (size_t at = 0; at < second.size(); at += 4) Store(&second, at, std::abs(Load<float>(second, at)));
    const auto run = [&](const Loops& loops, bool adam, SgdMomentum momentum, float decay) {
      Bytes out(elements * 4), m = first, v = second;
      if (adam) {
        const AdamCoefficients c{0.7f, decay, 0.99f, 0.9f, 0.1f, 0.999f, 0.001f, 0.3f, 1e-8f, -0.01f};
        loops.adam(c, out.data(), {m.data(), v.data()}, {m.data(), v.data()}, p.data(), g.data(), elements);
      } else {
        const SgdCoefficients c{0.7f, decay, 0.9f, 0.8f, 0.9f, -0.1f};
        loops.sgd(momentum, c, out.data(), m.data(), m.data(), p.data(), g.data(), elements);
      }
      out.insert(out.end(), m.begin(), m.end());
      out.insert(out.end(), v.begin(), v.end());
      return out;
    };
    for (float decay : {0.0f, 0.1f}) {
      for (SgdMomentum momentum : {SgdMomentum::kNone, SgdMomentum::kPlain, SgdMomentum::kNesterov}) {
        EXPECT_EQ(Difference(run(*avx2, false, momentum, decay), run(PortableLoops(), false, momentum, decay)), "");
      }
      EXPECT_EQ(Difference(run(*avx2, true, SgdMomentum::kNone, decay),
                           run(PortableLoops(), true, SgdMomentum::kNone, decay)),
                "");
    }
  }
}

// ... and for the pass that sums and updates at once, streamed past the caches or not, at any alignment; and these are
// the bits of weighted_sum and the update one after the other.
TEST(Loops, BothInstructionSetsGiveTheSameBitsForSumAndUpdate) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  const SgdCoefficients sgd{0.7f, 0.1f, 0.9f, 0.8f, 0.9f, -0.1f};
  const AdamCoefficients adam{0.7f, 0.1f, 0.99f, 0.9f, 0.1f, 0.999f, 0.001f, 0.3f, 1e-8f, -0.01f};
  for (size_t elements = 0; elements < 70; ++elements) {
    const Chunk chunk{elements * 4, {{0, 0, 0, elements * 4, DType::kFloat32, Role::kTrainable}}};
    for (size_t count = 1; count <= 12; ++count) {
      std::vector<Bytes> inputs;
      std::vector<const std::byte*> in;
      std::vector<float> weights;
      for (size_t k = 0; k < count; ++k) {
        inputs.push_back(RandomPayload(chunk, &random));
        weights.push_back(static_cast<float>(random.Uniform()));
      }
      for (const Bytes& input : inputs) in.push_back(input.data());
      const Bytes p = RandomPayload(chunk, &random), m = RandomPayload(chunk, &random);
      Bytes v = RandomPayload(chunk, &random);
      for (size_t at = 0; at < v.size(); at += 4) Store(&v, at, std::abs(Load<float>(v, at)));
      const Loops::Weighted sum{in.data(), 0, weights.data(), count};
      // What one way gives: parameters, both arrays of state, norm.
      struct Result {
        Bytes out, m, v;
        double norm = 0;
      };
      const auto once = [&](const Loops& loops, bool is_adam, SgdMomentum momentum, bool stream, size_t shift) {
        alignas(64) std::byte out[70 * 4 + 64], next_m[70 * 4 + 64], next_v[70 * 4 + 64];
        const Loops::Adam state{const_cast<std::byte*>(m.data()), const_cast<std::byte*>(v.data())};
        Result r;
        if (is_adam) {
          r.norm = loops.sum_adam(adam, sum, out + shift, {next_m + shift, next_v + shift}, state, p.data(), elements,
                                  stream);
        } else {
          r.norm = loops.sum_sgd(momentum, sgd, sum, out + shift, next_m + shift, m.data(), p.data(), elements, stream);
        }
        loops.fence();
        r.out.assign(out + shift, out + shift + elements * 4);
        if (is_adam || momentum != SgdMomentum::kNone) r.m.assign(next_m + shift, next_m + shift + elements * 4);
        if (is_adam) r.v.assign(next_v + shift, next_v + shift + elements * 4);
        return r;
      };
      const auto twice = [&](bool is_adam, SgdMomentum momentum) {
        Bytes total(elements * 4);
        Result r{Bytes(elements * 4), m, v, 0};
        r.norm = PortableLoops().weighted_sum(total.data(), in.data(), 0, weights.data(), count, elements);
        if (is_adam) {
          PortableLoops().adam(adam, r.out.data(), {r.m.data(), r.v.data()}, {r.m.data(), r.v.data()}, p.data(),
                               total.data(), elements);
        } else {
          PortableLoops().sgd(momentum, sgd, r.out.data(), r.m.data(), r.m.data(), p.data(), total.data(), elements);
          if (momentum == SgdMomentum::kNone) r.m.clear();
          r.v.clear();
        }
        return r;
      };
      const auto expect_all = [&](bool is_adam, SgdMomentum momentum) {
        const Result want = twice(is_adam, momentum);
        for (const Loops* loops : {&PortableLoops(), Avx2Loops()}) {
          if (loops == nullptr) continue;
          for (const bool stream : {false, true}) {
            for (const size_t shift : {0, 4, 16}) {
              const Result got = once(*loops, is_adam, momentum, stream, shift);
              EXPECT_EQ(Difference(got.out, want.out), "") << elements << " elements of " << count;
              EXPECT_EQ(Difference(got.m, want.m), "");
              EXPECT_EQ(Difference(got.v, want.v), "");
              EXPECT_EQ(got.norm, want.norm);
            }
          }
        }
      };
      expect_all(true, SgdMomentum::kNone);
      for (SgdMomentum momentum : {SgdMomentum::kNone, SgdMomentum::kPlain, SgdMomentum::kNesterov})
        expect_all(false, momentum);
    }
  }
}

}  // namespace
}  // namespace everstep::kernels
