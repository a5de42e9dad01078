// Sums of ps/kernels against a scalar reference, and their order, threads, addresses and refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <numeric>

#include "ps/kernels/loops.h"
#include "ps/kernels/shard_math.h"
#include "tests/ps/kernels_testing.h"
#include "tests/support/seed.h"

namespace everstep::kernels {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kMax = std::numeric_limits<float>::max();

struct Expected {
  Bytes sum;
  long double squared_norm = 0;
};

// Element by element, as the header of ps/kernels/shard_math.h defines the sum.
Expected ReferenceSum(const Chunk& chunk, const std::vector<Bytes>& contributions, const std::vector<double>& weights) {
  Expected expected{Bytes(chunk.bytes), 0};
  double total = 0;
  for (double weight : weights) total += weight;
  for (const Segment& segment : chunk.segments) {
    for (uint64_t done = 0; done < segment.bytes; done += ElementBytes(segment.dtype)) {
      const size_t at = segment.chunk_offset + done;
      if (segment.dtype == DType::kInt64) {
        int64_t largest = std::numeric_limits<int64_t>::min();
        for (const Bytes& c : contributions) largest = std::max(largest, Load<int64_t>(c, at));
        Store(&expected.sum, at, largest);
        continue;
      }
      float sum = 0;
      for (size_t i = 0; i < contributions.size(); ++i) {
        const double weight = segment.role == Role::kBuffer ? weights[i] / total : weights[i];
        const float product = static_cast<float>(weight) * Load<float>(contributions[i], at);
        sum = sum + product;
      }
      Store(&expected.sum, at, sum);
      if (segment.role == Role::kTrainable) expected.squared_norm += static_cast<long double>(sum) * sum;
    }
  }
  return expected;
}

std::vector<double> RandomWeights(size_t count, Random* random) {
  std::vector<double> weights;
  for (size_t i = 0; i < count; ++i) weights.push_back(random->Chance(0.1) ? 0.5 : random->Uniform() + 0.01);
  return weights;
}

void ExpectSumMatches(const ChunkLayout& layout, ShardMath* math, size_t count, Random* random) {
  for (uint32_t id = 0; id < layout.size(); ++id) {
    const Chunk& chunk = layout.chunk({id});
    std::vector<Bytes> contributions;
    std::vector<Buffer> buffers;
    for (size_t i = 0; i < count; ++i) {
      contributions.push_back(RandomPayload(chunk, random));
      buffers.push_back(At(contributions.back(), random->Below(65)));
    }
    const std::vector<double> weights = RandomWeights(count, random);
    const ChunkSum got = math->Sum({id}, buffers, weights);
    const Expected want = ReferenceSum(chunk, contributions, weights);
    EXPECT_EQ(Difference(ToBytes(got.sum), want.sum), "") << "chunk " << id << ", " << count << " contributions";
    EXPECT_NEAR(got.squared_norm, static_cast<double>(want.squared_norm),
                1e-13 * static_cast<double>(want.squared_norm));
    EXPECT_THAT(got.nonfinite, IsEmpty());
  }
}

TEST(Sum, MatchesTheScalarReferenceAtAllSizesCountsAndAddresses) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  for (int64_t size : kSizes) {
    SCOPED_TRACE(testing::Message() << size << " elements");
    const auto layout = OneTensor(size);
    ShardMath math({}, layout);
    for (size_t count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17}) ExpectSumMatches(*layout, &math, count, &random);
  }
}

// The norm of a segment as ps/kernels/shard_math.h defines it, written without the loops' structure.
double NormByDefinition(const Bytes& sum, const Segment& segment) {
  double norm = 0;
  const size_t elements = segment.bytes / 4;
  for (size_t block = 0; block < elements; block += 4096) {
    std::vector<double> lanes(16);
    for (size_t i = block; i < std::min(elements, block + 4096); ++i) {
      const double value = Load<float>(sum, segment.chunk_offset + i * 4);
      lanes[(i - block) % 16] += value * value;
    }
    while (lanes.size() > 1) {
      const size_t half = lanes.size() / 2;
      for (size_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
      lanes.resize(half);
    }
    norm += lanes[0];
  }
  return norm;
}

TEST(Sum, TheNormFollowsItsDefinitionBitByBit) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  for (int64_t size : kSizes) {
    const auto layout = OneTensor(size);
    ShardMath math({}, layout);
    const Bytes payload = RandomPayload(layout->chunk({0}), &random);
    const ChunkSum sum = math.Sum({0}, std::vector<Buffer>{At(payload, 2)}, std::vector<double>{1.0});
    const double want = NormByDefinition(payload, layout->chunk({0}).segments[0]);
    EXPECT_EQ(std::bit_cast<uint64_t>(sum.squared_norm), std::bit_cast<uint64_t>(want)) << size << " elements";
  }
}

TEST(Sum, MatchesTheScalarReferenceOnMixedSegmentsAndCutTensors) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  for (uint64_t chunk_bytes : {64, 128, 320, 4096, 20480, 1 << 20}) {
    SCOPED_TRACE(testing::Message() << chunk_bytes << " bytes a chunk");
    const auto layout = MixedModel(chunk_bytes);
    ShardMath math({}, layout);
    for (size_t count : {1, 2, 3, 8, 11}) ExpectSumMatches(*layout, &math, count, &random);
  }
}

TEST(Sum, StartsFromPositiveZero) {
  const auto layout = OneTensor(3);
  ShardMath math({}, layout);
  Bytes zeros(12);
  for (size_t at : {0, 4, 8}) Store(&zeros, at, -0.0f);
  const ChunkSum sum = math.Sum({0}, std::vector<Buffer>{At(zeros, 0)}, std::vector<double>{1.0});
  EXPECT_EQ(ToBytes(sum.sum), Bytes(12));
}

TEST(Sum, PaddingIsNotReadAndComesOutZero) {
  const auto layout = MixedModel(1 << 20);
  const Chunk& chunk = layout->chunk({0});
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  ShardMath math({}, layout);
  std::vector<bool> used(chunk.bytes);
  for (const Segment& s : chunk.segments) std::fill_n(used.begin() + static_cast<long>(s.chunk_offset), s.bytes, true);
  ASSERT_LT(std::count(used.begin(), used.end(), true), static_cast<long>(chunk.bytes)) << "a model with padding";
  for (int round = 0; round < 3; ++round) {  // recycled memory has other bytes in it than fresh memory
    const std::vector<Buffer> buffers = {At(RandomPayload(chunk, &random), 0), At(RandomPayload(chunk, &random), 3)};
    const ChunkSum sum = math.Sum({0}, buffers, std::vector<double>{0.5, 0.5});
    EXPECT_THAT(sum.nonfinite, IsEmpty());
    const Buffer next = math.Apply({0}, buffers[0], sum.sum, {0.1, 1, 1});
    for (size_t i = 0; i < chunk.bytes; ++i) {
      if (used[i]) continue;
      ASSERT_EQ(sum.sum.data()[i], std::byte{0}) << "sum, byte " << i;
      ASSERT_EQ(next.data()[i], std::byte{0}) << "parameters, byte " << i;
    }
  }
}

// A model and contributions that may be spoiled at an element of a segment.
class NonFinite : public testing::Test {
 protected:
  static constexpr size_t kCount = 5;

  NonFinite() {
    Random random(3);
    for (size_t i = 0; i < kCount; ++i) contributions_.push_back(RandomPayload(chunk(), &random));
  }

  const Chunk& chunk() const { return layout_->chunk({0}); }

  std::vector<uint32_t> Sum(const std::vector<double>& weights = {0.2, 0.2, 0.2, 0.2, 0.2}) {
    std::vector<Buffer> buffers;
    for (const Bytes& contribution : contributions_) buffers.push_back(At(contribution, 1));
    return math_.Sum({0}, buffers, weights).nonfinite;
  }

  std::shared_ptr<const ChunkLayout> layout_ = MixedModel(1 << 20);
  ShardMath math_{{}, layout_};
  std::vector<Bytes> contributions_;
};

TEST_F(NonFinite, EachContributionIsNamedAtEachPlace) {
  for (const Segment& segment : chunk().segments) {
    if (segment.dtype != DType::kFloat32) continue;
    const uint64_t last = segment.bytes / 4 - 1;
    for (uint64_t element : {uint64_t{0}, last / 2, last}) {
      for (uint32_t culprit = 0; culprit < kCount; ++culprit) {
        for (float poison : {kNaN, -kNaN, kInf, -kInf}) {
          const size_t at = segment.chunk_offset + element * 4;
          const float good = Load<float>(contributions_[culprit], at);
          Store(&contributions_[culprit], at, poison);
          EXPECT_THAT(Sum(), ElementsAre(culprit)) << "tensor " << segment.tensor << ", element " << element;
          Store(&contributions_[culprit], at, good);
        }
      }
    }
  }
  EXPECT_THAT(Sum(), IsEmpty());
}

TEST_F(NonFinite, SeveralInDifferentBlocksAreAllNamed) {
  const Segment& large = chunk().segments[6];
  ASSERT_GT(large.bytes / 4, 2 * kBlockElements);
  Store(&contributions_[4], large.chunk_offset, kInf);
  Store(&contributions_[1], large.chunk_offset + large.bytes - 4, kNaN);
  Store(&contributions_[2], chunk().segments.back().chunk_offset, -kInf);
  EXPECT_THAT(Sum(), ElementsAre(1, 2, 4));
}

TEST_F(NonFinite, OppositeInfinitiesDoNotCancel) {
  Store(&contributions_[0], 40, kInf);
  Store(&contributions_[3], 40, -kInf);
  EXPECT_THAT(Sum(), ElementsAre(0, 3));
}

TEST_F(NonFinite, AWeightOfZeroHidesNothing) {
  Store(&contributions_[2], 0, kInf);
  EXPECT_THAT(Sum({0.25, 0.25, 0, 0.25, 0.25}), ElementsAre(2));
}

TEST_F(NonFinite, OverflowOfFiniteInputsNamesAll) {
  Store(&contributions_[0], 8, kMax);
  Store(&contributions_[1], 8, kMax);
  EXPECT_THAT(Sum({1, 1, 1, 1, 1}), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(Sum(), IsEmpty()) << "with small weights it does not overflow";
  Store(&contributions_[3], 400, kNaN);
  EXPECT_THAT(Sum({1, 1, 1, 1, 1}), ElementsAre(3)) << "a culprit explains more than an overflow";
}

TEST_F(NonFinite, LargestAndSmallestFiniteValuesPass) {
  Store(&contributions_[0], 0, kMax);
  Store(&contributions_[1], 4, -kMax);
  Store(&contributions_[2], 8, std::numeric_limits<float>::denorm_min());
  EXPECT_THAT(Sum(), IsEmpty());
}

TEST_F(NonFinite, IntegersThatLookLikeNaNPass) {
  for (const Segment& segment : chunk().segments) {
    if (segment.dtype == DType::kInt64) Store(&contributions_[1], segment.chunk_offset, int64_t{0x7fc000007fc00000});
  }
  EXPECT_THAT(Sum(), IsEmpty());
}

TEST_F(NonFinite, AWeightThatIsNotFiniteIsAFaultOfAll) {
  EXPECT_THAT(Sum({1, 1, kInf, 1, 1}), ElementsAre(0, 1, 2, 3, 4));
}

TEST(Sum, Int64IsTheMaximum) {
  const auto layout = ChunkLayout::Make({{{"n", {4}, DType::kInt64, Role::kBuffer}}}, 64);
  ShardMath math({}, layout);
  const std::vector<std::vector<int64_t>> values = {
      {INT64_MIN, -5, 0, INT64_MAX}, {INT64_MIN, -6, 1, INT64_MIN}, {INT64_MIN + 1, -7, (int64_t{1} << 53) + 1, 0}};
  std::vector<Buffer> buffers;
  for (const auto& v : values) {
    Bytes bytes(32);
    std::memcpy(bytes.data(), v.data(), 32);
    buffers.push_back(At(bytes, 5));
  }
  const ChunkSum sum = math.Sum({0}, buffers, std::vector<double>{0.1, 0.1, 0.1});
  const Bytes got = ToBytes(sum.sum);
  EXPECT_EQ(Load<int64_t>(got, 0), INT64_MIN + 1);
  EXPECT_EQ(Load<int64_t>(got, 8), -5);
  EXPECT_EQ(Load<int64_t>(got, 16), (int64_t{1} << 53) + 1);
  EXPECT_EQ(Load<int64_t>(got, 24), INT64_MAX);
  EXPECT_EQ(sum.squared_norm, 0);
}

float MeanOf(const std::vector<float>& values, const std::vector<double>& weights) {
  const auto layout = ChunkLayout::Make({{{"mean", {}, DType::kFloat32, Role::kBuffer}}}, 64);
  ShardMath math({}, layout);
  std::vector<Buffer> buffers;
  for (float value : values) buffers.push_back(Buffer::Copy(&value, 4));
  const ChunkSum sum = math.Sum({0}, buffers, weights);
  EXPECT_THAT(sum.nonfinite, IsEmpty());
  EXPECT_EQ(sum.squared_norm, 0) << "buffers do not count for clipping";
  return Load<float>(ToBytes(sum.sum), 0);
}

TEST(Sum, BuffersAreAMeanWhateverTheWeightsAddUpTo) {
  EXPECT_EQ(MeanOf({1, 3}, {0.5, 0.5}), 2);
  EXPECT_EQ(MeanOf({1, 3}, {0.25, 0.75}), 2.5f);
  EXPECT_EQ(MeanOf({5}, {0.125}), 5) << "one stale contribution";
  EXPECT_EQ(MeanOf({1, 3}, {16, 48}), 2.5f);
  EXPECT_EQ(MeanOf({1, 3, 8}, {0, 0, 0}), 4) << "no samples anywhere";
}

TEST(Sum, AResultIsNotOverwrittenWhileSomebodyHoldsIt) {
  const auto layout = OneTensor(20000);
  ShardMath math({}, layout);
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  std::vector<Buffer> held;
  std::vector<Bytes> copies;
  for (int i = 0; i < 6; ++i) {
    const std::vector<Buffer> one = {At(RandomPayload(layout->chunk({0}), &random), 0)};
    held.push_back(math.Sum({0}, one, std::vector<double>{1.0}).sum);
    copies.push_back(ToBytes(held.back()));
    if (i == 2) held[0] = {};
  }
  for (size_t i = 1; i < held.size(); ++i) EXPECT_EQ(Difference(ToBytes(held[i]), copies[i]), "") << i;
}

TEST(SumDeathTest, AWrongSizeIsOurOwnBug) {
  const auto layout = OneTensor(8);
  ShardMath math({}, layout);
  const std::vector<Buffer> small = {Buffer::Copy(Bytes(28).data(), 28)};
  EXPECT_DEATH(math.Sum({0}, small, std::vector<double>{1.0}), "size of its chunk");
  EXPECT_DEATH(math.Sum({0}, std::vector<Buffer>{}, std::vector<double>{}), "one weight a contribution");
}

TEST(ForEachChunk, RunsEachOnceWhateverTheThreads) {
  for (unsigned threads : {1u, 2u, 3u, 0u}) {
    SetThreads(threads);
    for (size_t count : {0, 1, 2, 3, 100}) {
      std::vector<std::atomic<int>> runs(count);
      ForEachChunk(count, [&](size_t i) { ++runs[i]; });
      for (const auto& n : runs) EXPECT_EQ(n, 1);
    }
  }
}

TEST(ForEachChunk, SumsAreBitEqualInAnyOrderAndOnAnyNumberOfThreads) {
  const auto layout = MixedModel(512);
  ASSERT_GT(layout->size(), 50u);
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  std::vector<std::vector<Buffer>> buffers(layout->size());
  for (uint32_t id = 0; id < layout->size(); ++id) {
    for (int i = 0; i < 3; ++i) buffers[id].push_back(At(RandomPayload(layout->chunk({id}), &random), random.Below(8)));
  }
  const std::vector<double> weights = {0.3, 0.6, 0.1};
  std::vector<ChunkSum> first(layout->size());
  for (uint32_t id = 0; id < layout->size(); ++id) first[id] = ShardMath({}, layout).Sum({id}, buffers[id], weights);
  for (unsigned threads : {1u, 2u, 4u, 0u}) {
    SetThreads(threads);
    ShardMath math({}, layout);
    std::vector<uint32_t> order(layout->size());
    std::iota(order.begin(), order.end(), 0u);
    for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[random.Below(i + 1)]);
    std::vector<ChunkSum> sums(layout->size());
    ForEachChunk(order.size(), [&](size_t i) { sums[order[i]] = math.Sum({order[i]}, buffers[order[i]], weights); });
    for (uint32_t id = 0; id < layout->size(); ++id) {
      EXPECT_EQ(Difference(sums[id].sum, first[id].sum), "");
      EXPECT_EQ(std::bit_cast<uint64_t>(sums[id].squared_norm), std::bit_cast<uint64_t>(first[id].squared_norm));
    }
  }
}

TEST(Loops, BothInstructionSetsGiveTheSameBitsForSums) {
  const Loops* const avx2 = Avx2Loops();
  if (avx2 == nullptr) GTEST_SKIP() << "no AVX2 here";
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  for (size_t elements = 0; elements < 200; ++elements) {
    const size_t count = 1 + random.Below(20);
    const Chunk chunk{elements * 4, {{0, 0, 0, elements * 4, DType::kFloat32, Role::kTrainable}}};
    std::vector<Buffer> buffers;
    std::vector<const std::byte*> inputs;
    std::vector<float> weights;
    for (size_t i = 0; i < count; ++i) {
      buffers.push_back(At(RandomPayload(chunk, &random), i));
      inputs.push_back(buffers.back().data());
      weights.push_back(RandomFloat(&random));
    }
    Bytes a(elements * 4), b(elements * 4);
    const double norm_a = avx2->weighted_sum(a.data(), inputs.data(), 0, weights.data(), count, elements);
    const double norm_b = PortableLoops().weighted_sum(b.data(), inputs.data(), 0, weights.data(), count, elements);
    EXPECT_EQ(Difference(a, b), "") << elements << " elements, " << count << " inputs";
    EXPECT_EQ(std::bit_cast<uint64_t>(norm_a), std::bit_cast<uint64_t>(norm_b));
    EXPECT_EQ(avx2->any_nonfinite(a.data(), elements), PortableLoops().any_nonfinite(b.data(), elements));
  }
}

}  // namespace
}  // namespace everstep::kernels
