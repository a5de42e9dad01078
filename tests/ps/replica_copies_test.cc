// A replica with copies: whose sums it takes and when it is prepared; chunks that it gives to others and gets from
// them.
#include <gtest/gtest.h>

#include "tests/ps/replica_testing.h"

namespace everstep {
namespace {

constexpr Incarnation kOtherLife{501};
constexpr PeerId kOther{3};  // a link from the other server

class ReplicaCopies : public test::ReplicaTest {
 protected:
  // Two servers: chunks 0 and 1 are this one's, chunk 2 the other's; each backs the other up.
  static ShardMap BothMap(uint64_t ballot) {
    return {{ballot},
            Spec().hash(),
            kChunkBytes,
            {{kSelf, kLife, "tcp://self"}, {{1}, kOtherLife, "tcp://other"}},
            {{0, 1}, {0, 1}, {1, 0}}};
  }
  std::optional<Promised> PromiseBoth(uint64_t ballot) {
    Tell(ballot, everstep::Promise{BothMap(ballot), Spec()});
    Open();
    return mail_.TakeOne<Promised>(kCoordinator);
  }
  void Open() {
    for (const Replica::Opening& opening : replica_.TakeOpenings()) {
      EXPECT_EQ(opening.address, "tcp://other");
      other_ = opening.peer;
    }
  }
  void Sum(const Seal& seal, uint32_t chunk, float value, Incarnation life = kOtherLife, uint32_t server = 1) {
    Deliver(kOther, seal.id.ballot, ReplicateSum{{server}, life, seal.id, seal.digest, {chunk}, 4}, Floats(value));
  }
  bool IsPrepared() { return mail_.TakeOne<Prepared>(kCoordinator).has_value(); }
  // Version 1 on both: every float is 1.
  void StartBoth() {
    Join();
    ASSERT_TRUE(PromiseBoth(1));
    const Contribution init{{9}, {0}, {}, {{90}, 0, {}}};
    PushAll(init, 1.0f);
    const Seal seal = SealOf(1, {init});
    Tell(1, SealStep{seal, false});
    RunSums();
    Sum(seal, 2, 1.0f);
    ASSERT_TRUE(IsPrepared());
    Tell(1, Commit{seal.id, seal.digest, 1});
    ASSERT_EQ(replica_.version(), Version{1});
    mail_.Clear();
  }
  // The step's seal is here and the own sums are made.
  Seal SealHere(uint64_t ballot = 1) {
    const Contribution c = From(1);
    PushAll(c);
    const Seal seal = SealOf(ballot, {c});
    Tell(ballot, SealStep{seal, false});
    RunSums();
    return seal;
  }
  void CommitAndApply(const Seal& seal) {
    Tell(seal.id.ballot.value, Commit{seal.id, seal.digest, 1});
    RunApplies();
  }

  PeerId other_;
};

// ---- Rules R9 and R10 ----

TEST_F(ReplicaCopies, PreparedOnlyWhenTheSumsOfAllChunksAreHere) {
  StartBoth();
  const Seal seal = SealHere();
  EXPECT_FALSE(IsPrepared());
  // Its own sums went to the backup.
  const auto sums = mail_.Take<ReplicateSum>(other_);
  ASSERT_EQ(sums.size(), 2u);
  EXPECT_EQ(sums[0].seal, seal.id);
  EXPECT_EQ(sums[0].digest, seal.digest);
  Sum(seal, 2, 0.5f);
  EXPECT_TRUE(IsPrepared());
  CommitAndApply(seal);
  EXPECT_EQ(replica_.version(), Version{2});
  for (uint32_t chunk = 0; chunk < 3; ++chunk)
    EXPECT_EQ(First(replica_.Parameters({2})->at({chunk})), 0.75f) << "also what it backs up";
}

TEST_F(ReplicaCopies, ASumThatComesBeforeItsSealWaits) {
  StartBoth();
  const Contribution c = From(1);
  PushAll(c);
  const Seal seal = SealOf(1, {c});
  Sum(seal, 2, 0.5f);
  Tell(1, SealStep{seal, false});
  EXPECT_FALSE(IsPrepared());
  RunSums();
  EXPECT_TRUE(IsPrepared());
}

TEST_F(ReplicaCopies, ASumOfTheStepAfterTheOneBeingAppliedWaits) {
  StartBoth();
  const Seal first = SealHere();
  Sum(first, 2, 0.5f);
  Tell(1, Commit{first.id, first.digest, 1});
  Seal next = first;  // sealed while this server still applies
  next.id.step = {2};
  next.previous = first.digest;
  next.contributors = {{{1}, {2}, first.digest, {{11}, 0, {{20, 30}}}}};
  next.digest = SealDigest(next);
  Sum(next, 2, 0.25f);
  RunApplies();
  mail_.Clear();
  PushAll(next.contributors[0]);
  Tell(1, SealStep{next, false});
  RunSums();
  EXPECT_TRUE(IsPrepared());
}

TEST_F(ReplicaCopies, OnlyThePrimarysOwnLifeIsBelieved) {
  StartBoth();
  const Seal seal = SealHere();
  Sum(seal, 2, 0.5f, {999});          // trace T8: another life
  Sum(seal, 2, 0.5f, kOtherLife, 0);  // another server
  Sum(seal, 0, 0.5f);                 // not its chunk
  Seal other = seal;                  // trace T7: another seal of the step
  other.weights = {0.5};
  other.digest = SealDigest(other);
  Sum(other, 2, 0.5f);
  EXPECT_FALSE(IsPrepared());
  Sum(seal, 2, 0.5f);
  EXPECT_TRUE(IsPrepared());
}

// Trace T3b: a sum of an older ballot that arrives after the promise.
TEST_F(ReplicaCopies, TraceT3_ASumOfAnOlderBallotIsNotStored) {
  StartBoth();
  const Seal old = SealHere();
  const auto promised = PromiseBoth(2);
  ASSERT_TRUE(promised);
  EXPECT_FALSE(promised->prepared) << "it was not prepared before the promise";
  Sum(old, 2, 0.5f);
  EXPECT_FALSE(IsPrepared());
  const auto again = PromiseBoth(3);
  ASSERT_TRUE(again);
  EXPECT_FALSE(again->prepared);
}

TEST_F(ReplicaCopies, WhatIsPreparedIsToldWithTheNormsOfAllChunks) {
  StartBoth();
  const Seal seal = SealHere();
  Sum(seal, 2, 0.5f);
  const auto promised = PromiseBoth(2);
  ASSERT_TRUE(promised && promised->prepared);
  EXPECT_EQ(promised->prepared->id, seal.id);
  EXPECT_EQ(promised->norms.size(), 3u) << "the other's part too: its primary may be dead";
}

TEST_F(ReplicaCopies, LostSumsAreAskedForAndSentAgain) {
  StartBoth();
  const Seal seal = SealHere();
  mail_.Clear();
  now_ = now_ + job_.heartbeat() * 2;
  replica_.OnTick(now_);
  mail_.Collect(replica_);
  const auto want = mail_.TakeOne<WantSums>(other_);
  ASSERT_TRUE(want);
  EXPECT_EQ(want->chunks, (std::vector<ChunkId>{{2}}));
  // And the other way round.
  Deliver(kOther, {1}, WantSums{{1}, kOtherLife, seal.id, seal.digest, {{0}, {1}}});
  EXPECT_EQ(mail_.Take<ReplicateSum>(kOther).size(), 2u);
  Deliver(kOther, {1}, WantSums{{1}, {999}, seal.id, seal.digest, {{0}}});
  EXPECT_EQ(mail_.Take<ReplicateSum>(kOther).size(), 0u);
}

// Rule R20: the other dies, its chunk is this one's now, within the step.
TEST_F(ReplicaCopies, ABackupThatIsPromotedTakesPushesAndSumsThem) {
  StartBoth();
  const Contribution c = From(1);
  PushAll(c);
  mail_.Clear();
  Tell(2, everstep::Promise{MapOf(2, 1), Spec()});
  const auto promised = mail_.TakeOne<Promised>(kCoordinator);
  ASSERT_TRUE(promised);
  EXPECT_TRUE(promised->held.empty()) << "chunk 2 of it is not here";
  Push(c, 2);
  EXPECT_EQ(mail_.Take<Staged>(kCoordinator).size(), 1u);
  const Seal seal = SealOf(2, {c});
  Tell(2, SealStep{seal, false});
  RunSums();
  EXPECT_TRUE(IsPrepared());
  CommitAndApply(seal);
  EXPECT_EQ(First(replica_.Parameters({2})->at({2})), 0.75f);
}

// Trace T9, as far as a replica is concerned: what it prepared outlives drops, until another seal commits.
TEST_F(ReplicaCopies, TraceT9_APreparedSealMayStillBeRolledForward) {
  StartBoth();
  const Seal seal = SealHere();
  Sum(seal, 2, 0.5f);
  ASSERT_TRUE(PromiseBoth(2));
  Tell(3, everstep::Promise{MapOf(3, 1), Spec()});
  const auto promised = mail_.TakeOne<Promised>(kCoordinator);
  ASSERT_TRUE(promised && promised->prepared);
  Tell(3, Commit{seal.id, seal.digest, 1});
  RunApplies();
  EXPECT_EQ(replica_.version(), Version{2});
}

// ---- Moves (rule R16) ----

class ReplicaMoves : public ReplicaCopies {
 protected:
  ReceiveChunks OfferOf(Version version, Digest digest, std::vector<ChunkId> chunks) {
    return {{{1}, kOtherLife, "tcp://other"}, version, digest, std::move(chunks), kChunkBytes, Spec()};
  }
  void Give(Version version, Digest digest, uint32_t chunk, float value) {
    Deliver(kOther, {1}, ChunkState{version, digest, {chunk}, {"momentum"}}, [&] {
      const std::string text = std::string(Floats(value).text()) + std::string(Floats(7).text());
      return Buffer::Copy(text);
    }());
    for (ImportWork& work : replica_.TakeImports()) {
      replica_.OnImported(now_, {work.header, work.payload.Slice(0, kChunkBytes), Status::Ok()});
    }
    mail_.Collect(replica_);
  }
};

TEST_F(ReplicaMoves, ANewcomerIsFilledAndThenPromises) {
  Join();
  Seal made{{{1}, {4}}, {}, {}, 0, 0, {}, {3}, {}};
  made.digest = SealDigest(made);
  const Digest digest = made.digest;
  Tell(1, OfferOf({5}, digest, {{1}, {2}}));
  Open();
  const auto want = mail_.TakeOne<WantChunks>(other_);
  ASSERT_TRUE(want);
  EXPECT_EQ(want->ballot, Ballot{1});
  EXPECT_EQ(want->chunks.size(), 2u);
  Give({5}, digest, 1, 0.5f);
  Give({5}, digest, 2, 0.25f);
  EXPECT_FALSE(mail_.TakeOne<Copied>(kCoordinator)) << "it lacks the history";
  Deliver(kOther, {1}, History{{5}, digest, made, 0.5, {{{5}, digest}}, {}});
  const auto copied = mail_.TakeOne<Copied>(kCoordinator);
  ASSERT_TRUE(copied);
  EXPECT_EQ(copied->chunks.size(), 2u);
  EXPECT_EQ(replica_.version(), Version{0}) << "nothing is in force yet";
  ShardMap map = BothMap(2);
  map.replicas = {{1}, {1, 0}, {0, 1}};
  Tell(2, everstep::Promise{map, Spec()});
  const auto promised = mail_.TakeOne<Promised>(kCoordinator);
  ASSERT_TRUE(promised);
  EXPECT_EQ(promised->version, Version{5});
  EXPECT_EQ(promised->digest, digest);
  EXPECT_EQ(promised->applied, made);
  EXPECT_EQ(First(replica_.Parameters({5})->at({2})), 0.25f);
}

// What an earlier move offered may still be under way when the next one is complete.
TEST_F(ReplicaMoves, ALateOfferDoesNotDropCopies) {
  Join();
  Seal made{{{1}, {4}}, {}, {}, 0, 0, {}, {3}, {}};
  made.digest = SealDigest(made);
  Tell(3, OfferOf({5}, made.digest, {{1}}));
  Give({5}, made.digest, 1, 0.5f);
  Deliver(kOther, {3}, History{{5}, made.digest, made, 1, {{{5}, made.digest}}, {}});
  ASSERT_TRUE(mail_.TakeOne<Copied>(kCoordinator));
  Tell(2, OfferOf({5}, made.digest, {{2}}));
  ShardMap map = BothMap(4);
  map.replicas = {{1}, {0}, {1}};
  Tell(4, everstep::Promise{map, Spec()});
  EXPECT_EQ(mail_.TakeOne<Promised>(kCoordinator)->version, Version{5});
}

TEST_F(ReplicaMoves, ANewcomerWithoutItsChunksPromisesNothing) {
  Join();
  Tell(3, OfferOf({5}, {77}, {{1}}));
  ShardMap map = BothMap(4);
  map.replicas = {{1}, {0}, {1}};
  Tell(4, everstep::Promise{map, Spec()});
  EXPECT_FALSE(mail_.TakeOne<Promised>(kCoordinator));
}

// A promise asked for once more, by a message that was long under way, undoes nothing.
TEST_F(ReplicaMoves, ALatePromiseDoesNotDropCopies) {
  StartBoth();
  ShardMap map = BothMap(2);
  map.replicas[2] = {1};
  Tell(2, everstep::Promise{map, Spec()});
  ASSERT_TRUE(mail_.TakeOne<Promised>(kCoordinator));
  Tell(2, OfferOf({1}, replica_.digest(), {{2}}));
  Give({1}, replica_.digest(), 2, 0.25f);
  Deliver(kOther, {2}, History{{1}, replica_.digest(), {}, 1, {}, {}});
  ASSERT_TRUE(mail_.TakeOne<Copied>(kCoordinator));
  Tell(2, everstep::Promise{map, Spec()});
  ASSERT_TRUE(mail_.TakeOne<Promised>(kCoordinator)) << "the same answer";
  Tell(3, everstep::Promise{BothMap(3), Spec()});
  EXPECT_TRUE(mail_.TakeOne<Promised>(kCoordinator));
  EXPECT_EQ(First(replica_.Parameters({1})->at({2})), 0.25f);
}

TEST_F(ReplicaMoves, AMapWithChunksThatWereNeverGivenIsNotPromised) {
  StartBoth();
  ShardMap map = BothMap(2);
  Tell(2, everstep::Promise{map, Spec()});
  ASSERT_TRUE(mail_.TakeOne<Promised>(kCoordinator));
  // Chunk 2 goes away and comes back without its newest state.
  map = MapOf(3, 2);
  Tell(3, everstep::Promise{map, Spec()});
  ASSERT_TRUE(mail_.TakeOne<Promised>(kCoordinator));
  Tell(4, everstep::Promise{BothMap(4), Spec()});
  EXPECT_FALSE(mail_.TakeOne<Promised>(kCoordinator));
}

TEST_F(ReplicaMoves, AHolderGivesWhatItHoldsAtThatVersionAndBallot) {
  StartBoth();
  Deliver(kOther, {0}, WantChunks{{1}, replica_.version(), replica_.digest(), {{0}, {2}}});
  const auto history = mail_.TakeOne<History>(kOther);
  ASSERT_TRUE(history);
  EXPECT_EQ(history->version, Version{1});
  EXPECT_TRUE(history->applied);
  const auto exports = replica_.TakeExports();
  ASSERT_EQ(exports.size(), 2u);
  EXPECT_EQ(First(exports[0].parameters), 1.0f);
  replica_.OnExported(now_, {exports[0].to, exports[0].header, Floats(1)});
  mail_.Collect(replica_);
  EXPECT_TRUE(mail_.TakeOne<ChunkState>(kOther));
  for (const WantChunks& stale : {WantChunks{{2}, {1}, replica_.digest(), {{0}}}, WantChunks{{1}, {2}, {5}, {{0}}},
                                  WantChunks{{1}, {1}, {5}, {{0}}}}) {
    Deliver(kOther, {0}, stale);
    EXPECT_TRUE(replica_.TakeExports().empty());
  }
}

// Slots hold the chunks that a server is primary of, whatever it was before.
TEST_F(ReplicaMoves, PartsOfAContributionThatBelongElsewhereNowAreDropped) {
  StartBoth();
  const Contribution c = From(1);
  PushAll(c);
  ShardMap map = BothMap(2);
  map.replicas = {{1, 0}, {0, 1}, {1, 0}};
  Tell(2, everstep::Promise{map, Spec()});
  const auto promised = mail_.TakeOne<Promised>(kCoordinator);
  ASSERT_TRUE(promised);
  EXPECT_EQ(promised->held, (std::vector<Contribution>{c})) << "whole for what it is primary of now";
  EXPECT_EQ(replica_.stats().slot_bytes, kChunkBytes);
}

TEST_F(ReplicaMoves, AReaderThatWaitsForWhatMovedIsTold) {
  StartBoth();
  Deliver(kWorker, {1}, Pull{{1}, {2}, false, {}, {}});
  Tell(2, everstep::Promise{BothMap(2), Spec()});
  EXPECT_TRUE(mail_.Take<WrongShard>(kWorker).empty()) << "nothing has moved";
  ShardMap map = BothMap(3);
  map.replicas = {{1}, {0, 1}, {1, 0}};
  Tell(3, everstep::Promise{map, Spec()});
  EXPECT_EQ(mail_.Take<WrongShard>(kWorker).size(), 1u);
}

// It may have asked by the new map, and would get only what "all" was by the old one.
TEST_F(ReplicaMoves, AReaderOfAllIsToldWhenThatIsMoreNow) {
  StartBoth();
  Deliver(kWorker, {1}, Pull{{1}, {2}, false, {}, {}});
  Deliver({kWorker.value + 1}, {1}, Pull{{1}, {2}, false, {{1}}, {}});
  ShardMap map = BothMap(2);
  map.replicas = {{0, 1}, {0, 1}, {0, 1}};
  ASSERT_NE(map.replicas, BothMap(1).replicas);
  Tell(2, everstep::Promise{map, Spec()});
  EXPECT_EQ(mail_.Take<WrongShard>(kWorker).size(), 1u);
  EXPECT_TRUE(mail_.Take<WrongShard>({kWorker.value + 1}).empty()) << "it named what it wants, and that is here";
}

}  // namespace
}  // namespace everstep
