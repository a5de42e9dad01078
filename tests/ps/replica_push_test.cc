// A replica's doors: joining, promising, and what is staged or refused.
#include <gtest/gtest.h>

#include "base/limits.h"
#include "tests/ps/replica_testing.h"

namespace everstep {
namespace {

using ReplicaJoin = test::ReplicaTest;
using ReplicaPush = test::ReplicaTest;
using ReplicaPromise = test::ReplicaTest;

// ---- Joining ----

TEST_F(ReplicaJoin, SaysHelloUntilItIsWelcome) {
  replica_.OnCoordinatorLink(now_, kCoordinator);
  mail_.Collect(replica_);
  const auto hello = mail_.TakeOne<Hello>(kCoordinator);
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->role, PeerRole::kServer);
  EXPECT_EQ(hello->name, "ps0");
  EXPECT_EQ(hello->address, "tcp://self");
  EXPECT_EQ(hello->incarnation, kLife);
  replica_.OnTick(now_);
  mail_.Collect(replica_);
  EXPECT_TRUE(mail_.empty());  // not before its time
  now_ = replica_.NextDeadline();
  replica_.OnTick(now_);
  mail_.Collect(replica_);
  EXPECT_TRUE(mail_.TakeOne<Hello>(kCoordinator));
  Tell(0, Welcome{job_, {3}, {}, {}});
  EXPECT_EQ(replica_.id(), ServerId{3});
  EXPECT_EQ(replica_.job(), kJob);
  now_ = replica_.NextDeadline();
  replica_.OnTick(now_);
  mail_.Collect(replica_);
  EXPECT_TRUE(mail_.TakeOne<Heartbeat>(kCoordinator));
}

TEST_F(ReplicaJoin, ARefusalEndsIt) {
  replica_.OnCoordinatorLink(now_, kCoordinator);
  Tell(0, Refused{Code::kResourceExhausted, "enough servers"});
  ASSERT_TRUE(replica_.failure());
  EXPECT_EQ(replica_.failure()->code(), Code::kResourceExhausted);
}

TEST_F(ReplicaJoin, TheEndOfTheJobReachesIt) {
  Start();
  Tell(1, Finish{{1}, false});
  EXPECT_TRUE(replica_.finished());
  Tell(1, JobFailed{Code::kNonFinite, "NaN"});
  EXPECT_EQ(replica_.failure()->code(), Code::kNonFinite);
}

TEST_F(ReplicaJoin, Case32_ANewCoordinatorOfAnotherJobIsNotObeyed) {
  Start();
  replica_.OnCoordinatorLink(now_, kCoordinator);
  replica_.OnMessage(now_, kCoordinator, {{78}, {}, Welcome{job_, kSelf, {}, {}}}, {});
  ASSERT_TRUE(replica_.failure());
  EXPECT_EQ(replica_.failure()->code(), Code::kWrongJob);
}

TEST_F(ReplicaJoin, OnlyTheCoordinatorGivesOrders) {
  Start();
  const Ballot before = replica_.promised();
  Deliver(kWorker, {9}, everstep::Promise{MapOf(9, 2), Spec()});
  Deliver(kWorker, {9}, JobFailed{Code::kFailed, "forged"});
  Deliver(kWorker, {9}, Finish{{1}, false});
  EXPECT_EQ(replica_.promised(), before);
  EXPECT_FALSE(replica_.failure());
  EXPECT_FALSE(replica_.finished());
  EXPECT_TRUE(mail_.empty());
}

// ---- Promising (rule R3) ----

TEST_F(ReplicaPromise, TellsWhatItHolds) {
  Start();
  const Contribution whole = From(1);
  const Contribution part = From(2);
  PushAll(whole);
  Push(part, 0);
  const Digest digest = replica_.digest();
  const auto answer = Promise(4);
  ASSERT_TRUE(answer);
  EXPECT_EQ(replica_.promised(), Ballot{4});
  EXPECT_EQ(answer->server, kSelf);
  EXPECT_EQ(answer->incarnation, kLife);
  EXPECT_EQ(answer->version, Version{1});
  EXPECT_EQ(answer->digest, digest);
  ASSERT_TRUE(answer->applied);
  EXPECT_EQ(answer->applied->digest, digest);
  EXPECT_FALSE(answer->prepared);
  EXPECT_EQ(answer->held, (std::vector<Contribution>{whole}));  // rule R7: announced anew, whole ones only
}

TEST_F(ReplicaPromise, TellsOfThePreparedSealAndItsNorms) {
  Start();
  PushAll(From(1), 2.0f);
  const Seal seal = SealOf(1, {From(1)});
  Tell(1, SealStep{seal, false});
  RunSums();
  const auto answer = Promise(2);
  ASSERT_TRUE(answer && answer->prepared);
  EXPECT_EQ(*answer->prepared, seal);
  EXPECT_EQ(answer->norms, (std::vector<ChunkNorm>{{{0}, 64}, {{1}, 64}}));
}

TEST_F(ReplicaPromise, TheSameRequestHasTheSameAnswer) {
  Start();
  PushAll(From(1));
  const auto first = Promise(4);
  const auto second = Promise(4);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(*first, *second);
}

TEST_F(ReplicaPromise, OlderBallotsAreRefusedForEver) {
  Start();
  ASSERT_TRUE(Promise(4));
  EXPECT_FALSE(Promise(3));
  const auto stale = mail_.TakeOne<StaleBallot>(kCoordinator);
  ASSERT_TRUE(stale);
  EXPECT_EQ(stale->promised, Ballot{4});
  EXPECT_EQ(stale->version, Version{1});
  EXPECT_EQ(replica_.promised(), Ballot{4});
}

TEST_F(ReplicaPromise, MapsThatDoNotFitAreIgnored) {
  Start();
  const auto ignored = [&](ShardMap map, uint64_t ballot = 5) {
    Tell(ballot, everstep::Promise{std::move(map), Spec()});
    EXPECT_TRUE(mail_.empty());
    EXPECT_EQ(replica_.promised(), Ballot{1});
  };
  ShardMap map = MapOf(5, 2);
  map.servers[0].incarnation = {499};  // an earlier life of this server (trace T8)
  ignored(map);
  map = MapOf(5, 2);
  map.servers[0].id = {7};
  ignored(map);
  map = MapOf(5, 2);
  map.spec_hash ^= 1;
  ignored(map);
  map = MapOf(5, 2);
  map.replicas.pop_back();
  ignored(map);
  ignored(MapOf(5, 2), 6);  // the map of one ballot under another
}

TEST_F(ReplicaPromise, Case39_AModelTooLargeForAnyServerIsIgnored) {
  Join();
  const ParameterSpec huge{{{"w", {int64_t{1} << 50}, DType::kFloat32, Role::kTrainable}}};
  ShardMap map = MapOf(1, 1);
  map.spec_hash = huge.hash();
  Tell(1, everstep::Promise{map, huge});
  EXPECT_TRUE(mail_.empty());
  EXPECT_EQ(replica_.layout(), nullptr);
}

// ---- Staging (rules R6, R7, R18) ----

TEST_F(ReplicaPush, AnnouncesAContributionWhenAllItsChunksAreHere) {
  Start();
  const Contribution c = From(1);
  Push(c, 0);
  EXPECT_TRUE(mail_.empty());
  Push(c, 1);
  const auto staged = mail_.TakeOne<Staged>(kCoordinator);
  ASSERT_TRUE(staged);
  EXPECT_EQ(staged->contribution, c);
  EXPECT_EQ(staged->server, kSelf);
  EXPECT_EQ(replica_.stats().slots, 1u);
  EXPECT_EQ(replica_.stats().slot_bytes, 2 * kChunkBytes);
}

TEST_F(ReplicaPush, AnnouncesAgainWithEachHeartbeat) {
  Start();
  const Contribution c = From(1);
  PushAll(c);
  Push(From(2), 0);
  mail_.Clear();
  now_ = replica_.NextDeadline();
  replica_.OnTick(now_);
  mail_.Collect(replica_);
  const auto staged = mail_.TakeOne<Staged>(kCoordinator);
  ASSERT_TRUE(staged);
  EXPECT_EQ(staged->contribution, c);
}

TEST_F(ReplicaPush, Case5_APushThatComesTwiceCountsOnce) {
  Start();
  const Contribution c = From(1);
  Push(c, 0, 2.0f);
  Push(c, 0, 9.0f);
  Push(c, 1, 2.0f);
  Push(c, 1, 9.0f);
  EXPECT_EQ(mail_.Take<Staged>(kCoordinator).size(), 1u);
  EXPECT_EQ(replica_.stats().duplicate_pushes, 2u);
  Tell(1, SealStep{SealOf(1, {c}), false});
  const std::vector<SumWork> works = replica_.TakeSums();
  ASSERT_EQ(works.size(), 1u);
  ASSERT_EQ(works[0].contributions[0].size(), 1u);
  EXPECT_EQ(First(works[0].contributions[0][0]), 2.0f);  // the first counts
  EXPECT_EQ(First(works[0].contributions[1][0]), 2.0f);
}

// Trace T16: parts of two lives of a worker never make one contribution.
TEST_F(ReplicaPush, Case2_TwoLivesOfAWorkerAreTwoContributions) {
  Start();
  Push(From(1, 50), 0);
  Push(From(2, 50), 1);
  Push(From(1, 51), 1);  // the same life with another lease
  Contribution other_base = From(1, 50);
  EXPECT_TRUE(mail_.Take<Staged>(kCoordinator).empty());
  EXPECT_EQ(replica_.stats().slots, 3u);
}

class ReplicaPushRefused : public test::ReplicaTest {
 protected:
  void ExpectRefused(const Contribution& c, uint32_t chunk, Buffer payload, Code code, JobUid job = kJob) {
    const uint64_t before = replica_.stats().refused_pushes;
    replica_.OnMessage(now_, kWorker, {job, {1}, everstep::Push{c, {chunk}}}, std::move(payload));
    mail_.Collect(replica_);
    const auto refused = mail_.TakeOne<PushRefused>(kWorker);
    ASSERT_TRUE(refused) << Name(code);
    EXPECT_EQ(refused->code, code) << refused->message;
    EXPECT_EQ(refused->contribution, c);
    EXPECT_EQ(refused->chunk, ChunkId{chunk});
    EXPECT_EQ(refused->version, replica_.version());
    EXPECT_FALSE(refused->message.empty());
    EXPECT_EQ(replica_.stats().refused_pushes, before + 1);
    EXPECT_TRUE(mail_.Take<Staged>(kCoordinator).empty());
  }
};

TEST_F(ReplicaPushRefused, BeforeThereIsAMap) {
  Join();
  ExpectRefused(From(1), 0, Floats(1), Code::kUnavailable);
}

TEST_F(ReplicaPushRefused, Case6_OfAStepThatIsOverOrHasNotCome) {
  Start();
  const Contribution old = From(1);
  CommitStep(1, {From(2)});
  ExpectRefused(old, 0, Floats(1), Code::kStale);
  Contribution future = From(1);
  future.base = {3};
  ExpectRefused(future, 0, Floats(1), Code::kFuture);
  EXPECT_EQ(replica_.stats().slots, 0u);
}

TEST_F(ReplicaPushRefused, OfAnotherHistory) {
  Start();
  Contribution c = From(1);
  c.base_digest.value ^= 1;
  ExpectRefused(c, 0, Floats(1), Code::kStale);
}

TEST_F(ReplicaPushRefused, OfAnotherJob) {
  Start();
  ExpectRefused(From(1), 0, Floats(1), Code::kWrongJob, {78});
}

TEST_F(ReplicaPushRefused, OfAChunkThatLivesElsewhereWithTheMap) {
  Start();
  ExpectRefused(From(1), 2, Floats(1), Code::kWrongShard);
  const auto wrong = mail_.TakeOne<WrongShard>(kWorker);
  ASSERT_TRUE(wrong);
  EXPECT_EQ(wrong->map, MapOf(1, 2));
}

TEST_F(ReplicaPushRefused, Case39_OfNoChunkOrAnotherSize) {
  Start();
  ExpectRefused(From(1), 3, Floats(1), Code::kCorrupt);
  ExpectRefused(From(1), UINT32_MAX, Floats(1), Code::kCorrupt);
  ExpectRefused(From(1), 0, Floats(1).Slice(0, 63), Code::kCorrupt);
  ExpectRefused(From(1), 0, {}, Code::kCorrupt);
  MutableBuffer large(65);
  ExpectRefused(From(1), 0, std::move(large).Freeze(), Code::kCorrupt);
}

TEST_F(ReplicaPushRefused, WithTwoLeasesUnderOneId) {
  Start();
  const Contribution c = From(1);
  Push(c, 0);
  Contribution other = c;
  other.lease.ranges = {{100, 120}};
  ExpectRefused(other, 1, Floats(1), Code::kCorrupt);
  Push(c, 1);
  EXPECT_EQ(mail_.TakeOne<Staged>(kCoordinator)->contribution, c);
}

TEST_F(ReplicaPushRefused, BeyondTheBoundOfSlots) {
  Start();
  for (uint64_t w = 1; w <= limits::kMaxSlots; ++w) Push(From(w), 0);
  ASSERT_EQ(replica_.stats().slots, limits::kMaxSlots);
  ExpectRefused(From(limits::kMaxSlots + 1), 0, Floats(1), Code::kResourceExhausted);
  Push(From(1), 1);  // what is here may still become whole
  EXPECT_TRUE(mail_.TakeOne<Staged>(kCoordinator));
}

TEST_F(ReplicaPushRefused, AsynchronousModesAcceptWhatIsNotTooOld) {
  job_.mode = Mode::kAsync;
  job_.staleness = 2;
  Start();
  const Contribution old = From(1);  // of version 1
  CommitStep(1, {From(2)});
  CommitStep(1, {From(3)});
  PushAll(old);
  EXPECT_EQ(mail_.TakeOne<Staged>(kCoordinator)->contribution, old);
  CommitStep(1, {From(4)});
  EXPECT_EQ(replica_.stats().slots, 0u);  // dropped when it became too old
  ExpectRefused(old, 0, Floats(1), Code::kStale);
  Contribution forged = From(5);
  forged.base = {2};  // a version that is known, with another's digest
  ExpectRefused(forged, 0, Floats(1), Code::kStale);
}

}  // namespace
}  // namespace everstep
