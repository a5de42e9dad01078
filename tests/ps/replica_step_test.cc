// A replica's part of the step: seal, sum, commit, publish (rules R3, R9 to R13, R17).
#include <gtest/gtest.h>

#include <cmath>

#include "tests/ps/replica_testing.h"

namespace everstep {
namespace {

class ReplicaStep : public test::ReplicaTest {
 protected:
  // Version 1 with the contributions of workers 1 and 2 staged.
  void Stage() {
    Start();
    PushAll(From(1), 2.0f);
    PushAll(From(2), 4.0f);
    mail_.Clear();
  }
  float Parameter(uint32_t chunk = 0) const { return First(replica_.Parameters(replica_.version())->at({chunk})); }
  void ExpectStale() {
    const auto stale = mail_.TakeOne<StaleBallot>(kCoordinator);
    ASSERT_TRUE(stale);
    EXPECT_EQ(stale->promised, replica_.promised());
    EXPECT_EQ(stale->version, replica_.version());
    EXPECT_TRUE(mail_.empty());
    EXPECT_TRUE(replica_.TakeSums().empty());
    EXPECT_TRUE(replica_.TakeApplies().empty());
  }
};

TEST_F(ReplicaStep, SumsInTheSealedOrderAndAppliesWhatWasSummed) {
  Stage();
  Seal seal = SealOf(1, {From(2), From(1)});
  seal.weights = {0.25, 0.75};
  seal.digest = SealDigest(seal);
  Tell(1, SealStep{seal, false});
  std::vector<SumWork> works = replica_.TakeSums();
  ASSERT_EQ(works.size(), 1u);
  EXPECT_EQ(works[0].chunks, (std::vector<ChunkId>{{0}, {1}}));
  EXPECT_EQ(works[0].weights, seal.weights);
  ASSERT_EQ(works[0].contributions[1].size(), 2u);
  EXPECT_EQ(First(works[0].contributions[1][0]), 4.0f);
  EXPECT_EQ(First(works[0].contributions[1][1]), 2.0f);
  replica_.OnSummed(now_, Sum(works[0], {}));
  mail_.Collect(replica_);
  const auto prepared = mail_.TakeOne<Prepared>(kCoordinator);
  ASSERT_TRUE(prepared);
  EXPECT_EQ(*prepared, (Prepared{kSelf, kLife, seal.id, seal.digest, {{{0}, 100}, {{1}, 100}}}));
  EXPECT_EQ(replica_.version(), Version{1});

  Tell(1, Commit{seal.id, seal.digest, 0.5});
  std::vector<ApplyWork> applies = replica_.TakeApplies();
  ASSERT_EQ(applies.size(), 1u);
  EXPECT_EQ(applies[0].learning_rate, 0.5);
  EXPECT_EQ(applies[0].scale, 0.5);
  EXPECT_EQ(applies[0].update, 1u);
  EXPECT_EQ(First(applies[0].parameters[0]), 1.0f);
  EXPECT_EQ(First(applies[0].sums[0]), 2.5f);
  replica_.OnApplied(now_, {applies[0].seal, {Floats(7), Floats(8)}, {}});
  mail_.Collect(replica_);
  EXPECT_EQ(mail_.TakeOne<Applied>(kCoordinator), (Applied{kSelf, kLife, seal.id, seal.digest, 0.5, {}}));
  EXPECT_EQ(replica_.version(), Version{2});
  EXPECT_EQ(replica_.digest(), seal.digest);
  EXPECT_EQ(Parameter(0), 7.0f);
  EXPECT_EQ(Parameter(1), 8.0f);
  EXPECT_EQ(replica_.stats().slots, 0u);
}

TEST_F(ReplicaStep, TheInitialisationIsTheParametersThemselves) {
  Start();
  EXPECT_EQ(Parameter(), 1.0f);
  EXPECT_EQ(replica_.Parameters({1})->size(), 2u);
}

TEST_F(ReplicaStep, RepeatedMessagesHaveTheSameAnswer) {
  Stage();
  const Seal seal = SealOf(1, {From(1)});
  Tell(1, SealStep{seal, false});
  Tell(1, SealStep{seal, false});
  EXPECT_TRUE(mail_.empty());
  EXPECT_EQ(RunSums(), 1u);
  const auto first = mail_.TakeOne<Prepared>(kCoordinator);
  Tell(1, SealStep{seal, false});
  EXPECT_EQ(RunSums(), 0u);
  EXPECT_EQ(mail_.TakeOne<Prepared>(kCoordinator), first);
  Tell(1, Commit{seal.id, seal.digest, 1});
  RunApplies();
  const auto applied = mail_.TakeOne<Applied>(kCoordinator);
  Tell(1, Commit{seal.id, seal.digest, 1});
  EXPECT_EQ(mail_.TakeOne<Applied>(kCoordinator), applied);
  Tell(1, SealStep{seal, false});  // a seal that arrives after its own commit
  EXPECT_EQ(mail_.TakeOne<Applied>(kCoordinator), applied);
  EXPECT_EQ(replica_.version(), Version{2});
  EXPECT_TRUE(replica_.TakeApplies().empty());
}

// ---- What a seal must be (rule R9) ----

TEST_F(ReplicaStep, SealsOfOlderBallotsAreRefused) {
  Stage();
  const Seal seal = SealOf(1, {From(1)});
  ASSERT_TRUE(Promise(3));
  Tell(1, SealStep{seal, false});
  ExpectStale();
}

TEST_F(ReplicaStep, ASealMustBeOfItsOwnBallotStepAndHistory) {
  Stage();
  Tell(2, SealStep{SealOf(1, {From(1)}), false});  // id and envelope disagree
  ExpectStale();
  Seal seal = SealOf(1, {From(1)});
  seal.id.step = {2};
  seal.digest = SealDigest(seal);
  Tell(1, SealStep{seal, false});
  ExpectStale();
  seal = SealOf(1, {From(1)});
  seal.previous.value ^= 1;
  seal.digest = SealDigest(seal);
  Tell(1, SealStep{seal, false});
  ExpectStale();
}

TEST_F(ReplicaStep, ASealOfWhatIsNotHereWaitsAndTouchesNothing) {
  Stage();
  Push(From(3), 0);  // a part only
  Tell(1, SealStep{SealOf(1, {From(1), From(3)}), false});
  EXPECT_TRUE(mail_.empty());
  EXPECT_TRUE(replica_.TakeSums().empty());
  Push(From(3), 1);
  mail_.Clear();
  Tell(1, SealStep{SealOf(1, {From(1), From(3)}), false});  // sent again (rule R18), now it can be summed
  EXPECT_EQ(RunSums(), 1u);
  EXPECT_TRUE(mail_.TakeOne<Prepared>(kCoordinator));
}

TEST_F(ReplicaStep, OneSealABallot) {
  Stage();
  const Seal seal = SealOf(1, {From(1)});
  Tell(1, SealStep{seal, false});
  RunSums();
  mail_.Clear();
  Tell(1, SealStep{SealOf(1, {From(2)}), false});
  EXPECT_EQ(RunSums(), 0u);
  EXPECT_EQ(mail_.TakeOne<Prepared>(kCoordinator)->digest, seal.digest);  // still the first
}

TEST_F(ReplicaStep, ASealOfAHigherBallotReplacesTheRecord) {
  Stage();
  const Seal old = SealOf(1, {From(1)});
  Tell(1, SealStep{old, false});
  RunSums();
  ASSERT_TRUE(Promise(2));
  const Seal seal = SealOf(2, {From(1), From(2)});
  Tell(2, SealStep{seal, false});
  EXPECT_EQ(RunSums(), 1u);
  EXPECT_EQ(mail_.Take<Prepared>(kCoordinator).back().digest, seal.digest);
  Tell(2, Commit{old.id, old.digest, 1});  // the dropped one can not be committed any more (trace T6)
  ExpectStale();
  Tell(2, Commit{seal.id, seal.digest, 1});
  RunApplies();
  EXPECT_EQ(replica_.digest(), seal.digest);
  EXPECT_EQ(Parameter(), 1.0f - 0.5f * 3.0f);
}

TEST_F(ReplicaStep, ASumThatWasOvertakenIsNoRecord) {
  Stage();
  Tell(1, SealStep{SealOf(1, {From(1)}), false});
  const std::vector<SumWork> slow = replica_.TakeSums();
  const auto promised = Promise(2);
  EXPECT_FALSE(promised->prepared);
  replica_.OnSummed(now_, Sum(slow[0], {}));
  mail_.Collect(replica_);
  EXPECT_TRUE(mail_.empty());
  EXPECT_FALSE(Promise(3)->prepared);
}

// ---- What a commit must be (rule R11) ----

TEST_F(ReplicaStep, ACommitOfAnotherDigestChangesNothing) {
  Stage();
  const Seal seal = SealOf(1, {From(1)});
  Tell(1, SealStep{seal, false});
  RunSums();
  mail_.Clear();
  Tell(1, Commit{seal.id, {seal.digest.value ^ 1}, 1});
  ExpectStale();
  Tell(1, Commit{{{1}, {2}}, {123}, 1});
  ExpectStale();
  EXPECT_EQ(replica_.version(), Version{1});
}

TEST_F(ReplicaStep, ACommitWithoutARecordChangesNothing) {
  Stage();
  const Seal seal = SealOf(1, {From(1)});
  Tell(1, Commit{seal.id, seal.digest, 1});
  ExpectStale();
}

TEST_F(ReplicaStep, ACommitOfAnOlderBallotIsRefused) {
  Stage();
  const Seal seal = SealOf(1, {From(1)});
  Tell(1, SealStep{seal, false});
  RunSums();
  ASSERT_TRUE(Promise(2));
  mail_.Clear();
  Tell(1, Commit{seal.id, seal.digest, 1});
  ExpectStale();
}

// Rule R5b: a seal that everybody holds is rolled forward under its original id, by a coordinator of a higher ballot.
TEST_F(ReplicaStep, Case9_ARolledForwardSealKeepsItsId) {
  Stage();
  const Seal seal = SealOf(1, {From(1), From(2)});
  Tell(1, SealStep{seal, false});
  RunSums();
  ASSERT_TRUE(Promise(5)->prepared);
  mail_.Clear();
  Tell(5, Commit{seal.id, seal.digest, 1});
  RunApplies();
  EXPECT_EQ(mail_.TakeOne<Applied>(kCoordinator)->seal, seal.id);
  EXPECT_EQ(replica_.digest(), seal.digest);
}

// The decision being carried out is final: what comes meanwhile is answered from the version it leads to.
TEST_F(ReplicaStep, OrdersAreDeferredWhileTheUpdateRuns) {
  Stage();
  const Seal seal = SealOf(1, {From(1)});
  Tell(1, SealStep{seal, false});
  RunSums();
  mail_.Clear();
  Tell(1, Commit{seal.id, seal.digest, 1});
  Tell(2, everstep::Promise{MapOf(2, 2), Spec()});
  Tell(1, Commit{seal.id, seal.digest, 1});
  EXPECT_TRUE(mail_.empty());
  EXPECT_EQ(RunApplies(), 1u);
  const auto promised = mail_.TakeOne<Promised>(kCoordinator);
  ASSERT_TRUE(promised);
  EXPECT_EQ(promised->version, Version{2});
  EXPECT_EQ(promised->applied->id, seal.id);
  EXPECT_FALSE(promised->prepared);
  EXPECT_EQ(mail_.Take<Applied>(kCoordinator).size(), 2u);  // both commits were answered
}

TEST_F(ReplicaStep, PushesAreStagedWhileTheUpdateRuns) {
  Stage();
  const Seal seal = SealOf(1, {From(1)});
  const Contribution late = From(3);
  Tell(1, SealStep{seal, false});
  RunSums();
  Tell(1, Commit{seal.id, seal.digest, 1});
  PushAll(late);
  RunApplies();
  EXPECT_EQ(replica_.stats().slots, 0u);  // its step is over
  mail_.Clear();
  Push(late, 0);
  EXPECT_EQ(mail_.TakeOne<PushRefused>(kWorker)->code, Code::kStale);
}

// ---- Poison (case 23) ----

TEST_F(ReplicaStep, Case23_NonFiniteContributionsAreNamedAndNothingIsPrepared) {
  Stage();
  const Seal seal = SealOf(1, {From(1), From(2)});
  Tell(1, SealStep{seal, false});
  RunSums({1});
  EXPECT_EQ(mail_.TakeOne<NonFinite>(kCoordinator), (NonFinite{kSelf, seal.id, {{2}}}));
  EXPECT_EQ(replica_.stats().nonfinite, 1u);
  Tell(1, SealStep{seal, false});
  EXPECT_TRUE(mail_.TakeOne<NonFinite>(kCoordinator));  // the same answer again
  EXPECT_EQ(RunSums(), 0u);
  Tell(1, Commit{seal.id, seal.digest, 1});
  ExpectStale();
  const auto promised = Promise(2);
  EXPECT_FALSE(promised->prepared);
  EXPECT_EQ(promised->held.size(), 2u);
  const Seal anew = SealOf(2, {From(1)});
  Tell(2, SealStep{anew, false});
  RunSums();
  Tell(2, Commit{anew.id, anew.digest, 1});
  RunApplies();
  EXPECT_EQ(Parameter(), 0.0f);
}

// ---- Special maps ----

TEST_F(ReplicaStep, ASingleServerCollapsesThePhases) {
  job_.clip_norm = 1;
  Start(1);
  PushAll(From(1), 2.0f);
  mail_.Clear();
  Seal seal = SealOf(1, {From(1)});
  seal.clip_norm = 1;
  seal.digest = SealDigest(seal);
  Tell(1, SealStep{seal, true});
  RunSums();
  EXPECT_TRUE(mail_.empty());  // no Prepared: it goes on at once
  EXPECT_EQ(RunApplies(), 1u);
  const auto applied = mail_.TakeOne<Applied>(kCoordinator);
  ASSERT_TRUE(applied);
  EXPECT_NEAR(applied->scale, 1 / std::sqrt(3 * 16 * 4.0), 1e-6);
  EXPECT_EQ(replica_.version(), Version{2});
  Tell(1, SealStep{seal, true});
  EXPECT_EQ(mail_.TakeOne<Applied>(kCoordinator), applied);
}

TEST_F(ReplicaStep, AServerWithoutChunksFollowsTheSteps) {
  Join();
  ShardMap map = MapOf(1, 2);
  map.replicas = {{1}, {1}, {1}};
  Tell(1, everstep::Promise{map, Spec()});
  EXPECT_TRUE(mail_.TakeOne<Promised>(kCoordinator));
  for (uint64_t step = 0; step < 3; ++step) {
    const Seal seal = SealOf(1, {From(1)});
    Tell(1, SealStep{seal, false});
    EXPECT_TRUE(mail_.TakeOne<Prepared>(kCoordinator)->norms.empty());
    Tell(1, Commit{seal.id, seal.digest, 1});
    EXPECT_TRUE(mail_.TakeOne<Applied>(kCoordinator));
    EXPECT_EQ(replica_.version(), Version{step + 1});
    EXPECT_EQ(replica_.digest(), seal.digest);
  }
  EXPECT_TRUE(replica_.TakeSums().empty());
  EXPECT_TRUE(replica_.TakeApplies().empty());
}

TEST_F(ReplicaStep, ALongRunKeepsTwoVersionsAndNoSlots) {
  Start();
  for (int i = 0; i < 50; ++i) {
    CommitStep(1, {From(1), From(2)}, 0.25f);
    ASSERT_EQ(replica_.stats().slots, 0u);
  }
  EXPECT_EQ(replica_.version(), Version{51});
  EXPECT_EQ(Parameter(), 1.0f - 50 * 0.125f);
  EXPECT_EQ(replica_.Parameters({49}), nullptr);
}

}  // namespace
}  // namespace everstep
