// The digest of a seal covers every field: two servers with equal digests hold equal parameters (promise P10, rule R8).
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>

#include "tests/schema/random_messages.h"
#include "tests/support/seed.h"

namespace everstep {
namespace {

Seal Sample() {
  Seal seal;
  seal.id = {{3}, {7}};
  seal.contributors = {{{1}, {7}, {70}, {{11}, 2, {{0, 32}}}}, {{2}, {7}, {70}, {{12}, 2, {{32, 48}, {50, 66}}}}};
  seal.weights = {0.5, 0.5};
  seal.learning_rate = 0.1;
  seal.clip_norm = 1;
  seal.ledger_after = {2, {{0, 48}, {50, 66}}};
  seal.previous = {70};
  return seal;
}

TEST(SealDigest, EveryFieldChangesIt) {
  const std::vector<std::function<void(Seal&)>> changes = {
      [](Seal& s) { s.id.ballot.value ^= 1; },
      [](Seal& s) { s.id.step.value ^= 1; },
      [](Seal& s) { s.contributors[0].worker.value ^= 1; },
      [](Seal& s) { s.contributors[1].base.value ^= 1; },
      [](Seal& s) { s.contributors[1].base_digest.value ^= 1; },
      [](Seal& s) { s.contributors[0].lease.id.value ^= 1; },
      [](Seal& s) { s.contributors[0].lease.epoch ^= 1; },
      [](Seal& s) { s.contributors[0].lease.ranges[0].begin += 1; },
      [](Seal& s) { s.contributors[1].lease.ranges[1].end += 1; },
      [](Seal& s) { s.contributors[1].lease.ranges.pop_back(); },
      [](Seal& s) {
        s.contributors[1].lease.ranges = {{32, 66}};
      },
      [](Seal& s) { std::swap(s.contributors[0], s.contributors[1]); },  // the order of summation
      [](Seal& s) {
        s.contributors.pop_back();
        s.weights.pop_back();
      },
      [](Seal& s) {
        s.weights = {0.5, 0.25};
      },
      [](Seal& s) {
        s.weights = {0.25, 0.5};
      },
      [](Seal& s) { s.learning_rate = std::nextafter(0.1, 1); },
      [](Seal& s) { s.clip_norm = 0; },
      [](Seal& s) { s.ledger_after.epoch = 3; },
      [](Seal& s) { s.ledger_after.consumed.pop_back(); },
      [](Seal& s) { s.ledger_after.consumed[0].end -= 1; },
      [](Seal& s) { s.previous.value ^= 1; },
  };
  std::set<uint64_t> digests = {SealDigest(Sample()).value};
  for (size_t i = 0; i < changes.size(); ++i) {
    Seal seal = Sample();
    changes[i](seal);
    EXPECT_TRUE(digests.insert(SealDigest(seal).value).second) << "change " << i << " does not show";
  }
}

TEST(SealDigest, IgnoresTheDigestItself) {
  Seal seal = Sample();
  const Digest before = SealDigest(seal);
  seal.digest = {12345};
  EXPECT_EQ(SealDigest(seal), before);
}

// What moves from one list to its neighbour must show too: the lists are counted.
TEST(SealDigest, ListsDoNotRunIntoEachOther) {
  Seal a = Sample();
  a.contributors[1].lease.ranges = {{7, 9}};
  a.ledger_after.consumed = {{1, 2}, {3, 4}};
  Seal b = a;
  b.contributors[1].lease.ranges.clear();
  b.ledger_after.consumed.insert(b.ledger_after.consumed.begin(), {7, 9});
  EXPECT_NE(SealDigest(a), SealDigest(b));
}

// Servers and records files of different builds must agree on it. The value is of the bytes that schema/messages.cc
// describes, put together and hashed (XXH3) by another program.
TEST(SealDigest, GoldenValue) { EXPECT_EQ(SealDigest(Sample()).value, 0x90f96d93869c93a1ull); }

TEST(SealDigest, RandomSealsDiffer) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  std::set<uint64_t> digests;
  for (int i = 0; i < 1000; ++i) digests.insert(test::RandomSeal(random).digest.value);
  EXPECT_EQ(digests.size(), 1000u);
}

}  // namespace
}  // namespace everstep
