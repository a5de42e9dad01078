// Ballots: the record, the promises, and what becomes of a step that was in flight when the coordinator died (R1 to
// R5).
#include <gtest/gtest.h>

#include "tests/ps/coordinator_testing.h"
#include "tests/support/seed.h"

namespace everstep {
namespace {

using State = Coordinator::State;

class CoordinatorRecovery : public test::CoordinatorTest {
 protected:
  Worker Find(const std::string& name) {
    const Member* member = coordinator_->members().FindByName(name);
    return {member->id, member->peer, name};
  }
  void StartTwo() {
    ASSERT_NO_FATAL_FAILURE(Start(2, {"a", "b"}));
    a_ = Find("a");
    b_ = Find("b");
    grant_a_ = *TakeGrant(a_);
    grant_b_ = *TakeGrant(b_);
  }
  // The coordinator dies; another one reads the record. Servers find it at once, workers do not.
  void Restart() {
    Begin(record_);
    for (Server& server : servers_) {
      server.peer = {next_id_++};
      Hello hello = HelloOf(server, "tcp://ps");
      hello.name = "ps";
      DeliverAt(server.peer, {}, hello);
    }
  }
  // A worker that lived through it says what it holds.
  void ComeBack(Worker* worker, Version held, std::optional<Lease> lease) {
    worker->peer = {next_id_++};
    Hello hello = HelloOf(*worker, dataset_);
    hello.version = held;
    hello.lease = std::move(lease);
    DeliverAt(worker->peer, {}, hello);
    EXPECT_TRUE(mail_.TakeOne<Welcome>(worker->peer));
  }
  void Settle(const std::vector<Worker>& alive) { Pass(job_.lease() + job_.heartbeat(), alive); }

  Worker a_, b_;
  Grant grant_a_, grant_b_;
};

// ---- The record (rule R1) ----

TEST_F(CoordinatorRecovery, Case8_WhoLosesTheRecordStandsDown) {
  record_answers_ = false;
  Begin();
  AddServer();
  const Worker a = Admit("a");
  ASSERT_TRUE(proposal_);
  coordinator_->OnConfigured(now_, {Code::kStale, "the record is at ballot 5"});
  EXPECT_EQ(state(), State::kDeposed);
  EXPECT_TRUE(coordinator_->Done(now_));
  mail_.Clear();
  Deliver(servers_[0].peer, Promised{servers_[0].id, servers_[0].life, {}, {}, {}, 1, {}, {}, {}});
  AddWorker("b");
  Tick();
  EXPECT_TRUE(mail_.empty());
  EXPECT_TRUE(ServerGot<Promise>(0).empty());
  EXPECT_EQ(coordinator_->NextDeadline(), Time::Never());
}

TEST_F(CoordinatorRecovery, AnUnknownOutcomeIsAskedForAgain) {
  record_answers_ = false;
  Begin();
  AddServer();
  Admit("a");
  const auto first = proposal_;
  proposal_.reset();
  coordinator_->OnConfigured(now_, {Code::kUnavailable, "no answer from the disk"});
  Pump();
  ASSERT_TRUE(proposal_);
  EXPECT_EQ(proposal_->expected, first->expected);
  EXPECT_EQ(proposal_->next, first->next);  // the very same change
  coordinator_->OnConfigured(now_, Status::Ok());
  Pump();
  EXPECT_EQ(state(), State::kOpen);
}

// ---- The promises (rules R3, R4) ----

TEST_F(CoordinatorRecovery, NothingIsDecidedBeforeEveryReplicaHasPromised) {
  StartTwo();
  servers_[1].promises = false;
  Restart();
  const Server& s = servers_[1];
  EXPECT_EQ(state(), State::kRecovering);
  const Promised good{s.id, s.life, s.version, s.digest, s.applied, 1, {}, {}, {}};
  DeliverAt(s.peer, {1}, good);  // an answer to the ballot before
  Promised other_life = good;
  other_life.incarnation.value ^= 1;
  DeliverAt(s.peer, {2}, other_life);
  DeliverAt(servers_[0].peer, {2}, good);  // another one's answer
  EXPECT_EQ(state(), State::kRecovering);
  ServerGot<Promise>(0);
  ServerGot<Promise>(1);
  Pass(job_.retransmit() * 2, {});
  EXPECT_TRUE(ServerGot<Promise>(0).empty());
  EXPECT_FALSE(ServerGot<Promise>(1).empty());  // asked again (rule R18)
  DeliverAt(s.peer, {2}, good);
  EXPECT_EQ(state(), State::kOpen);
  EXPECT_EQ(version(), 1u);
}

TEST_F(CoordinatorRecovery, AServerThatNeverComesBackEndsTheWaiting) {
  StartTwo();
  Begin(record_);
  for (Server& server : servers_) server.peer = {};
  Pass(job_.lease() * 3, {});
  EXPECT_EQ(state(), State::kRecovering);  // everybody must first find the new coordinator
  Pass(job_.timeout, {});
  ASSERT_EQ(state(), State::kFailed);
  EXPECT_NE(coordinator_->failure()->message().find("is gone"), std::string::npos);
}

// Its host was frozen: the servers look elsewhere, and each finds the way back at its own time.
TEST_F(CoordinatorRecovery, WhoLostTheCoordinatorWhileItStoodStillHasTimeToFindIt) {
  job_.replication = 1;
  StartTwo();
  now_ = now_ + job_.lease() * 3;
  Close(servers_[0].peer);
  Close(servers_[1].peer);
  Tick();
  Reconnect(0);
  Pass(job_.lease() * 3, {a_, b_});
  EXPECT_NE(state(), State::kFailed);
  Reconnect(1);
  Pass(job_.lease() * 2, {a_, b_});
  EXPECT_EQ(state(), State::kOpen);
  // From then on the ordinary patience holds.
  Pass(job_.timeout, {a_, b_});
  Close(servers_[1].peer);
  Pass(job_.lease() * 2, {a_, b_});
  EXPECT_EQ(state(), State::kFailed);
}

// ---- The decision (rule R5) ----

// (a) One server applied the seal before the coordinator died, the other did not: it is a fact for everybody.
TEST_F(CoordinatorRecovery, Case9_WhatOneServerAppliedIsCommittedEverywhere) {
  StartTwo();
  servers_[1].applies = false;
  StageAll(a_, grant_a_);
  StageAll(b_, grant_b_);
  ASSERT_EQ(servers_[0].version, Version{2});
  ASSERT_EQ(servers_[1].version, Version{1});
  const Seal seal = *servers_[0].applied;
  servers_[1].applies = true;
  Restart();
  EXPECT_EQ(version(), 2u);
  EXPECT_EQ(coordinator_->digest(), seal.digest);
  EXPECT_EQ(servers_[1].version, Version{2});
  EXPECT_EQ(servers_[1].digest, seal.digest);
  EXPECT_EQ(coordinator_->ledger().committed(), seal.ledger_after);
  EXPECT_EQ(Commits().back().seal, seal);
  EXPECT_TRUE(ServerGot<Commit>(0).size() == 1);  // only from its first life
}

// (b) Everybody holds it prepared; it may have been decided. It is rolled forward under its own id (traces T10, T1).
TEST_F(CoordinatorRecovery, Case9_WhatEverybodyPreparedIsRolledForwardAsItWas) {
  job_.clip_norm = 1;
  StartTwo();
  servers_[0].squared_norm = servers_[1].squared_norm = 8;
  servers_[0].applies = servers_[1].applies = false;
  StageAll(a_, grant_a_);
  StageAll(b_, grant_b_);
  const Seal seal = *servers_[1].prepared;
  const double scale = Commits().back().scale;
  servers_[0].applies = servers_[1].applies = true;
  ServerGot<Commit>(0);
  Restart();
  EXPECT_EQ(coordinator_->ballot(), Ballot{2});
  const auto commits = ServerGot<Commit>(0);
  ASSERT_EQ(commits.size(), 1u);
  EXPECT_EQ(commits[0], (Commit{{{1}, {1}}, seal.digest, scale}));
  EXPECT_EQ(version(), 2u);
  EXPECT_EQ(servers_[0].digest, seal.digest);
  EXPECT_EQ(servers_[1].digest, seal.digest);
  EXPECT_EQ(coordinator_->ledger().committed(), seal.ledger_after);
}

// (c) One server had not prepared it: nobody can have seen it. The step is sealed anew from what is held.
TEST_F(CoordinatorRecovery, Case9_WhatSomebodyLacksIsSealedAnew) {
  StartTwo();
  servers_[1].prepares = false;
  const Contribution ca = StageAll(a_, grant_a_);
  const Contribution cb = StageAll(b_, grant_b_);
  const Seal dropped = *servers_[0].prepared;
  servers_[1].prepares = true;
  Restart();
  EXPECT_EQ(version(), 1u);
  EXPECT_TRUE(ServerGot<Commit>(0).empty());
  Settle({});
  ASSERT_EQ(version(), 2u);  // both contributions are held everywhere, though their workers are not back
  const Seal seal = *servers_[0].applied;
  EXPECT_EQ(seal.id, (SealId{{2}, {1}}));
  EXPECT_EQ(seal.contributors, (std::vector<Contribution>{ca, cb}));
  EXPECT_NE(seal.digest, dropped.digest);
}

// Different seals of one step, of different ballots, are not a common one (trace T2).
TEST_F(CoordinatorRecovery, RecordsOfDifferentSealsAreNotRolledForward) {
  StartTwo();
  servers_[1].prepares = false;
  StageAll(a_, grant_a_);
  StageAll(b_, grant_b_);
  Seal other = *servers_[0].prepared;
  other.id.ballot = {0};
  other.digest = SealDigest(other);
  servers_[1].prepared = other;
  servers_[1].prepares = true;
  Restart();
  EXPECT_EQ(version(), 1u);
  EXPECT_TRUE(ServerGot<Commit>(0).empty());
}

TEST_F(CoordinatorRecovery, BeforeTheInitialValuesThereIsNothingToRecover) {
  job_.servers = 2;
  Begin();
  AddServer();
  AddServer();
  Worker a = Admit("a");
  Restart();
  EXPECT_EQ(state(), State::kOpen);
  EXPECT_EQ(version(), 0u);
  a = Admit("a");
  const auto grant = TakeGrant(a);
  ASSERT_TRUE(grant);
  StageAll(a, *grant);
  EXPECT_EQ(version(), 1u);
}

// ---- Leases over a coordinator's death (rules R14, R15, trace T15) ----

TEST_F(CoordinatorRecovery, WorkersThatComeBackKeepTheirWork) {
  StartTwo();
  Restart();
  ComeBack(&a_, {1}, grant_a_.lease);
  ComeBack(&b_, {1}, grant_b_.lease);
  EXPECT_FALSE(TakeGrant(a_));  // not before everybody had time to come back
  Settle({a_, b_});
  EXPECT_FALSE(TakeGrant(a_));
  StageAll(a_, grant_a_);
  EXPECT_EQ(version(), 1u);
  StageAll(b_, grant_b_);
  EXPECT_EQ(version(), 2u);
  EXPECT_EQ(Commits().back().seal.contributors.size(), 2u);
  EXPECT_TRUE(TakeGrant(a_));
}

TEST_F(CoordinatorRecovery, Case18_WorkOfThoseWhoDoNotComeBackIsGivenOutAgain) {
  StartTwo();
  Restart();
  ComeBack(&b_, {1}, grant_b_.lease);
  Settle({b_});
  StageAll(b_, grant_b_);
  EXPECT_EQ(version(), 2u);
  EXPECT_EQ(TakeGrant(b_)->lease.ranges, (std::vector<SampleRange>{{0, 5}, {10, 15}}));
  // The one that comes late has lost its lease: what it made of it does not count, and it gets other work.
  ComeBack(&a_, {1}, grant_a_.lease);
  Contribution late{a_.id, {1}, servers_[0].applied->previous, grant_a_.lease};
  Stage(0, late);
  Stage(1, late);
  EXPECT_EQ(version(), 2u);
}

TEST_F(CoordinatorRecovery, OneLeaseIsClaimedOnce) {
  StartTwo();
  Restart();
  ComeBack(&a_, {1}, grant_a_.lease);
  ComeBack(&b_, {1}, grant_a_.lease);  // a mistake or a lie
  Settle({a_, b_});
  StageAll(a_, grant_a_);
  EXPECT_EQ(version(), 2u);
  EXPECT_EQ(Commits().back().seal.contributors.size(), 1u);
}

TEST_F(CoordinatorRecovery, LeasesOfDifferentLivesAreNotMixedUp) {
  StartTwo();
  const uint64_t number = grant_a_.number;
  Restart();
  const Worker c = Admit("c");
  Settle({c});
  const auto grant = TakeGrant(c);
  ASSERT_TRUE(grant);
  EXPECT_NE(grant->lease.id, grant_a_.lease.id);
  EXPECT_NE(grant->lease.id, grant_b_.lease.id);
  EXPECT_GT(grant->number, number);
  // Numbers grow over any number of lives, or workers would take new work for old.
  Restart();
  const Worker d = Admit("d");
  Settle({d});
  EXPECT_GT(TakeGrant(d)->number, grant->number);
}

TEST_F(CoordinatorRecovery, Case20_AfterTheLastStepTheNewCoordinatorFinishesTheJob) {
  job_.max_steps = 1;
  StartTwo();
  servers_[1].applies = false;
  StageAll(a_, grant_a_);
  StageAll(b_, grant_b_);
  ASSERT_NE(state(), State::kFinished);
  servers_[1].applies = true;
  Restart();
  ComeBack(&a_, {2}, {});
  Settle({a_});
  EXPECT_EQ(state(), State::kFinished);
  EXPECT_EQ(version(), 2u);
  // Said again with every heartbeat: the worker may have missed it.
  const std::vector<Finish> finishes = mail_.Take<Finish>(a_.peer);
  ASSERT_FALSE(finishes.empty());
  EXPECT_TRUE(finishes.back().evaluate);
}

TEST_F(CoordinatorRecovery, Case10_ManyDeathsInARow) {
  job_.epochs = 1;
  StartTwo();
  std::vector<Worker> workers = {a_, b_};
  std::vector<int> counts(dataset_);
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  for (int i = 0; i < 400 && state() != State::kFinished; ++i) {
    if (random.Chance(0.1)) {
      servers_[random.Below(2)].applies = random.Chance(0.5);
      servers_[random.Below(2)].prepares = random.Chance(0.5);
      for (const Worker& worker : workers) {
        if (const auto grant = TakeGrant(worker)) StageAll(worker, *grant);
      }
      for (Server& server : servers_) server.applies = server.prepares = true;
      Restart();
      workers.clear();
      for (int w = 0; w < 3; ++w) workers.push_back(Admit("w" + std::to_string(next_id_)));
      Settle(workers);
    }
    for (const Worker& worker : workers) {
      if (const auto grant = TakeGrant(worker); grant && grant->version == coordinator_->version())
        StageAll(worker, *grant);
    }
    Pass(job_.retransmit(), workers);
  }
  ASSERT_EQ(state(), State::kFinished);
  EXPECT_EQ(coordinator_->ledger().consumed(), dataset_);
  EXPECT_EQ(servers_[0].digest, servers_[1].digest);
}

}  // namespace
}  // namespace everstep
