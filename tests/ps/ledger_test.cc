// Each sample of an epoch is consumed exactly once (promise P4; cases 17 to 22, rule R15).
#include "ps/ledger.h"

#include <gtest/gtest.h>

#include "base/limits.h"
#include "base/permutation.h"
#include "base/random.h"
#include "tests/support/seed.h"

namespace everstep {
namespace {

std::vector<const Lease*> Pointers(const std::vector<Lease>& leases) {
  std::vector<const Lease*> out;
  for (const Lease& lease : leases) out.push_back(&lease);
  return out;
}

Lease LeaseOf(uint64_t epoch, std::vector<SampleRange> ranges) { return {{1}, epoch, std::move(ranges)}; }

// Plays a coordinator's part with leases in the hands of workers, and counts how often each position was committed.
class Play {
 public:
  Play(uint64_t seed, uint64_t dataset, uint64_t epochs)
      : random_(seed), dataset_(dataset), epochs_(epochs), ledger_(dataset, epochs), counts_(dataset) {}

  bool done() const { return ledger_.Complete(); }
  const Ledger& ledger() const { return ledger_; }

  // One step of a job with so many members; each may die, come back, or be left out of the seal.
  void Step(size_t members, uint64_t batch) {
    while (held_.size() > members) GiveBack(random_.Below(held_.size()));
    const uint64_t share = std::max<uint64_t>(1, batch / members);
    while (held_.size() < members) {
      Lease lease = ledger_.Lend({next_id_++}, share);
      if (lease.ranges.empty()) break;
      ASSERT_LE(lease.samples(), share);
      held_.push_back(std::move(lease));
    }
    if (random_.Chance(0.1)) RestartCoordinator();
    if (!held_.empty() && random_.Chance(0.2)) GiveBack(random_.Below(held_.size()));
    std::vector<Lease> sealed;
    for (size_t i = 0; i < held_.size();) {
      if (held_[i].epoch == ledger_.committed().epoch && random_.Chance(0.8)) {
        sealed.push_back(held_[i]);
        held_.erase(held_.begin() + static_cast<long>(i));
      } else {
        ++i;
      }
    }
    if (sealed.empty()) return;
    ASSERT_NO_FATAL_FAILURE(Seal(sealed, members, share));
  }

 private:
  void GiveBack(size_t i) {
    ledger_.Return(held_[i]);
    held_.erase(held_.begin() + static_cast<long>(i));
  }

  // Lending is forgotten; some workers find the new coordinator and bring their leases, others do not.
  void RestartCoordinator() {
    const LedgerState state = ledger_.committed();
    ledger_ = Ledger(dataset_, epochs_);
    ledger_.Restore(state);
    std::erase_if(held_, [&](const Lease& lease) { return random_.Chance(0.3) || !ledger_.Adopt(lease).ok(); });
  }

  void Seal(const std::vector<Lease>& sealed, size_t members, uint64_t share) {
    const auto leases = Pointers(sealed);
    ASSERT_TRUE(ledger_.Check(leases).ok()) << ledger_.Check(leases).ToString();
    const LedgerState after = ledger_.After(leases);
    ledger_.Preview(after);
    // Work for the next step is given ahead, as if the seal were committed.
    for (size_t i = 0; i < members && random_.Chance(0.7); ++i) {
      Lease lease = ledger_.Lend({next_id_++}, share);
      if (lease.ranges.empty()) break;
      held_.push_back(std::move(lease));
    }
    if (random_.Chance(0.15)) {
      // The seal is dropped; its contributors live on and are sealed another time, or not.
      ledger_.DropPreview();
      for (const Lease& lease : sealed) held_.push_back(lease);
      std::erase_if(held_, [&](const Lease& lease) {
        const bool gone = lease.epoch != ledger_.committed().epoch;
        if (gone) ledger_.Return(lease);
        return gone;
      });
      return;
    }
    for (const Lease& lease : sealed) {
      for (const SampleRange& range : lease.ranges) {
        for (uint64_t p = range.begin; p < range.end; ++p) ASSERT_EQ(++counts_[p], 1) << "position " << p;
      }
    }
    const uint64_t counted = static_cast<uint64_t>(std::count(counts_.begin(), counts_.end(), 1));
    ASSERT_EQ(after.epoch, ledger_.committed().epoch + (counted == dataset_))
        << "an epoch ends when all of it is consumed";
    if (counted == dataset_) counts_.assign(dataset_, 0);
    ledger_.Commit(after);
    ASSERT_EQ(ledger_.consumed(), after.epoch * dataset_ + counted % dataset_);
  }

  Random random_;
  const uint64_t dataset_;
  const uint64_t epochs_;
  Ledger ledger_;
  std::vector<int> counts_;  // of the committed epoch
  std::vector<Lease> held_;
  uint64_t next_id_ = 1;
};

TEST(Ledger, Case17_MembersChangeWithinAnEpoch) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  for (const size_t members_of[] = {4, 3, 5, 1, 4}; int round : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) {
    Play play(random.Next(), 1000 + static_cast<uint64_t>(round) * 37, 3);
    int steps = 0;
    while (!play.done() && steps < 5000) {
      ASSERT_NO_FATAL_FAILURE(play.Step(members_of[(steps / 7) % 5], 64));
      ++steps;
    }
    EXPECT_TRUE(play.done());
    EXPECT_EQ(play.ledger().committed(), (LedgerState{3, {}}));
    EXPECT_EQ(play.ledger().Free(), 0u);
  }
}

TEST(Ledger, Case22_AnyDatasetSizeWithAnyBatchAndMembers) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  for (int round = 0; round < 200; ++round) {
    const uint64_t dataset = 1 + random.Below(80);  // often smaller than a batch
    Play play(random.Next(), dataset, 2);
    for (int steps = 0; !play.done(); ++steps) {
      ASSERT_LT(steps, 10000) << "dataset " << dataset;
      ASSERT_NO_FATAL_FAILURE(play.Step(1 + random.Below(6), 1 + random.Below(100)));
    }
    EXPECT_EQ(play.ledger().committed(), (LedgerState{2, {}}));
  }
}

TEST(Ledger, Case18_WhatWasNotFinishedIsServedAgainAndNothingElse) {
  Ledger ledger(100, 1);
  const Lease finished = ledger.Lend({1}, 20);
  const Lease unfinished = ledger.Lend({2}, 20);
  ledger.Commit(ledger.After({&finished}));
  ledger.Return(unfinished);
  EXPECT_EQ(ledger.Lend({3}, 30).ranges, (std::vector<SampleRange>{{20, 50}}));
  // A worker that gives back what was consumed meanwhile frees nothing.
  ledger.Return(finished);
  EXPECT_EQ(ledger.Lend({4}, 10).ranges, (std::vector<SampleRange>{{50, 60}}));
}

TEST(Ledger, Case19_AResumeInALaterEpochContinuesThatEpoch) {
  const LedgerState saved{3, {{0, 40}, {50, 60}}};
  Ledger ledger(100, 5);
  ledger.Restore(saved);
  EXPECT_EQ(ledger.consumed(), 350u);
  EXPECT_EQ(ledger.Free(), 50u);
  const Lease rest = ledger.Lend({1}, 1000);
  EXPECT_EQ(rest.epoch, 3u);
  EXPECT_EQ(rest.ranges, (std::vector<SampleRange>{{40, 50}, {60, 100}}));
  // With the permutation of that epoch: the samples of the lease are just those that were not consumed before.
  const Permutation order(1, rest.epoch, 100);
  std::vector<int> seen(100);
  for (const auto& ranges : {saved.consumed, rest.ranges}) {
    for (const SampleRange& range : ranges) {
      for (uint64_t p = range.begin; p < range.end; ++p) ++seen[order.At(p)];
    }
  }
  EXPECT_EQ(seen, std::vector<int>(100, 1));
  EXPECT_NE(order.At(40), Permutation(1, 0, 100).At(40));
  ledger.Commit(ledger.After({&rest}));
  EXPECT_EQ(ledger.committed(), (LedgerState{4, {}}));  // the cursor ends with its epoch
}

TEST(Ledger, Case20_ACrashAtTheEpochsEndNeitherReplaysNorSkips) {
  Ledger ledger(10, 3);
  const Lease all = ledger.Lend({1}, 10);
  const LedgerState after = ledger.After({&all});
  // Before the commit was recorded: the epoch's last samples are still to do.
  Ledger before(10, 3);
  before.Restore({0, {{0, 5}}});
  EXPECT_EQ(before.Lend({2}, 10), (Lease{{2}, 0, {{5, 10}}}));
  // After it: the next epoch begins at its first position.
  Ledger resumed(10, 3);
  resumed.Restore(after);
  EXPECT_EQ(resumed.committed(), (LedgerState{1, {}}));
  EXPECT_EQ(resumed.Lend({3}, 4), (Lease{{3}, 1, {{0, 4}}}));
}

TEST(Ledger, Case21_AResumeNeverReplaysAStep) {
  for (const uint64_t batch : {10u, 7u, 13u}) {  // of the same and of other sizes
    Ledger ledger(100, 1);
    const Lease step = ledger.Lend({1}, 10);
    ledger.Commit(ledger.After({&step}));
    Ledger resumed(100, 1);
    resumed.Restore(ledger.committed());
    EXPECT_EQ(resumed.Lend({2}, batch).ranges, (std::vector<SampleRange>{{10, 10 + batch}}));
  }
}

TEST(Ledger, AnEpochBeginsOnlyWhenTheOneBeforeIsConsumed) {
  Ledger ledger(10, 0);
  const Lease slow = ledger.Lend({1}, 4);
  const Lease fast = ledger.Lend({2}, 6);
  ledger.Commit(ledger.After({&fast}));
  EXPECT_TRUE(ledger.Lend({3}, 5).ranges.empty());  // the rest is lent, and the next epoch has not begun
  ledger.Commit(ledger.After({&slow}));
  EXPECT_EQ(ledger.Lend({4}, 5), (Lease{{4}, 1, {{0, 5}}}));
  EXPECT_FALSE(ledger.Complete());
}

TEST(Ledger, VoidLeasesAreRefused) {
  Ledger ledger(100, 4);
  ledger.Restore({2, {{0, 40}}});
  const auto refused = [&](std::vector<Lease> leases, const char* reason) {
    const Status status = ledger.Check(Pointers(leases));
    EXPECT_EQ(status.code(), Code::kLeaseVoid) << reason;
    EXPECT_NE(status.message().find(reason), std::string::npos) << status.message();
  };
  refused({LeaseOf(1, {{40, 50}})}, "another epoch");
  refused({LeaseOf(3, {{0, 10}})}, "another epoch");
  refused({LeaseOf(2, {{90, 101}})}, "beyond the dataset");
  refused({LeaseOf(2, {{39, 50}})}, "consumed already");
  refused({LeaseOf(2, {{40, 50}}), LeaseOf(2, {{49, 60}})}, "consumed already");  // of each other (trace T15)
  EXPECT_TRUE(ledger.Check(Pointers({LeaseOf(2, {{40, 50}}), LeaseOf(2, {{50, 100}})})).ok());
}

TEST(Ledger, ALeaseIsAdoptedOnceAndOnlyIfItIsFree) {
  Ledger ledger(100, 4);
  ledger.Restore({2, {{0, 40}}});
  EXPECT_EQ(ledger.Adopt(LeaseOf(1, {{50, 60}})).code(), Code::kLeaseVoid);
  EXPECT_EQ(ledger.Adopt(LeaseOf(2, {{30, 50}})).code(), Code::kLeaseVoid);
  EXPECT_EQ(ledger.Adopt(LeaseOf(2, {{90, 101}})).code(), Code::kLeaseVoid);
  EXPECT_TRUE(ledger.Adopt(LeaseOf(2, {{50, 60}})).ok());
  EXPECT_EQ(ledger.Adopt(LeaseOf(2, {{50, 60}})).code(), Code::kLeaseVoid);
  EXPECT_EQ(ledger.Lend({5}, 20).ranges, (std::vector<SampleRange>{{40, 50}, {60, 70}}));
}

TEST(Ledger, APreviewThatIsDroppedLeavesNoTrace) {
  Ledger ledger(20, 2);
  const Lease all = ledger.Lend({1}, 20);
  ledger.Preview(ledger.After({&all}));
  const Lease ahead = ledger.Lend({2}, 5);
  EXPECT_EQ(ahead.epoch, 1u);
  ledger.DropPreview();
  EXPECT_EQ(ledger.committed(), (LedgerState{0, {}}));
  EXPECT_EQ(ledger.Check({&ahead}).code(), Code::kLeaseVoid);
  ledger.Return(ahead);
  ledger.Return(all);
  EXPECT_EQ(ledger.Lend({3}, 20).ranges, (std::vector<SampleRange>{{0, 20}}));
}

TEST(Ledger, ALeaseHasABoundedNumberOfRanges) {
  LedgerState holes{0, {}};
  for (uint64_t i = 0; i < limits::kMaxLeaseRanges + 100; ++i) holes.consumed.push_back({2 * i, 2 * i + 1});
  Ledger ledger(4 * limits::kMaxLeaseRanges, 1);
  ledger.Restore(holes);
  EXPECT_EQ(ledger.Lend({1}, UINT64_MAX).ranges.size(), limits::kMaxLeaseRanges);
}

TEST(Ledger, WithoutADatasetLeasesAreEmptyAndNeverRunOut) {
  Ledger ledger(0, 1);
  const Lease lease = ledger.Lend({1}, 64);
  EXPECT_TRUE(lease.ranges.empty());
  EXPECT_TRUE(ledger.Check({&lease, &lease}).ok());
  EXPECT_EQ(ledger.After({&lease}), LedgerState{});
  EXPECT_EQ(ledger.Free(), UINT64_MAX);
  EXPECT_FALSE(ledger.Complete());
}

}  // namespace
}  // namespace everstep
