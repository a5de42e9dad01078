#include "ps/policy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/random.h"
#include "ps/clip.h"
#include "tests/support/seed.h"

namespace everstep {
namespace {

constexpr Duration kMs = std::chrono::milliseconds(1);

Contribution From(uint64_t worker, std::vector<SampleRange> ranges = {}, uint64_t base = 5) {
  return {{worker}, {base}, {1}, {{100 + worker}, 0, std::move(ranges)}};
}
Candidate Whole(uint64_t worker, Duration at = Duration{0}, bool live = true, uint64_t base = 5) {
  return {From(worker, {}, base), true, live, Time{} + at};
}
Candidate Awaited(uint64_t worker, bool live = true) { return {From(worker), false, live, Time::Never()}; }

SealView View(std::vector<Candidate> candidates, Duration now = Duration{0}) {
  SealView view;
  view.now = Time{} + now;
  view.step = {5};
  view.granted = candidates.size();
  view.candidates = std::move(candidates);
  for (const Candidate& c : view.candidates) view.ready_members += c.live;
  return view;
}

using Chosen = std::vector<size_t>;

TEST(Policy, SyncWaitsForAllLiveMembers) {
  const JobSpec job;
  EXPECT_TRUE(DecideSeal(job, View({Whole(1), Awaited(2)}, 1000 * kMs)).chosen.empty());
  EXPECT_EQ(DecideSeal(job, View({Whole(1), Whole(2)})).chosen, (Chosen{0, 1}));
  EXPECT_TRUE(DecideSeal(job, View({})).chosen.empty());
}

TEST(Policy, Case4_AMemberThatDiedBeforeItWasWholeIsNotWaitedFor) {
  const JobSpec job;
  EXPECT_EQ(DecideSeal(job, View({Whole(1), Awaited(2, false)})).chosen, (Chosen{0}));
  EXPECT_EQ(DecideSeal(job, View({Whole(1), Whole(2, {}, false)})).chosen, (Chosen{0, 1}));  // whole: it is in
}

TEST(Policy, QuorumSealsAfterTheGrace) {
  JobSpec job;
  job.quorum = 0.5;
  job.grace = 100 * kMs;
  const auto at = [&](Duration now) {
    return DecideSeal(job, View({Whole(1, 10 * kMs), Awaited(2), Whole(3, 40 * kMs), Awaited(4)}, now));
  };
  EXPECT_TRUE(at(109 * kMs).chosen.empty());
  EXPECT_EQ(at(50 * kMs).recheck, Time{} + 110 * kMs);  // time alone changes the answer
  EXPECT_EQ(at(110 * kMs).chosen, (Chosen{0, 2}));
  // Below the quorum no time is enough.
  EXPECT_TRUE(DecideSeal(job, View({Whole(1), Awaited(2), Awaited(3)}, 1000 * kMs)).chosen.empty());
}

TEST(Policy, QuorumCountsWhoWasGrantedWorkNotWhoIsLeft) {
  JobSpec job;
  job.quorum = 0.5;
  job.grace = Duration{0};
  SealView view = View({Whole(1), Awaited(2)});
  view.granted = 4;
  EXPECT_TRUE(DecideSeal(job, view).chosen.empty());
  view.granted = 2;
  EXPECT_EQ(DecideSeal(job, view).chosen, (Chosen{0}));
}

TEST(Policy, Case8_BelowTheMinimumTheStepIsPaused) {
  JobSpec job;
  job.min_workers = 2;
  EXPECT_TRUE(DecideSeal(job, View({Whole(1)})).paused);
  EXPECT_TRUE(DecideSeal(job, View({Whole(1)})).chosen.empty());
  EXPECT_EQ(DecideSeal(job, View({Whole(1), Whole(2, {}, false)})).chosen, (Chosen{0, 1}));  // what is whole counts
  job.quorum = 0.1;
  job.grace = Duration{0};
  EXPECT_TRUE(
      DecideSeal(job, View({Whole(1), Awaited(2), Awaited(3)})).chosen.empty());  // the minimum of whole ones, too
}

// A step that was begun with enough members is not made of fewer than the minimum, unless they were refused.
TEST(Policy, Case8_ThoseWhoLeftTheStepDoNotCountTowardsTheMinimum) {
  JobSpec job;
  job.min_workers = 2;
  SealView view = View({Whole(1)});
  view.ready_members = 3;  // enough members, but one contribution
  view.granted = 3;
  EXPECT_TRUE(DecideSeal(job, view).chosen.empty());
  EXPECT_FALSE(DecideSeal(job, view).paused);
  view.refused = 1;
  EXPECT_EQ(DecideSeal(job, view).chosen, (Chosen{0}));
}

TEST(Policy, TheInitialisationTakesTheFirstThatIsWhole) {
  JobSpec job;
  job.min_workers = 3;
  SealView view = View({Awaited(1), Whole(2, {}, false, 0)});
  view.step = {0};
  EXPECT_EQ(DecideSeal(job, view).chosen, (Chosen{1}));
}

TEST(Policy, AsynchronousModesTakeOneAtATimeFirstComeFirstServed) {
  for (const Mode mode : {Mode::kAsync, Mode::kSsp}) {
    JobSpec job;
    job.mode = mode;
    job.staleness = 2;
    EXPECT_EQ(DecideSeal(job, View({Whole(1, 9 * kMs), Whole(2, 3 * kMs, true, 3), Awaited(3)})).chosen, (Chosen{1}));
    EXPECT_EQ(DecideSeal(job, View({Whole(1, 9 * kMs), Whole(2, 3 * kMs, true, 2)})).chosen, (Chosen{0}));  // too old
    job.min_workers = 2;
    EXPECT_TRUE(DecideSeal(job, View({Whole(1)})).paused);
    EXPECT_EQ(DecideSeal(job, View({Whole(1, {}, false), Awaited(2)})).chosen, (Chosen{0}));  // what is whole counts
  }
}

TEST(Policy, SspStopsWhoeverIsTooFarAhead) {
  JobSpec job;
  job.mode = Mode::kSsp;
  job.staleness = 3;
  EXPECT_TRUE(MayRunAhead(job, 13, 10));
  EXPECT_FALSE(MayRunAhead(job, 14, 10));
  job.mode = Mode::kAsync;
  EXPECT_TRUE(MayRunAhead(job, 1000, 0));
}

TEST(Policy, SyncWeightsAreShareOfSamples) {
  const JobSpec job;
  EXPECT_EQ(SealWeights(job, {5}, {From(1, {{0, 48}}), From(2, {{48, 60}, {62, 66}})}),
            (std::vector<double>{0.75, 0.25}));
  EXPECT_EQ(SealWeights(job, {5}, {From(1), From(2)}), (std::vector<double>{0.5, 0.5}));  // without a dataset
  EXPECT_EQ(SealWeights(job, {0}, {From(1)}), (std::vector<double>{1}));
}

TEST(Policy, SyncWeightsSumToOne) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  for (int i = 0; i < 200; ++i) {
    std::vector<Contribution> contributors;
    for (uint64_t w = 0; w <= random.Below(50); ++w)
      contributors.push_back(From(w, {{w * 1000, w * 1000 + 1 + random.Below(999)}}));
    const std::vector<double> weights = SealWeights({}, {5}, contributors);
    EXPECT_NEAR(std::accumulate(weights.begin(), weights.end(), 0.0), 1, 1e-12);
  }
}

TEST(Policy, AsyncWeightsFallWithStaleness) {
  JobSpec job;
  job.mode = Mode::kAsync;
  job.staleness_power = 0.5;
  EXPECT_EQ(SealWeights(job, {5}, {From(1, {{0, 1}}, 5)}), (std::vector<double>{1}));
  EXPECT_EQ(SealWeights(job, {5}, {From(1, {{0, 1}}, 2)}), (std::vector<double>{0.5}));
  job.mode = Mode::kSsp;
  EXPECT_EQ(SealWeights(job, {5}, {From(1, {{0, 1}}, 2)}), (std::vector<double>{1}));
}

TEST(Policy, TheOrderOfSummationDoesNotDependOnArrival) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  std::vector<Contribution> sorted = {From(9, {{0, 8}}), From(2, {{8, 16}, {40, 50}}), From(5, {{16, 24}}),
                                      From(1, {{24, 32}})};
  for (int i = 0; i < 50; ++i) {
    std::vector<Contribution> arrived = sorted;
    for (size_t k = arrived.size() - 1; k > 0; --k) std::swap(arrived[k], arrived[random.Below(k + 1)]);
    SortContributors(&arrived);
    ASSERT_EQ(arrived, sorted);
  }
  std::vector<Contribution> no_data = {From(3), From(1), From(2)};
  SortContributors(&no_data);
  EXPECT_EQ(no_data, (std::vector<Contribution>{From(1), From(2), From(3)}));
}

TEST(Policy, Case22_SharesAddUpAndAreEven) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  for (int i = 0; i < 2000; ++i) {
    const uint64_t total = random.Chance(0.5) ? random.Below(100) : random.Next();
    const size_t members = 1 + random.Below(40);
    unsigned __int128 sum = 0;
    for (size_t m = 0; m < members; ++m) {
      const uint64_t share = Share(total, members, m);
      sum += share;
      ASSERT_LE(share, total / members + 1);
      ASSERT_GE(share, total / members);
    }
    ASSERT_TRUE(sum == total);
  }
}

TEST(Clip, ScalesAsTorchDoesOverAllChunks) {
  const std::map<ChunkId, double> norms = {{{0}, 9}, {{1}, 16}};
  EXPECT_EQ(ClipScale(0, norms), 1);
  EXPECT_EQ(ClipScale(10, norms), 1);
  EXPECT_DOUBLE_EQ(ClipScale(2.5, norms), 2.5 / (5 + 1e-6));
  EXPECT_EQ(ClipScale(1, {}), 1);
}

}  // namespace
}  // namespace everstep
