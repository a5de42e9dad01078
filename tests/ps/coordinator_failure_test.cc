// What the coordinator does when workers die, fall silent, send poison or are too few, and when servers go.
#include <gtest/gtest.h>

#include "tests/ps/coordinator_testing.h"
#include "tests/support/seed.h"

namespace everstep {
namespace {

using State = Coordinator::State;
using Names = std::vector<std::string>;

class CoordinatorFailure : public test::CoordinatorTest {
 protected:
  Worker Find(const std::string& name) {
    const Member* member = coordinator_->members().FindByName(name);
    return {member->id, member->peer, name};
  }
  std::vector<uint64_t> ContributorsOf(const CommitRecord& record) {
    std::vector<uint64_t> ids;
    for (const Contribution& c : record.seal.contributors) ids.push_back(c.worker.value);
    return ids;
  }
  // Step 1 with two workers who have their work.
  void StartTwo() {
    ASSERT_NO_FATAL_FAILURE(Start(2, {"a", "b"}));
    a_ = Find("a");
    b_ = Find("b");
    grant_a_ = *TakeGrant(a_);
    grant_b_ = *TakeGrant(b_);
  }
  // Contributes whatever the workers are given until `steps` more are committed.
  void Run(const std::vector<Worker>& workers, uint64_t steps) {
    const uint64_t end = version() + steps;
    for (int i = 0; i < 1000 && version() < end; ++i) {
      for (const Worker& worker : workers) {
        if (const auto grant = TakeGrant(worker); grant && grant->version == coordinator_->version())
          StageAll(worker, *grant);
      }
    }
    ASSERT_EQ(version(), end);
  }

  Worker a_, b_;
  Grant grant_a_, grant_b_;
};

// ---- Deaths ----

TEST_F(CoordinatorFailure, Case4_AWorkerThatDiesBeforeItIsWholeIsOut) {
  StartTwo();
  Stage(0, ContributionOf(a_, grant_a_));  // on one shard of two
  StageAll(b_, grant_b_);
  EXPECT_EQ(state(), State::kOpen);
  Close(a_.peer);
  EXPECT_EQ(version(), 2u);
  const auto commits = Commits();
  ASSERT_EQ(commits.size(), 1u);
  EXPECT_EQ(ContributorsOf(commits[0]), (std::vector<uint64_t>{b_.id.value}));
  EXPECT_EQ(commits[0].seal.weights, (std::vector<double>{1}));
  // Its samples come first in the next step.
  EXPECT_EQ(TakeGrant(b_)->lease.ranges, (std::vector<SampleRange>{{0, 5}, {10, 15}}));
  EXPECT_EQ(Events(), (Names{"worker-lost"}));
}

TEST_F(CoordinatorFailure, Case4_AWorkerThatDiesAfterItIsWholeIsIn) {
  StartTwo();
  const Contribution c = StageAll(a_, grant_a_);
  Close(a_.peer);
  EXPECT_EQ(state(), State::kOpen);  // the others are waited for
  StageAll(b_, grant_b_);
  const auto commits = Commits();
  ASSERT_EQ(commits.size(), 1u);
  EXPECT_EQ(ContributorsOf(commits[0]), (std::vector<uint64_t>{a_.id.value, b_.id.value}));
  EXPECT_EQ(commits[0].names, (Names{"", "b"}));
  EXPECT_EQ(coordinator_->ledger().committed().consumed, (std::vector<SampleRange>{{0, 10}}));
  EXPECT_EQ(c.lease.ranges, grant_a_.lease.ranges);
}

TEST_F(CoordinatorFailure, Case4_AWorkerThatDiesAfterTheSealIsIn) {
  StartTwo();
  servers_[1].prepares = false;
  StageAll(a_, grant_a_);
  StageAll(b_, grant_b_);
  ASSERT_EQ(state(), State::kSealed);
  const auto ahead = TakeGrant(a_);
  Close(a_.peer);
  servers_[1].prepares = true;
  Pass(job_.retransmit() * 2, {b_});
  EXPECT_EQ(ContributorsOf(Commits()[0]).size(), 2u);
  // What it was given ahead is free again, and nothing else.
  ASSERT_TRUE(ahead);
  StageAll(b_, *TakeGrant(b_));
  EXPECT_EQ(TakeGrant(b_)->lease.ranges.front(), ahead->lease.ranges.front());
}

TEST_F(CoordinatorFailure, EveryWorkerDiesAndTheStepIsStillThere) {
  StartTwo();
  StageAll(a_, grant_a_);
  Close(a_.peer);
  Close(b_.peer);
  EXPECT_EQ(version(), 2u);  // what was whole is committed; nobody else is waited for
  const Worker c = Admit("c");
  EXPECT_EQ(TakeGrant(c)->lease.ranges, (std::vector<SampleRange>{{5, 15}}));
}

TEST_F(CoordinatorFailure, Case18_ALeaveHandsBackWhatWasNotFinished) {
  StartTwo();
  StageAll(b_, grant_b_);
  Deliver(a_.peer, Leave{a_.id, "SIGTERM"});
  EXPECT_TRUE(mail_.TakeOne<LeaveAck>(a_.peer));
  EXPECT_EQ(version(), 2u);
  EXPECT_EQ(TakeGrant(b_)->lease.ranges.front(), (SampleRange{0, 5}));
  EXPECT_EQ(Events(), (Names{"worker-left"}));
  EXPECT_EQ(coordinator_->counters().losses, 0u);  // a leave never counts as failure
  EXPECT_EQ(coordinator_->counters().leaves, 1u);
  Deliver(a_.peer, Leave{a_.id, "SIGTERM"});  // said twice
  EXPECT_TRUE(mail_.TakeOne<LeaveAck>(a_.peer));
  EXPECT_EQ(coordinator_->counters().leaves, 1u);
}

TEST_F(CoordinatorFailure, Case3_ASilentWorkerIsFencedAndToldSoWhenItWakes) {
  StartTwo();
  StageAll(b_, grant_b_);
  Pass(job_.lease() / 2, {b_});
  EXPECT_EQ(coordinator_->members().size(), 2u);
  Pass(job_.lease(), {b_});
  EXPECT_EQ(coordinator_->members().size(), 1u);
  EXPECT_EQ(version(), 2u);
  EXPECT_TRUE(mail_.TakeOne<Fenced>(a_.peer));
  EXPECT_EQ(coordinator_->counters().losses, 1u);
  // It wakes: its late push changes nothing, its heartbeat is answered by what happened.
  const uint64_t before = version();
  StageAll(a_, grant_a_);
  Deliver(a_.peer, Heartbeat{a_.id, Phase::kComputing, 2, 1});
  const auto fenced = mail_.TakeOne<Fenced>(a_.peer);
  ASSERT_TRUE(fenced);
  EXPECT_EQ(fenced->worker, a_.id);
  EXPECT_EQ(version(), before);
  Deliver(a_.peer, Ready{a_.id, {1}, {}});
  EXPECT_TRUE(mail_.TakeOne<Fenced>(a_.peer));
}

TEST_F(CoordinatorFailure, Case16_ASlowWorkerIsWaitedFor) {
  job_.timeout = std::chrono::seconds(3);
  StartTwo();
  StageAll(b_, grant_b_);
  const Time begin = now_;
  while (now_ - begin < 3 * job_.progress_deadline()) {
    // It says that it moves, though seldom; the other one waits all the while and moves not at all.
    const uint64_t progress = static_cast<uint64_t>((now_ - begin) / (job_.progress_deadline() / 2));
    Deliver(a_.peer, Heartbeat{a_.id, Phase::kEvaluating, progress, UINT64_MAX});
    Pass(job_.heartbeat(), {b_});
    ASSERT_EQ(coordinator_->members().size(), 2u);
  }
  StageAll(a_, grant_a_);
  EXPECT_EQ(version(), 2u);
}

TEST_F(CoordinatorFailure, Case16_AWorkerThatLivesWithoutProgressIsFencedAtItsDeadline) {
  job_.timeout = std::chrono::seconds(3);
  StartTwo();
  StageAll(b_, grant_b_);
  Pass(job_.progress_deadline() - job_.lease(), {a_, b_});  // heartbeats without progress
  EXPECT_EQ(coordinator_->members().size(), 2u);
  Pass(job_.lease() * 2, {a_, b_});
  EXPECT_EQ(coordinator_->members().size(), 1u);
  EXPECT_FALSE(mail_.Take<Fenced>(a_.peer).empty());
  EXPECT_EQ(version(), 2u);
}

TEST_F(CoordinatorFailure, WorkThatAWorkerGivesUpIsGivenOutAgain) {
  ASSERT_NO_FATAL_FAILURE(Start(2, {"a"}));
  a_ = Find("a");
  const auto grant = TakeGrant(a_);
  Deliver(a_.peer, Ready{a_.id, {1}, grant->lease.id});
  const auto again = TakeGrant(a_);
  ASSERT_TRUE(again);
  EXPECT_GT(again->number, grant->number);
  EXPECT_NE(again->lease.id, grant->lease.id);
  EXPECT_EQ(again->lease.ranges, grant->lease.ranges);
  StageAll(a_, *grant);  // the lease that was given up does not come back
  EXPECT_EQ(version(), 1u);
  StageAll(a_, *again);
  EXPECT_EQ(version(), 2u);
}

// ---- Stragglers ----

TEST_F(CoordinatorFailure, AStragglersSamplesGoBackAfterTheGrace) {
  job_.quorum = 0.5;
  job_.grace = std::chrono::milliseconds(100);
  StartTwo();
  const Contribution late = ContributionOf(a_, grant_a_);
  StageAll(b_, grant_b_);
  EXPECT_EQ(state(), State::kOpen);
  EXPECT_LE(coordinator_->NextDeadline(), now_ + job_.grace);
  now_ = now_ + job_.grace;
  Tick();
  ASSERT_EQ(version(), 2u);
  EXPECT_EQ(coordinator_->members().size(), 2u);  // it is slow, not out
  const auto next_a = TakeGrant(a_);
  const auto next_b = TakeGrant(b_);
  ASSERT_TRUE(next_a && next_b);
  EXPECT_EQ(next_a->lease.ranges, (std::vector<SampleRange>{{0, 5}}));
  EXPECT_EQ(next_b->lease.ranges, (std::vector<SampleRange>{{10, 15}}));
  Stage(0, late);  // servers refuse it; should one speak of it all the same, it does not count
  Stage(1, late);
  EXPECT_EQ(version(), 2u);
}

// ---- Poison (case 23) ----

TEST_F(CoordinatorFailure, Case23_ThePoisonedContributionIsLeftOutByANewBallot) {
  StartTwo();
  servers_[0].prepares = false;
  StageAll(a_, grant_a_);
  StageAll(b_, grant_b_);
  const Seal dropped = ServerGot<SealStep>(0)[0].seal;
  Events();
  servers_[0].prepares = true;
  Deliver(servers_[0].peer, NonFinite{servers_[0].id, dropped.id, {a_.id}});
  const auto refused = mail_.TakeOne<PushRefused>(a_.peer);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->code, Code::kNonFinite);
  EXPECT_EQ(refused->contribution.worker, a_.id);
  EXPECT_FALSE(mail_.TakeOne<PushRefused>(b_.peer));
  EXPECT_EQ(coordinator_->ballot(), Ballot{2});
  EXPECT_EQ(version(), 2u);
  const auto commits = Commits();
  ASSERT_EQ(commits.size(), 1u);
  EXPECT_EQ(commits[0].seal.id, (SealId{{2}, {1}}));  // one seal a ballot (rule R8)
  EXPECT_EQ(ContributorsOf(commits[0]), (std::vector<uint64_t>{b_.id.value}));
  EXPECT_EQ(Events(), (Names{"contribution-refused", "ballot", "recovered"}));
  EXPECT_EQ(coordinator_->counters().refused_contributions, 1u);
  // Both go on, and the refused samples are served again.
  const auto next = TakeGrant(a_);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->version, Version{2});
  EXPECT_EQ(next->lease.ranges.front().begin, 0u);
  EXPECT_TRUE(TakeGrant(b_));
  // Late answers to the dropped seal change nothing.
  Deliver(servers_[0].peer, NonFinite{servers_[0].id, dropped.id, {b_.id}});
  EXPECT_EQ(coordinator_->counters().refused_contributions, 1u);
}

TEST_F(CoordinatorFailure, Case23_WhenAllArePoisonedTheJobStopsWithItsParametersIntact) {
  StartTwo();
  servers_[0].prepares = false;
  StageAll(a_, grant_a_);
  StageAll(b_, grant_b_);
  const Seal seal = ServerGot<SealStep>(0)[0].seal;
  Deliver(servers_[0].peer, NonFinite{servers_[0].id, seal.id, {a_.id, b_.id}});
  ASSERT_EQ(state(), State::kFailed);
  EXPECT_EQ(coordinator_->failure()->code(), Code::kNonFinite);
  EXPECT_NE(coordinator_->failure()->message().find("intact at version 1"), std::string::npos);
  EXPECT_EQ(mail_.TakeOne<JobFailed>(a_.peer)->code, Code::kNonFinite);
  EXPECT_TRUE(mail_.TakeOne<JobFailed>(b_.peer));
  EXPECT_EQ(ServerGot<JobFailed>(1).size(), 1u);
  EXPECT_EQ(version(), 1u);
  Deliver(a_.peer, Heartbeat{a_.id, Phase::kWaiting, 1, 1});
  EXPECT_TRUE(mail_.TakeOne<JobFailed>(a_.peer));
  Deliver(servers_[0].peer, Prepared{servers_[0].id, servers_[0].life, seal.id, seal.digest, {}});
  EXPECT_EQ(version(), 1u);
}

TEST_F(CoordinatorFailure, Case23_DataThatAlwaysGivesNanIsNamed) {
  StartTwo();
  for (int i = 1; i <= 3; ++i) {
    servers_[0].prepares = false;
    StageAll(a_, grant_a_);
    StageAll(b_, grant_b_);
    const auto seals = ServerGot<SealStep>(0);
    ASSERT_FALSE(seals.empty());
    const Worker& poisoned = grant_a_.lease.ranges.front().begin == 0 ? a_ : b_;  // whoever has position 0
    servers_[0].prepares = true;
    Deliver(servers_[0].peer, NonFinite{servers_[0].id, seals.back().seal.id, {poisoned.id}});
    if (i == 3) break;
    ASSERT_EQ(state(), State::kOpen) << i;
    grant_a_ = *TakeGrant(a_);
    grant_b_ = *TakeGrant(b_);
  }
  ASSERT_EQ(state(), State::kFailed);
  EXPECT_NE(coordinator_->failure()->message().find("position 0 of epoch 0"), std::string::npos)
      << coordinator_->failure()->message();
}

TEST_F(CoordinatorFailure, Case23_PoisonedInitialValuesEndTheJob) {
  job_.servers = 2;
  Begin();
  AddServer();
  AddServer();
  servers_[0].prepares = false;
  a_ = Admit("a");
  StageAll(a_, *TakeGrant(a_));
  Deliver(servers_[0].peer, NonFinite{servers_[0].id, {{1}, {0}}, {a_.id}});
  ASSERT_EQ(state(), State::kFailed);
  EXPECT_NE(coordinator_->failure()->message().find("initial parameters"), std::string::npos);
}

// ---- Too few ----

TEST_F(CoordinatorFailure, Case12_BelowTheMinimumTheJobIsPausedAndGoesOnAtTheSameStep) {
  job_.min_workers = 2;
  StartTwo();
  Stage(0, ContributionOf(a_, grant_a_));
  now_ = now_ + std::chrono::seconds(1);
  Close(b_.peer);
  EXPECT_TRUE(coordinator_->paused());
  Stage(1, ContributionOf(a_, grant_a_));  // whole, but alone
  EXPECT_EQ(version(), 1u);
  Pass(std::chrono::seconds(4), {a_});
  EXPECT_EQ(version(), 1u);
  EXPECT_EQ(Events(), (Names{"worker-lost", "paused"}));
  const Worker c = Admit("c");
  EXPECT_FALSE(coordinator_->paused());
  const auto grant = TakeGrant(c);
  ASSERT_TRUE(grant);
  EXPECT_EQ(grant->version, Version{1});  // the step goes on where it stopped
  StageAll(c, *grant);
  EXPECT_EQ(version(), 2u);
  EXPECT_EQ(Events(), (Names{"worker-joined", "worker-ready", "resumed"}));
  EXPECT_EQ(coordinator_->counters().paused, Duration(std::chrono::seconds(4)));
  Run({a_, c}, 3);
}

TEST_F(CoordinatorFailure, Case12_AJobThatBeginsPausedHasItsWholeBatch) {
  job_.min_workers = 2;
  job_.batch = 7;  // does not divide evenly
  ASSERT_NO_FATAL_FAILURE(Start(2, {"a"}));
  EXPECT_TRUE(coordinator_->paused());
  a_ = Find("a");
  EXPECT_FALSE(TakeGrant(a_));
  b_ = Admit("b");
  const auto for_a = TakeGrant(a_);
  const auto for_b = TakeGrant(b_);
  ASSERT_TRUE(for_a && for_b);
  EXPECT_EQ(for_a->lease.samples() + for_b->lease.samples(), 7u);
}

TEST_F(CoordinatorFailure, Case8_AMinorityCommitsNothing) {
  job_.min_workers = 2;
  ASSERT_NO_FATAL_FAILURE(Start(2, {"a", "b", "c"}));
  a_ = Find("a");
  const Worker b = Find("b");
  const Worker c = Find("c");
  grant_a_ = *TakeGrant(a_);
  StageAll(a_, grant_a_);
  Pass(job_.lease() * 2, {a_});  // the others are cut off
  EXPECT_EQ(coordinator_->members().size(), 1u);
  EXPECT_EQ(version(), 1u);
  EXPECT_TRUE(coordinator_->paused());
  EXPECT_TRUE(mail_.TakeOne<Fenced>(b.peer));
  EXPECT_TRUE(mail_.TakeOne<Fenced>(c.peer));
}

// ---- Servers ----

TEST_F(CoordinatorFailure, Case1_AServerThatIsGoneIsNamed) {
  StartTwo();
  Close(servers_[1].peer);
  Pass(job_.lease() / 2, {a_, b_});
  EXPECT_NE(state(), State::kFailed);
  Pass(job_.lease(), {a_, b_});
  ASSERT_EQ(state(), State::kFailed);
  const std::string message = coordinator_->failure()->message();
  EXPECT_NE(message.find("ps1 at tcp://ps1"), std::string::npos) << message;
  EXPECT_NE(message.find("step 1 was the last"), std::string::npos) << message;
  EXPECT_FALSE(mail_.Take<JobFailed>(a_.peer).empty());
}

TEST_F(CoordinatorFailure, AServerThatIsOnlySilentIsWaitedFor) {
  StartTwo();
  for (int i = 0; i < 40; ++i) {
    now_ = now_ + job_.lease() / 4;
    Deliver(a_.peer, Heartbeat{a_.id, Phase::kWaiting, 1, UINT64_MAX});
    Deliver(b_.peer, Heartbeat{b_.id, Phase::kWaiting, 1, UINT64_MAX});
    Tick();
  }
  EXPECT_EQ(state(), State::kOpen);
}

TEST_F(CoordinatorFailure, TheOperatorsWordEndsTheJob) {
  StartTwo();
  coordinator_->Fail(now_, {Code::kCancelled, "stopped by hand"});
  Pump();
  EXPECT_EQ(mail_.TakeOne<JobFailed>(a_.peer), (JobFailed{Code::kCancelled, "stopped by hand"}));
  EXPECT_EQ(ServerGot<JobFailed>(0).size(), 1u);
  coordinator_->Fail(now_, {Code::kInternal, "again"});
  EXPECT_EQ(coordinator_->failure()->code(), Code::kCancelled);  // the first reason stays
  EXPECT_FALSE(coordinator_->Done(now_));
  EXPECT_TRUE(coordinator_->Done(now_ + job_.linger()));
}

// ---- Leases ----

// Rule R15: what makes a sample count once is the check at seal time. A contribution whose lease became void meanwhile
// is refused, and what of it is still free is lent again, or the epoch would never end.
TEST_F(CoordinatorFailure, EveryEpochEndsWhateverWasRefused) {
  job_.epochs = 3;
  StartTwo();
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  for (int i = 0; i < 2000 && state() != State::kFinished; ++i) {
    for (const Worker& worker : {a_, b_}) {
      const auto taken = TakeGrant(worker);
      Grant& mine = worker.id == a_.id ? grant_a_ : grant_b_;
      if (taken) mine = *taken;
      if (mine.version != coordinator_->version()) continue;
      if (random.Chance(0.2)) {
        Deliver(worker.peer, Ready{worker.id, coordinator_->version(), mine.lease.id});
      } else {
        StageAll(worker, mine);
      }
    }
  }
  EXPECT_EQ(state(), State::kFinished);
  EXPECT_EQ(coordinator_->ledger().consumed(), 300u);
}

}  // namespace
}  // namespace everstep
