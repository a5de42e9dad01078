// Asynchronous modes: one contribution a step, by whoever is first; ssp holds back whoever is too far ahead.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/ps/coordinator_testing.h"
#include "tests/support/seed.h"

namespace everstep {
namespace {

using State = Coordinator::State;

class CoordinatorModes : public test::CoordinatorTest {
 protected:
  void StartAs(Mode mode, const std::vector<std::string>& names) {
    job_.mode = mode;
    ASSERT_NO_FATAL_FAILURE(Start(2, names));
    for (const std::string& name : names) {
      const Member* member = coordinator_->members().FindByName(name);
      workers_.push_back({member->id, member->peer, name});
      grants_.push_back(TakeGrant(workers_.back()));
    }
  }
  // The contribution that a worker made on the version it was given.
  Contribution Made(size_t w, Version base, Digest digest) const {
    return {workers_[w].id, base, digest, grants_[w]->lease};
  }
  void StageMade(const Contribution& c) {
    Stage(0, c);
    Stage(1, c);
  }

  std::vector<Worker> workers_;
  std::vector<std::optional<Grant>> grants_;
};

TEST_F(CoordinatorModes, AsyncCommitsEachContributionByItself) {
  job_.staleness_power = 0.5;
  StartAs(Mode::kAsync, {"a", "b", "c", "d"});
  const Digest base = coordinator_->digest();
  for (size_t w = 0; w < 4; ++w) {
    ASSERT_TRUE(grants_[w]);
    EXPECT_EQ(grants_[w]->lease.samples(), 10u);  // the batch is of one contribution
    StageMade(Made(w, {1}, base));
  }
  EXPECT_EQ(version(), 5u);
  const auto commits = Commits();
  ASSERT_EQ(commits.size(), 4u);
  for (size_t w = 0; w < 4; ++w) {
    ASSERT_EQ(commits[w].seal.contributors.size(), 1u);
    EXPECT_EQ(commits[w].seal.contributors[0].worker, workers_[w].id);
    EXPECT_DOUBLE_EQ(commits[w].seal.weights[0], std::pow(1.0 + static_cast<double>(w), -0.5));
  }
  EXPECT_EQ(coordinator_->ledger().consumed(), 40u);
}

TEST_F(CoordinatorModes, WhatIsTooOldIsRefusedAndItsSamplesServedAgain) {
  job_.staleness = 1;
  StartAs(Mode::kAsync, {"slow", "fast"});
  const Digest base = coordinator_->digest();
  const Contribution slow = Made(0, {1}, base);
  Stage(0, slow);  // half of it is here when it becomes too old
  for (int i = 0; i < 2; ++i) {
    StageMade(Made(1, coordinator_->version(), coordinator_->digest()));
    grants_[1] = TakeGrant(workers_[1]);
    ASSERT_TRUE(grants_[1]);
  }
  EXPECT_EQ(version(), 3u);
  const auto refused = mail_.TakeOne<PushRefused>(workers_[0].peer);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->code, Code::kStale);
  Stage(1, slow);
  EXPECT_EQ(version(), 3u);
  const auto again = TakeGrant(workers_[0]);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->lease.ranges, grants_[0]->lease.ranges);
  EXPECT_EQ(again->version, Version{3});
}

TEST_F(CoordinatorModes, SspHoldsBackWhoeverIsTooFarAhead) {
  job_.staleness = 2;
  StartAs(Mode::kSsp, {"slow", "fast"});
  int commits = 0;
  while (grants_[1]) {
    StageMade(Made(1, coordinator_->version(), coordinator_->digest()));
    grants_[1] = TakeGrant(workers_[1]);
    ASSERT_LE(++commits, 3);
  }
  EXPECT_EQ(commits, 3);  // at most `staleness` ahead, and the one it works on
  // The servers refuse the slow one's contribution to version 1 as too old. With other work it catches up.
  Deliver(workers_[0].peer, Ready{workers_[0].id, coordinator_->version(), grants_[0]->lease.id});
  grants_[0] = TakeGrant(workers_[0]);
  ASSERT_TRUE(grants_[0]);
  StageMade(Made(0, coordinator_->version(), coordinator_->digest()));
  EXPECT_TRUE(TakeGrant(workers_[1]));
}

TEST_F(CoordinatorModes, SspDoesNotWaitForWhoIsGone) {
  job_.staleness = 1;
  StartAs(Mode::kSsp, {"slow", "fast"});
  while (grants_[1]) {
    StageMade(Made(1, coordinator_->version(), coordinator_->digest()));
    grants_[1] = TakeGrant(workers_[1]);
  }
  Close(workers_[0].peer);
  EXPECT_TRUE(TakeGrant(workers_[1]));
}

TEST_F(CoordinatorModes, SspJoinersStartBesideTheSlowest) {
  job_.staleness = 2;
  StartAs(Mode::kSsp, {"a"});
  for (int i = 0; i < 5; ++i) {
    StageMade(Made(0, coordinator_->version(), coordinator_->digest()));
    grants_[0] = TakeGrant(workers_[0]);
    ASSERT_TRUE(grants_[0]);
  }
  workers_.push_back(Admit("late"));
  EXPECT_EQ(coordinator_->members().Find(workers_[1].id)->clock, 5u);
  StageMade(Made(0, coordinator_->version(), coordinator_->digest()));
  EXPECT_TRUE(TakeGrant(workers_[0]));  // the old one is not held back by it
}

TEST_F(CoordinatorModes, Case23_OnePoisonedContributionIsRefusedAndTheOthersGoOn) {
  StartAs(Mode::kAsync, {"a", "b"});
  const Digest base = coordinator_->digest();
  servers_[0].prepares = false;
  StageMade(Made(0, {1}, base));
  const auto seals = ServerGot<SealStep>(0);
  ASSERT_EQ(seals.size(), 1u);
  StageMade(Made(1, {1}, base));  // comes while the other one is sealed
  servers_[0].prepares = true;
  Deliver(servers_[0].peer, NonFinite{servers_[0].id, seals[0].seal.id, {workers_[0].id}});
  EXPECT_EQ(mail_.TakeOne<PushRefused>(workers_[0].peer)->code, Code::kNonFinite);
  EXPECT_EQ(version(), 2u);
  EXPECT_EQ(Commits().back().seal.contributors[0].worker, workers_[1].id);
  EXPECT_TRUE(TakeGrant(workers_[0]));
  EXPECT_TRUE(TakeGrant(workers_[1]));
}

TEST_F(CoordinatorModes, TheLastWorkersContributionCountsThoughItIsGone) {
  StartAs(Mode::kAsync, {"a"});
  servers_[0].prepares = false;
  const Contribution c = Made(0, {1}, coordinator_->digest());
  StageMade(c);
  Deliver(workers_[0].peer, Leave{workers_[0].id, "done"});
  servers_[0].prepares = true;
  Pass(job_.retransmit() * 2, {});
  EXPECT_EQ(version(), 2u);
}

TEST_F(CoordinatorModes, Case17_EverySampleOnceWithWorkersComingAndGoing) {
  job_.epochs = 2;
  job_.staleness = 3;
  dataset_ = 97;
  StartAs(Mode::kAsync, {"w0", "w1", "w2", "w3"});
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  // What each worker computes, and on which version.
  std::map<uint64_t, std::pair<Worker, Contribution>> busy;
  std::vector<std::vector<int>> counts(2, std::vector<int>(dataset_));
  const auto take = [&](const Worker& worker) {
    const auto grant = TakeGrant(worker);
    if (grant)
      busy[worker.id.value] = {worker, {worker.id, coordinator_->version(), coordinator_->digest(), grant->lease}};
  };
  for (size_t w = 0; w < 4; ++w) busy[workers_[w].id.value] = {workers_[w], Made(w, {1}, coordinator_->digest())};
  for (int i = 0; i < 5000 && state() != State::kFinished; ++i) {
    if (random.Chance(0.05)) {
      const size_t victim = random.Below(workers_.size());
      Close(workers_[victim].peer);
      busy.erase(workers_[victim].id.value);
      workers_[victim] = Admit("w" + std::to_string(next_id_));
    }
    for (const Worker& worker : workers_) take(worker);
    if (!busy.empty()) {
      auto it = std::next(busy.begin(), static_cast<long>(random.Below(busy.size())));
      const Contribution c = it->second.second;
      busy.erase(it);
      if (c.base.value + job_.staleness >= version()) StageMade(c);
    }
    Pass(job_.heartbeat(), workers_);
  }
  ASSERT_EQ(state(), State::kFinished);
  for (const CommitRecord& record : Commits()) {
    for (const Contribution& c : record.seal.contributors) {
      for (const SampleRange& range : c.lease.ranges) {
        for (uint64_t p = range.begin; p < range.end; ++p) ++counts[c.lease.epoch][p];
      }
    }
  }
  EXPECT_EQ(counts[0], std::vector<int>(dataset_, 1));
  EXPECT_EQ(counts[1], std::vector<int>(dataset_, 1));
}

}  // namespace
}  // namespace everstep
