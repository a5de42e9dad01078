// A replica's part of checkpoints: what it hands to the writer and when, and how it takes a version back.
#include <gmock/gmock.h>

#include "tests/ps/replica_testing.h"

namespace everstep {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class ReplicaCheckpoint : public test::ReplicaTest {
 protected:
  Snapshot Now() const { return {replica_.version(), replica_.digest(), "label-" + ToString(replica_.version())}; }
  SnapshotDone Written(const Snapshot& s) {
    SnapshotDone done;
    done.label = s.label;
    done.bytes = 123;
    return done;
  }
  void Finish(const Snapshot& s) {
    replica_.OnSnapshotWritten(now_, Written(s));
    mail_.Collect(replica_);
  }
  // A map and where the version comes from.
  everstep::Promise Restoring(uint64_t ballot, uint64_t version) const {
    Seal seal;
    seal.id = {{1}, {version - 1}};
    seal.digest = SealDigest(seal);
    return {MapOf(ballot, 2), Spec(), RestoreFrom{"saved", seal, 0.5}};
  }
};

TEST_F(ReplicaCheckpoint, HandsOverItsPrimaryChunksOnceAndAnswers) {
  Start();
  const Snapshot s = Now();
  Tell(1, s);
  Tell(1, s);  // said again: it is being written
  const auto works = replica_.TakeSnapshots();
  ASSERT_EQ(works.size(), 1u);
  EXPECT_EQ(works[0].snapshot, s);
  EXPECT_EQ(works[0].chunks, (std::vector<ChunkId>{{0}, {1}}));
  ASSERT_EQ(works[0].parameters.size(), 2u);
  EXPECT_EQ(First(works[0].parameters[1]), 1.0f);
  EXPECT_TRUE(mail_.empty());
  Finish(s);
  const auto done = mail_.TakeOne<SnapshotDone>(kCoordinator);
  ASSERT_TRUE(done);
  EXPECT_EQ(done->server, kSelf);
  EXPECT_EQ(done->bytes, 123u);
  Tell(1, s);  // the answer was lost
  EXPECT_EQ(mail_.TakeOne<SnapshotDone>(kCoordinator), done);
  EXPECT_THAT(replica_.TakeSnapshots(), IsEmpty());
}

TEST_F(ReplicaCheckpoint, AVersionThatIsGoneOrAnothersIsRefused) {
  Start();
  const Snapshot old = Now();
  CommitStep(1, {From(1)});
  Snapshot forged = Now();
  forged.digest.value ^= 1;
  for (const Snapshot& s : {old, forged}) {
    Tell(1, s);
    const auto done = mail_.TakeOne<SnapshotDone>(kCoordinator);
    ASSERT_TRUE(done);
    EXPECT_EQ(done->code, Code::kStale);
    EXPECT_THAT(done->message, HasSubstr("not held any more"));
  }
  EXPECT_THAT(replica_.TakeSnapshots(), IsEmpty());
}

TEST_F(ReplicaCheckpoint, OneAtATime) {
  Start();
  const Snapshot first = Now();
  Tell(1, first);
  CommitStep(1, {From(1)});
  Tell(1, Now());
  const auto done = mail_.TakeOne<SnapshotDone>(kCoordinator);
  ASSERT_TRUE(done);
  EXPECT_EQ(done->code, Code::kUnavailable);
  EXPECT_THAT(done->message, HasSubstr(first.label));
}

// The coordinator says it right after the commit; the update may still be running.
TEST_F(ReplicaCheckpoint, WaitsForTheUpdateThatMakesTheVersion) {
  Start();
  PushAll(From(1));
  const Seal seal = SealOf(1, {From(1)});
  Tell(1, SealStep{seal, false});
  RunSums();
  Tell(1, Commit{seal.id, seal.digest, 1});
  Tell(1, Snapshot{{2}, seal.digest, "two"});
  EXPECT_THAT(replica_.TakeSnapshots(), IsEmpty());
  RunApplies();
  const auto works = replica_.TakeSnapshots();
  ASSERT_EQ(works.size(), 1u);
  EXPECT_EQ(works[0].snapshot.version, Version{2});
}

TEST_F(ReplicaCheckpoint, PromisesOnlyWhenTheVersionIsBack) {
  Join();
  const auto promise = Restoring(5, 9);
  Tell(5, promise);
  Tell(5, promise);  // said again
  EXPECT_TRUE(mail_.empty());
  const auto works = replica_.TakeRestores();
  ASSERT_EQ(works.size(), 1u);
  EXPECT_EQ(works[0].chunks, (std::vector<ChunkId>{{0}, {1}}));
  replica_.OnRestored(now_, {works[0].from, Status::Ok(), {{{0}, Floats(3)}, {{1}, Floats(4)}}});
  mail_.Collect(replica_);
  const auto promised = mail_.TakeOne<Promised>(kCoordinator);
  ASSERT_TRUE(promised);
  EXPECT_EQ(promised->version, Version{9});
  EXPECT_EQ(promised->digest, promise.restore->seal.digest);
  EXPECT_EQ(promised->applied, promise.restore->seal);
  EXPECT_EQ(promised->applied_scale, 0.5);
  EXPECT_EQ(First(replica_.Parameters({9})->at({1})), 4.0f);
  // At the next ballot it has what it needs.
  Tell(6, Restoring(6, 9));
  EXPECT_TRUE(mail_.TakeOne<Promised>(kCoordinator));
  EXPECT_THAT(replica_.TakeRestores(), IsEmpty());
}

// A server that outlived the others goes back with them.
TEST_F(ReplicaCheckpoint, WhatItHeldOfALostLifeIsDropped) {
  Start();
  CommitStep(1, {From(1)});
  PushAll(From(2));
  mail_.Clear();
  const auto promise = Restoring(5, 2);
  Tell(5, promise);
  const auto works = replica_.TakeRestores();
  ASSERT_EQ(works.size(), 1u);
  replica_.OnRestored(now_, {works[0].from, Status::Ok(), {{{0}, Floats(3)}, {{1}, Floats(4)}}});
  mail_.Collect(replica_);
  const auto promised = mail_.TakeOne<Promised>(kCoordinator);
  ASSERT_TRUE(promised);
  EXPECT_EQ(promised->digest, promise.restore->seal.digest);
  EXPECT_THAT(promised->held, IsEmpty());
  EXPECT_EQ(replica_.stats().slots, 0u);
}

TEST_F(ReplicaCheckpoint, AFailureIsSaidToTheCoordinator) {
  Join();
  Tell(5, Restoring(5, 9));
  const auto works = replica_.TakeRestores();
  ASSERT_EQ(works.size(), 1u);
  replica_.OnRestored(now_, {works[0].from, {Code::kCorrupt, "a flipped bit"}, {}});
  mail_.Collect(replica_);
  const auto failed = mail_.TakeOne<SnapshotDone>(kCoordinator);
  ASSERT_TRUE(failed);
  EXPECT_EQ(failed->label, "saved");
  EXPECT_EQ(failed->code, Code::kCorrupt);
}

}  // namespace
}  // namespace everstep
