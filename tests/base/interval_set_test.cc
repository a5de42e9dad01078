// IntervalSet against a plain set of positions.
#include "base/interval_set.h"

#include <gtest/gtest.h>

#include <set>

#include "base/random.h"
#include "tests/support/seed.h"

namespace everstep {
namespace {

constexpr uint64_t kDomain = 120;
using Model = std::set<uint64_t>;

std::vector<IntervalSet::Range> RangesOf(const Model& model) {
  std::vector<IntervalSet::Range> ranges;
  for (uint64_t x : model) {
    if (!ranges.empty() && ranges.back().second == x) {
      ++ranges.back().second;
    } else {
      ranges.emplace_back(x, x + 1);
    }
  }
  return ranges;
}

void ExpectSame(const IntervalSet& set, const Model& model) {
  ASSERT_EQ(set.ranges(), RangesOf(model));
  ASSERT_EQ(set.size(), model.size());
  ASSERT_EQ(set.empty(), model.empty());
  ASSERT_EQ(set.range_count(), RangesOf(model).size());
}

void ExpectSameAnswers(const IntervalSet& set, const Model& model, uint64_t a, uint64_t b) {
  bool any = false;
  bool all = true;
  for (uint64_t x = a; x < b; ++x) {
    any |= model.contains(x);
    all &= model.contains(x);
  }
  ASSERT_EQ(set.Overlaps(a, b), any) << a << " " << b;
  ASSERT_EQ(set.Contains(a, b), all) << a << " " << b;
}

TEST(IntervalSet, BehavesAsASetOfPositions) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  for (int round = 0; round < 50; ++round) {
    IntervalSet set;
    Model model;
    for (int i = 0; i < 100; ++i) {
      const uint64_t a = random.Below(kDomain);
      const uint64_t b = a + random.Below(12);
      switch (random.Below(5)) {
        case 0:
        case 1:
          set.Add(a, b);
          for (uint64_t x = a; x < b; ++x) model.insert(x);
          break;
        case 2:
          set.Remove(a, b);
          for (uint64_t x = a; x < b; ++x) model.erase(x);
          break;
        case 3: {
          const uint64_t bound = random.Below(kDomain + 20);
          Model complement;
          for (uint64_t x = 0; x < bound; ++x) {
            if (!model.contains(x)) complement.insert(x);
          }
          ASSERT_NO_FATAL_FAILURE(ExpectSame(set.ComplementBelow(bound), complement));
          break;
        }
        default: {
          const size_t max_ranges = 1 + random.Below(3);
          std::vector<IntervalSet::Range> expected;
          uint64_t left = random.Below(30);
          const auto taken = set.TakeLowest(left, max_ranges);
          while (left > 0 && !model.empty() && expected.size() < max_ranges) {
            auto [begin, end] = RangesOf(model).front();
            end = std::min(end, begin + left);
            expected.emplace_back(begin, end);
            for (uint64_t x = begin; x < end; ++x) model.erase(x);
            left -= end - begin;
          }
          ASSERT_EQ(taken, expected);
        }
      }
      ASSERT_NO_FATAL_FAILURE(ExpectSame(set, model));
      ASSERT_NO_FATAL_FAILURE(ExpectSameAnswers(set, model, random.Below(kDomain), random.Below(kDomain + 20)));
    }
  }
}

TEST(IntervalSet, TouchingRangesBecomeOne) {
  IntervalSet set;
  set.Add(0, 10);
  set.Add(20, 30);
  set.Add(10, 20);
  EXPECT_EQ(set.ranges(), (std::vector<IntervalSet::Range>{{0, 30}}));
}

TEST(IntervalSet, EmptyAndBackwardRangesAreNothing) {
  IntervalSet set;
  set.Add(5, 5);
  set.Add(9, 3);
  EXPECT_TRUE(set.empty());
  EXPECT_TRUE(set.Contains(4, 4));
  EXPECT_FALSE(set.Overlaps(4, 4));
}

TEST(IntervalSet, WorksAtTheEndOfTheNumbers) {
  IntervalSet set;
  set.Add(UINT64_MAX - 2, UINT64_MAX);
  EXPECT_EQ(set.size(), 2u);
  set.Remove(0, UINT64_MAX);
  EXPECT_TRUE(set.empty());
  EXPECT_EQ(set.ComplementBelow(UINT64_MAX).size(), UINT64_MAX);
}

}  // namespace
}  // namespace everstep
