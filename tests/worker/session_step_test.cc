// A worker's part of the step: one version from all shards, a contribution that is kept until its step is over.
#include <gtest/gtest.h>

#include "tests/worker/session_testing.h"

namespace everstep {
namespace {

using SessionPull = test::SessionTest;
using SessionPush = test::SessionTest;

// ---- One version (promise P10, rule R12) ----

TEST_F(SessionPull, MixedVersionsArePulledAgain) {
  Begin();
  Welcome(3);
  mail_.Clear();
  SendChunk(0, 3);
  SendChunk(1, 4);  // a commit came between
  EXPECT_EQ(session_->held(), Version{0});
  EXPECT_EQ(mail_.TakeOne<Pull>(bulk_[0]), (Pull{session_->id(), {4}, true, {}, {}}));  // of whoever is behind
  EXPECT_TRUE(mail_.Take<Pull>(bulk_[1]).empty());
  SendChunk(0, 3);  // a late double of the old one
  EXPECT_EQ(session_->held(), Version{0});
  SendChunk(0, 4);
  EXPECT_EQ(session_->held(), Version{4});
  EXPECT_EQ(session_->stats().repulls, 1u);
  Grant(1, 4, LeaseOf(1));
  const auto work = session_->TakeStep(now_);
  ASSERT_TRUE(work);
  EXPECT_EQ(work->parameters.at({0}).text(), Bytes(4, 0).text());
  EXPECT_EQ(work->parameters.at({1}).text(), Bytes(4, 1).text());
}

TEST_F(SessionPull, WhenAVersionIsGoneEverybodyTakesTheNewerOne) {
  Begin();
  Welcome(3);
  SendChunk(0, 3);
  SendChunk(1, 4);
  mail_.Clear();
  FromServer(0, PullRefused{Code::kStale, {6}, "version 4 is not kept any more"});
  for (PeerId peer : bulk_) EXPECT_EQ(mail_.TakeOne<Pull>(peer), (Pull{session_->id(), {6}, false, {}, {}}));
  SendVersion(6);
  EXPECT_EQ(session_->held(), Version{6});
}

TEST_F(SessionPull, OneVersionWithTwoHistoriesIsNotTaken) {
  Begin();
  Welcome(3);
  SendChunk(0, 3);
  FromServer(1, ChunkData{{3}, {999}, {1}}, Bytes(3, 1));
  EXPECT_EQ(session_->held(), Version{0});
  EXPECT_FALSE(session_->failure());
}

TEST_F(SessionPull, AnOlderVersionThanTheOneWantedIsNotTaken) {
  JoinAt(3);
  Grant(1, 5, LeaseOf(1));
  SendVersion(4);
  EXPECT_FALSE(session_->TakeStep(now_));
  SendVersion(5);
  EXPECT_EQ(session_->TakeStep(now_)->version, Version{5});
}

TEST_F(SessionPull, Case39_AChunkThatCannotBeIsTheEnd) {
  JoinAt(3);
  FromServer(0, ChunkData{{4}, DigestOf(4), {0}}, Bytes(4, 0).Slice(0, 60));
  EXPECT_EQ(session_->failure()->code(), Code::kCorrupt);
  JoinAt(3);
  FromServer(0, ChunkData{{4}, DigestOf(4), {2}}, Bytes(4, 0));
  EXPECT_EQ(session_->failure()->code(), Code::kCorrupt);
}

TEST_F(SessionPull, WhatDoesNotComeIsAskedForAgain) {
  Begin();
  Welcome(3);
  SendChunk(0, 3);
  mail_.Clear();
  Pass(job_.retransmit() * 3 + std::chrono::milliseconds(500));
  EXPECT_TRUE(mail_.Take<Pull>(bulk_[0]).empty());
  const auto again = mail_.Take<Pull>(bulk_[1]);
  EXPECT_GE(again.size(), 2u);
  EXPECT_LE(again.size(), 3u);
  EXPECT_EQ(again[0].at_least, Version{3});
}

TEST_F(SessionPull, ALinkThatBreaksLosesNothing) {
  Begin();
  Welcome(3);
  SendChunk(0, 3);
  Close(bulk_[1]);
  mail_.Clear();
  Pass(std::chrono::milliseconds(500));
  EXPECT_EQ(mail_.TakeOne<Pull>(bulk_[1]), (Pull{session_->id(), {3}, false, {}, {}}));
  SendChunk(1, 3);
  EXPECT_EQ(session_->held(), Version{3});
}

TEST_F(SessionPull, RefusalsThatPassAreWaitedFor) {
  Begin();
  Welcome(3);
  mail_.Clear();
  FromServer(0, PullRefused{Code::kUnavailable, {}, "not ready"});
  FromServer(0, PullRefused{Code::kResourceExhausted, {}, "too many readers"});
  EXPECT_FALSE(session_->failure());
  Pass(job_.retransmit() + std::chrono::milliseconds(200));
  EXPECT_FALSE(mail_.Take<Pull>(bulk_[0]).empty());
  FromServer(0, PullRefused{Code::kWrongJob, {}, "another job"});
  EXPECT_EQ(session_->failure()->code(), Code::kWrongJob);
}

// ---- Contributing ----

TEST_F(SessionPush, ChunksGoToTheirPrimaries) {
  const auto work = WorkAt(2, 3);
  const Contribution expected{session_->id(), {2}, DigestOf(2), LeaseOf(3)};
  PushAll(work);
  EXPECT_EQ(mail_.TakeOne<Push>(bulk_[0]), (Push{expected, {0}}));
  EXPECT_FALSE(mail_.TakeOne<Push>(bulk_[1])) << "the last chunk makes the contribution count: it waits for the commit";
  EXPECT_TRUE(Commit(work).ok());
  EXPECT_EQ(mail_.TakeOne<Push>(bulk_[1]), (Push{expected, {1}}));
  EXPECT_EQ(mail_.TakeOne<Report>(control_), (Report{session_->id(), {2}, {3}, false, {{"loss", 0.5}}}));
  for (PeerId peer : bulk_) EXPECT_EQ(mail_.TakeOne<Pull>(peer), (Pull{session_->id(), {3}, false, {}, expected}));
  EXPECT_EQ(session_->stats().contributed, 1u);
}

TEST_F(SessionPush, AStepIsHandedOutOnce) {
  const auto work = WorkAt(2);
  EXPECT_FALSE(session_->TakeStep(now_));
  Grant(1, 2, LeaseOf(3));  // the same grant, repeated
  EXPECT_FALSE(session_->TakeStep(now_));
  PushAll(work);
  ASSERT_TRUE(Commit(work).ok());
  EXPECT_FALSE(session_->TakeStep(now_));
  SendVersion(3);
  EXPECT_FALSE(session_->TakeStep(now_));  // parameters, but no samples yet
  Grant(2, 3, LeaseOf(4));
  const auto next = session_->TakeStep(now_);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->version, Version{3});
  EXPECT_GT(next->serial, work.serial);
  EXPECT_TRUE(next->fresh);
}

// Rules R14 and R18: kept until the next version is here, though newer work has come.
TEST_F(SessionPush, AContributionIsKeptUntilItsStepIsOver) {
  const auto work = WorkAt(2, 3);
  PushAll(work);
  ASSERT_TRUE(Commit(work).ok());
  Grant(2, 3, LeaseOf(4));
  EXPECT_FALSE(session_->TakeStep(now_));
  mail_.Clear();
  const Contribution mine{session_->id(), {2}, DigestOf(2), LeaseOf(3)};
  FromServer(1, Missing{mine, {{1}}});
  EXPECT_EQ(mail_.TakeOne<Push>(bulk_[1]), (Push{mine, {1}}));
  EXPECT_TRUE(mail_.Take<Push>(bulk_[0]).empty());
  EXPECT_EQ(session_->stats().repushed_chunks, 1u);
  FromServer(1, Missing{{session_->id(), {2}, DigestOf(2), LeaseOf(9)}, {{1}}});  // of another one
  EXPECT_TRUE(mail_.Take<Push>(bulk_[1]).empty());
  SendVersion(3);
  FromServer(1, Missing{mine, {{1}}});
  EXPECT_TRUE(mail_.Take<Push>(bulk_[1]).empty());
  EXPECT_TRUE(session_->TakeStep(now_));
}

TEST_F(SessionPush, ItAsksWhetherAllOfItArrived) {
  const auto work = WorkAt(2, 3);
  PushAll(work);
  ASSERT_TRUE(Commit(work).ok());
  mail_.Clear();
  Close(bulk_[0]);
  Pass(std::chrono::seconds(1));
  const auto pull = mail_.Take<Pull>(bulk_[0]);
  ASSERT_FALSE(pull.empty());
  EXPECT_EQ(pull[0].pending, (Contribution{session_->id(), {2}, DigestOf(2), LeaseOf(3)}));
}

// A model of three chunks; the first server holds two of them.
class SessionPushThree : public test::SessionTest {
 protected:
  void Contribute() {
    options_.spec.tensors[0].shape = {48};
    Begin();
    ShardMap map = Map();
    map.replicas = {{0}, {0}, {1}};
    Coordinator(everstep::Welcome{job_, {}, {2}, map});
    for (uint32_t chunk = 0; chunk < 3; ++chunk) Send(chunk, 2);
    Grant(1, 2, LeaseOf(3));
    const auto work = session_->TakeStep(now_);
    ASSERT_TRUE(work);
    for (uint32_t chunk = 0; chunk < 3; ++chunk) session_->PushChunk(now_, work->serial, {chunk}, Bytes(0, chunk));
    mail_.Clear();
    ASSERT_TRUE(Commit(*work).ok());
  }
  void Send(uint32_t chunk, uint64_t version) {
    FromServer(chunk / 2, ChunkData{{version}, DigestOf(version), {chunk}}, Bytes(version, chunk));
  }
};

// While one shard has sent its part of the next version and the other has not, only the missing part is asked for.
TEST_F(SessionPushThree, WaitingDoesNotFetchAShardTwice) {
  Contribute();
  Send(0, 3);
  Send(1, 3);
  mail_.Clear();
  Pass(job_.retransmit() * 2 + std::chrono::milliseconds(300));
  const auto first = mail_.Take<Pull>(bulk_[0]);
  ASSERT_FALSE(first.empty());  // about the contribution
  for (const Pull& pull : first) EXPECT_EQ(pull.chunks, (std::vector<ChunkId>{{0}}));
  EXPECT_FALSE(mail_.Take<Pull>(bulk_[1]).empty());
}

TEST_F(SessionPushThree, AsynchronousWorkersAskAfterTheirContributionWithoutFetchingAllParameters) {
  job_.mode = Mode::kAsync;
  Contribute();
  const auto question = mail_.TakeOne<Pull>(bulk_[0]);
  ASSERT_TRUE(question);
  EXPECT_TRUE(question->pending);
  EXPECT_EQ(question->chunks, (std::vector<ChunkId>{{0}}));
  Grant(2, 5, LeaseOf(4));
  EXPECT_TRUE(mail_.TakeOne<Pull>(bulk_[0])->chunks.empty());  // all of them
}

// With all of it on the servers the step could go on, and count it, before or even without the user's commit.
TEST_F(SessionPush, AContributionIsNotWholeBeforeItsCommit) {
  const auto work = WorkAt(2, 3);
  PushAll(work);
  EXPECT_EQ(mail_.Take<Push>(bulk_[0]).size(), 1u);
  EXPECT_TRUE(mail_.Take<Push>(bulk_[1]).empty());
  ASSERT_TRUE(Commit(work).ok());
  EXPECT_TRUE(mail_.Take<Push>(bulk_[0]).empty());
  const auto last = mail_.TakeOne<Push>(bulk_[1]);
  ASSERT_TRUE(last);
  EXPECT_EQ(last->chunk, ChunkId{1});
}

TEST_F(SessionPush, OtherWorkForTheSameVersionVoidsTheOld) {
  const auto work = WorkAt(2, 3);
  PushAll(work);
  Grant(2, 2, LeaseOf(4));
  const Status status = Commit(work);
  EXPECT_EQ(status.code(), Code::kStale);
  EXPECT_EQ(session_->stats().dropped, 1u);
  const auto next = session_->TakeStep(now_);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->lease, LeaseOf(4));
  EXPECT_FALSE(next->fresh);                                 // the model has these parameters already
  session_->PushChunk(now_, work.serial, {0}, Bytes(0, 0));  // of the step before
  mail_.Clear();
  Collect();
  EXPECT_TRUE(mail_.Take<Push>(bulk_[0]).empty());
}

TEST_F(SessionPush, Case23_ARefusedContributionIsGivenUpAndItsSamplesHandedBack) {
  const auto work = WorkAt(2, 3);
  PushAll(work);
  ASSERT_TRUE(Commit(work).ok());
  mail_.Clear();
  const Contribution mine{session_->id(), {2}, DigestOf(2), LeaseOf(3)};
  Coordinator(PushRefused{mine, {}, Code::kNonFinite, {2}, "NaN"});
  EXPECT_EQ(mail_.TakeOne<Ready>(control_), (Ready{session_->id(), {2}, {3}}));
  EXPECT_EQ(session_->stats().nonfinite, 1u);
  EXPECT_EQ(session_->stats().dropped, 1u);
  Coordinator(PushRefused{mine, {}, Code::kNonFinite, {2}, "NaN"});  // from the other shard, too
  EXPECT_EQ(session_->stats().dropped, 1u);
  Grant(2, 2, LeaseOf(4));
  EXPECT_EQ(session_->TakeStep(now_)->lease, LeaseOf(4));
}

// The servers went back to a checkpoint and have made that version anew.
TEST_F(SessionPush, AVersionOfALostHistoryIsPulledAgain) {
  const auto work = WorkAt(2, 3);
  PushAll(work);
  ASSERT_TRUE(Commit(work).ok());
  const Contribution mine{session_->id(), {2}, DigestOf(2), LeaseOf(3)};
  FromServer(0, PushRefused{mine, {0}, Code::kStale, {2}, "based on another history of version 2"});
  EXPECT_EQ(session_->held(), Version{}) << "what it holds is of no use";
  EXPECT_FALSE(mail_.Take<Pull>(bulk_[0]).empty());
  Grant(2, 2, LeaseOf(4));
  EXPECT_FALSE(session_->TakeStep(now_));
  SendVersion(2);
  EXPECT_TRUE(session_->TakeStep(now_));
}

// ... and it had begun to pull a version that they have yet to make.
TEST_F(SessionPull, WhatWasBegunInALostHistoryIsForgotten) {
  JoinAt(2);
  Grant(1, 9, LeaseOf(3));
  SendChunk(0, 9);
  Coordinator(Fenced{session_->id(), "it is not a member"});
  mail_.Clear();
  Welcome(5);
  const auto pull = mail_.TakeOne<Pull>(bulk_[0]);
  ASSERT_TRUE(pull);
  EXPECT_EQ(pull->at_least, Version{5});
  SendVersion(5);
  EXPECT_EQ(session_->held(), Version{5});
}

TEST_F(SessionPush, RefusalsThatPassChangeNothing) {
  const auto work = WorkAt(2, 3);
  PushAll(work);
  const Contribution mine{session_->id(), {2}, DigestOf(2), LeaseOf(3)};
  for (const Code code : {Code::kUnavailable, Code::kFuture, Code::kResourceExhausted, Code::kWrongShard}) {
    FromServer(0, PushRefused{mine, {0}, code, {2}, "not now"});
  }
  FromServer(0, PushRefused{{session_->id(), {2}, DigestOf(2), LeaseOf(9)}, {0}, Code::kStale, {2}, "of another one"});
  EXPECT_TRUE(Commit(work).ok());
  EXPECT_EQ(session_->stats().dropped, 0u);
}

TEST_F(SessionPush, ARefusalAsCorruptIsTheEnd) {
  const auto work = WorkAt(2, 3);
  PushAll(work);
  FromServer(0, PushRefused{{session_->id(), {2}, DigestOf(2), LeaseOf(3)}, {0}, Code::kCorrupt, {2}, "wrong size"});
  ASSERT_TRUE(session_->failure());
  EXPECT_EQ(session_->failure()->code(), Code::kCorrupt);
  EXPECT_EQ(Commit(work).code(), Code::kCorrupt);
}

TEST_F(SessionPush, AStepThatIsGivenUpIsHandedBackUntilItIsHeard) {
  const auto work = WorkAt(2, 3);
  session_->AbandonStep(now_, work.serial);
  Collect();
  EXPECT_EQ(mail_.TakeOne<Ready>(control_), (Ready{session_->id(), {2}, {3}}));
  EXPECT_EQ(Commit(work).code(), Code::kStale);
  Pass(job_.heartbeat() * 2);  // the message may have been lost with a link
  EXPECT_FALSE(mail_.Take<Ready>(control_).empty());
  Grant(2, 2, LeaseOf(4));
  EXPECT_TRUE(session_->TakeStep(now_));
  mail_.Clear();
  Pass(job_.heartbeat() * 3);
  EXPECT_TRUE(mail_.Take<Ready>(control_).empty());
}

TEST_F(SessionPush, AsynchronousWorkersGoOnWithTheirNextGrant) {
  job_.mode = Mode::kAsync;
  const auto work = WorkAt(2, 3);
  PushAll(work);
  ASSERT_TRUE(Commit(work).ok());
  const Contribution mine{session_->id(), {2}, DigestOf(2), LeaseOf(3)};
  EXPECT_EQ(mail_.TakeOne<Pull>(bulk_[0])->pending, mine);
  mail_.Clear();
  Grant(2, 5, LeaseOf(4));
  EXPECT_EQ(mail_.TakeOne<Pull>(bulk_[0])->at_least, Version{5});
  SendVersion(6);
  const auto next = session_->TakeStep(now_);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->version, Version{6});
}

}  // namespace
}  // namespace everstep
