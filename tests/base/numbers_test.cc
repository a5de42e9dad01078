// Random numbers, permutations and checksums: the same on every machine and in every version, or resumed jobs would
// read their data in another order. The golden values come from implementations written apart from the code.
#include <gtest/gtest.h>

#include <set>

#include "base/checksum.h"
#include "base/permutation.h"
#include "base/random.h"
#include "tests/support/seed.h"

namespace everstep {
namespace {

// From the reference implementation of splitmix64 (Vigna, https://prng.di.unimi.it/splitmix64.c).
TEST(Random, IsSplitmix64) {
  Random zero(0);
  EXPECT_EQ(zero.Next(), 0xe220a8397b1dcdafull);
  EXPECT_EQ(zero.Next(), 0x6e789e6aa1b965f4ull);
  EXPECT_EQ(zero.Next(), 0x06c45d188009454full);
  Random other(1234567);
  EXPECT_EQ(other.Next(), 6457827717110365317ull);
  EXPECT_EQ(other.Next(), 3203168211198807973ull);
}

TEST(Random, StaysInItsBoundsAndReachesThem) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  std::set<uint64_t> below;
  std::set<int64_t> between;
  for (int i = 0; i < 2000; ++i) {
    below.insert(random.Below(7));
    between.insert(random.Between(-3, 3));
    const double u = random.Uniform();
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
  }
  EXPECT_EQ(below, (std::set<uint64_t>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(between, (std::set<int64_t>{-3, -2, -1, 0, 1, 2, 3}));
  EXPECT_FALSE(random.Chance(0));
  EXPECT_TRUE(random.Chance(1));
}

TEST(Random, EntropyIsNeverZeroAndDiffers) {
  std::set<uint64_t> seen;
  for (int i = 0; i < 100; ++i) seen.insert(EntropyU64());
  EXPECT_EQ(seen.size(), 100u);
  EXPECT_FALSE(seen.contains(0));
}

void ExpectBijection(uint64_t seed, uint64_t epoch, uint64_t n) {
  const Permutation permutation(seed, epoch, n);
  std::vector<bool> seen(n);
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t x = permutation.At(i);
    ASSERT_LT(x, n);
    ASSERT_FALSE(seen[x]) << n << ": " << x << " comes twice";
    seen[x] = true;
  }
}

TEST(Permutation, IsABijectionForEverySize) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  for (uint64_t n = 1; n <= 300; ++n) ASSERT_NO_FATAL_FAILURE(ExpectBijection(seed, n, n));
  for (uint64_t n : {509, 512, 513, 1000, 1021, 4096, 4097, 7919, 60000, 65536, 65537, 104729}) {
    ASSERT_NO_FATAL_FAILURE(ExpectBijection(seed, 3, n));
  }
}

std::vector<uint64_t> First(const Permutation& permutation, uint64_t count) {
  std::vector<uint64_t> out;
  for (uint64_t i = 0; i < count; ++i) out.push_back(permutation.At(i));
  return out;
}

TEST(Permutation, Case19_EachEpochAndSeedHasAnOrderOfItsOwn) {
  std::set<std::vector<uint64_t>> orders;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    for (uint64_t epoch = 0; epoch < 10; ++epoch) orders.insert(First(Permutation(seed, epoch, 60000), 20));
  }
  EXPECT_EQ(orders.size(), 100u);
  EXPECT_EQ(First(Permutation(5, 2, 60000), 20), First(Permutation(5, 2, 60000), 20));
}

TEST(Permutation, GoldenValues) {
  EXPECT_EQ(First(Permutation(1, 0, 10), 10), (std::vector<uint64_t>{0, 2, 4, 5, 6, 1, 8, 3, 9, 7}));
  EXPECT_EQ(First(Permutation(1, 1, 10), 10), (std::vector<uint64_t>{4, 8, 0, 2, 3, 9, 1, 5, 7, 6}));
  EXPECT_EQ(First(Permutation(42, 3, 60000), 8),
            (std::vector<uint64_t>{39677, 58747, 41529, 41613, 33015, 39417, 57803, 46504}));
  const Permutation largest(7, 0, uint64_t{1} << 62);
  EXPECT_EQ(largest.At(0), 140175325388073484ull);
  EXPECT_EQ(largest.At(1), 4158648470737680520ull);
  EXPECT_EQ(largest.At((uint64_t{1} << 62) - 1), 891076748957986710ull);
  const Permutation odd(7, 2, (uint64_t{1} << 40) + 1);
  EXPECT_EQ(odd.At(0), 374782286504ull);
  EXPECT_EQ(odd.At(uint64_t{1} << 40), 207346904285ull);
}

TEST(PermutationDeathTest, PositionsOutsideAreOurBug) {
  EXPECT_DEATH(Permutation(1, 1, 0), "impossible size");
  EXPECT_DEATH(Permutation(1, 1, 5).At(5), "outside the epoch");
}

// From the self-test of xxHash (cli/xsum_sanity_check.c): the first bytes of its test buffer, seeds 0 and PRIME64.
TEST(Checksum, IsXxh3) {
  constexpr uint64_t kPrime32 = 2654435761u;
  constexpr uint64_t kPrime64 = 11400714785074694797ull;
  std::string data;
  uint64_t generator = kPrime32;
  for (int i = 0; i < 6; ++i) {
    data += static_cast<char>(generator >> 56);
    generator *= kPrime64;
  }
  EXPECT_EQ(Checksum64(""), 0x2D06800538D394C2ull);
  EXPECT_EQ(Checksum64("", kPrime64), 0xA8A6B918B2F0364Aull);
  EXPECT_EQ(Checksum64(data.substr(0, 1)), 0xC44BDFF4074EECDBull);
  EXPECT_EQ(Checksum64(data), 0x27B56A84CD2D7325ull);
}

TEST(Checksum, EveryFlippedBitShows) {
  std::string data(300, 'a');
  const uint64_t whole = Checksum64(data);
  for (size_t i = 0; i < data.size() * 8; ++i) {
    data[i / 8] = static_cast<char>(data[i / 8] ^ (1 << (i % 8)));
    ASSERT_NE(Checksum64(data), whole);
    data[i / 8] = static_cast<char>(data[i / 8] ^ (1 << (i % 8)));
  }
  EXPECT_EQ(Checksum64(data), whole);
}

}  // namespace
}  // namespace everstep
