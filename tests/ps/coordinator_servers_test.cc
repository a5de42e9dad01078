// What the coordinator does about its servers when chunks have copies: losses, joins, drains, moves, taking office.
#include <gtest/gtest.h>

#include "tests/ps/coordinator_testing.h"

namespace everstep {
namespace {

using State = Coordinator::State;
using testing::Test;

class CoordinatorServers : public test::CoordinatorTest {
 protected:
  CoordinatorServers() { job_.replication = 2; }

  void StartWith(size_t servers) {
    ASSERT_NO_FATAL_FAILURE(Start(servers, {"a"}));
    a_ = {coordinator_->members().FindByName("a")->id, coordinator_->members().FindByName("a")->peer, "a"};
  }
  Status Drain(const std::string& name, PeerId from = {4242}) {
    Deliver(from, ControlRequest{"drain", name});
    const auto reply = mail_.TakeOne<ControlReply>(from);
    EXPECT_TRUE(reply);
    if (!reply || reply->code == Code::kOk) return Status::Ok();
    return {reply->code, reply->message};
  }
  void JoinServer() {
    AddServer();
    Deliver(servers_.back().peer, Heartbeat{});
  }
  // What servers were told to fetch; answered as if it was done.
  size_t AnswerMoves() {
    size_t moved = 0;
    for (Server& server : servers_) {
      for (size_t i = 0; i < server.got.size(); ++i) {
        const Envelope envelope = server.got[i];
        const auto* receive = std::get_if<ReceiveChunks>(&envelope.body);
        if (receive == nullptr) continue;
        server.got.erase(server.got.begin() + static_cast<long>(i--));
        moved += receive->chunks.size();
        server.version = receive->version;
        server.digest = receive->digest;
        server.applied = servers_[0].applied;
        Deliver(server.peer, Copied{server.id, server.life, envelope.ballot, receive->version, receive->chunks});
      }
    }
    return moved;
  }
  void RunStep() {
    const uint64_t before = version();
    const auto grant = TakeGrant(a_);
    ASSERT_TRUE(grant);
    const Contribution c = ContributionOf(a_, *grant);
    for (Server& server : servers_) server.held.push_back(c);
    for (size_t i = 0; i < servers_.size(); ++i) {
      if (coordinator_->map()->Find(servers_[i].id) != nullptr) Deliver(servers_[i].peer, Staged{servers_[i].id, c});
    }
    EXPECT_EQ(version(), before + 1);
  }
  uint64_t HeldBy(size_t server) { return coordinator_->map()->HeldChunks(servers_[server].id).size(); }

  Worker a_;
};

TEST_F(CoordinatorServers, TheFirstMapHasTwoCopiesOfEverything) {
  StartWith(2);
  for (const auto& holders : coordinator_->map()->replicas) EXPECT_EQ(holders.size(), 2u);
}

TEST_F(CoordinatorServers, Case1_ALostServersCopiesTakeOverWithinTheStep) {
  StartWith(2);
  const auto grant = TakeGrant(a_);
  const Ballot before = coordinator_->ballot();
  Stage(0, ContributionOf(a_, *grant));
  Close(servers_[1].peer);
  EXPECT_EQ(state(), State::kOpen);
  now_ = now_ + std::chrono::milliseconds(60);
  EXPECT_LE(coordinator_->NextDeadline(), now_);
  Tick();
  EXPECT_EQ(coordinator_->ballot().value, before.value + 1);
  EXPECT_EQ(coordinator_->map()->servers.size(), 1u);
  EXPECT_EQ(coordinator_->map()->PrimaryChunks(servers_[0].id).size(), 2u);
  EXPECT_EQ(record_->map, *coordinator_->map()) << "by the record alone (rule R1)";
  // The worker learns it; what is held was announced with the promise.
  EXPECT_FALSE(mail_.Take<MapUpdate>(a_.peer).empty());
  EXPECT_EQ(version(), 2u) << "whole on the one that is left: sealed, collapsed";
}

TEST_F(CoordinatorServers, AServerThatComesBackAtOnceIsNotReplaced) {
  StartWith(2);
  Close(servers_[1].peer);
  Reconnect(1);
  now_ = now_ + std::chrono::milliseconds(60);
  Tick();
  EXPECT_EQ(coordinator_->map()->servers.size(), 2u);
}

TEST_F(CoordinatorServers, ASilentServerIsReplacedAfterALeaseAndFencedWhenItWakes) {
  StartWith(2);
  const PeerId frozen = servers_[1].peer;
  servers_[1].peer = {};  // Pass speaks for connected ones only
  Pass(job_.lease() + job_.heartbeat(), {a_});
  EXPECT_EQ(coordinator_->map()->servers.size(), 1u);
  EXPECT_EQ(ClosingsOf(frozen), 1u);
  DeliverAt({777}, servers_[1].promised, HelloOf(servers_[1], "tcp://ps1"));
  const auto refused = mail_.TakeOne<Refused>({777});
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->code, Code::kFenced);
}

// A new coordinator has not heard of the other holder yet: whoever is here must not be given up for it.
TEST_F(CoordinatorServers, TheOnlyHolderThatIsHereIsWaitedFor) {
  StartWith(2);
  Begin(record_);
  for (Server& server : servers_) server.peer = {};
  Reconnect(1);
  Close(servers_[1].peer);
  now_ = now_ + std::chrono::milliseconds(60);
  Tick();
  EXPECT_EQ(coordinator_->map()->servers.size(), 2u);
  Reconnect(0);
  EXPECT_EQ(coordinator_->map()->servers.size(), 2u);
  now_ = now_ + std::chrono::milliseconds(60);
  Tick();
  EXPECT_EQ(coordinator_->map()->servers.size(), 1u);
  EXPECT_EQ(state(), State::kOpen);
}

TEST_F(CoordinatorServers, Case9_BothCopiesGoneEndTheJob) {
  StartWith(2);
  Close(servers_[0].peer);
  Close(servers_[1].peer);
  Pass(job_.lease() * 2, {a_});
  EXPECT_EQ(state(), State::kFailed);
}

// Rule R16: between two steps, when all have applied, and only then.
TEST_F(CoordinatorServers, ANewServerGetsItsShareBetweenTwoSteps) {
  StartWith(2);
  JoinServer();
  EXPECT_EQ(state(), State::kMoving);
  EXPECT_EQ(coordinator_->map()->servers.size(), 2u) << "it is in no map before it has its chunks";
  EXPECT_GT(AnswerMoves(), 0u);
  EXPECT_EQ(state(), State::kOpen);
  EXPECT_EQ(coordinator_->map()->servers.size(), 3u);
  EXPECT_GT(HeldBy(2), 0u);
  RunStep();
  EXPECT_EQ(version(), 2u);
}

TEST_F(CoordinatorServers, NothingMovesWhileACommitIsUnconfirmed) {
  StartWith(2);
  servers_[1].applies = false;
  RunStep();
  JoinServer();
  EXPECT_EQ(state(), State::kOpen);
  servers_[1].applies = true;
  Pass(job_.retransmit() * 2, {a_});
  EXPECT_EQ(state(), State::kMoving);
  EXPECT_GT(AnswerMoves(), 0u);
  EXPECT_EQ(state(), State::kOpen);
}

// A commit that a lost server never confirmed must not keep the others from moving chunks, or from ending.
TEST_F(CoordinatorServers, ALostServersConfirmationIsNotWaitedFor) {
  StartWith(3);
  servers_[2].applies = false;
  RunStep();
  Close(servers_[2].peer);
  now_ = now_ + std::chrono::milliseconds(60);
  Tick();
  for (int i = 0; i < 5 && AnswerMoves() > 0; ++i) Pass(job_.heartbeat(), {a_});
  for (const auto& holders : coordinator_->map()->replicas) EXPECT_EQ(holders.size(), 2u);
}

TEST_F(CoordinatorServers, TheCopyIsMadeAgainWhenThereIsAServerForIt) {
  StartWith(3);
  Close(servers_[2].peer);
  now_ = now_ + std::chrono::milliseconds(60);
  Tick();
  for (int i = 0; i < 5 && AnswerMoves() > 0; ++i) Pass(job_.heartbeat(), {a_});
  EXPECT_EQ(coordinator_->map()->servers.size(), 2u);
  for (const auto& holders : coordinator_->map()->replicas) EXPECT_EQ(holders.size(), 2u);
}

// The record is being changed to a map that it is in: from then on it is needed.
TEST_F(CoordinatorServers, AReceiverThatDiesWhileItsMapIsWrittenIsLostLikeOthers) {
  StartWith(2);
  JoinServer();
  ASSERT_EQ(state(), State::kMoving);
  record_answers_ = false;
  EXPECT_GT(AnswerMoves(), 0u);
  ASSERT_EQ(state(), State::kElecting);
  Close(servers_[2].peer);
  record_answers_ = true;
  record_ = proposal_->next;
  coordinator_->OnConfigured(now_, Status::Ok());
  Pump();
  EXPECT_EQ(state(), State::kRecovering) << "without its promise nothing is decided (rule R4)";
  now_ = now_ + std::chrono::milliseconds(60);
  Tick();
  EXPECT_EQ(state(), State::kMoving) << "the copies that it had are made again";
  EXPECT_EQ(coordinator_->map()->servers.size(), 2u);
}

TEST_F(CoordinatorServers, AReceiverThatDiesHoldsNobodyUp) {
  StartWith(2);
  JoinServer();
  ASSERT_EQ(state(), State::kMoving);
  Close(servers_[2].peer);
  EXPECT_EQ(state(), State::kOpen);
  servers_.pop_back();
  RunStep();
}

// Its copies are made, those of another receiver are not: it must not come into the map.
TEST_F(CoordinatorServers, AReceiverThatDiesWhileOthersAreWaitedForIsInNoMap) {
  StartWith(2);
  const auto grant = TakeGrant(a_);
  for (Server& server : servers_) server.prepares = false;
  StageAll(a_, *grant);
  JoinServer();
  JoinServer();
  ASSERT_EQ(state(), State::kSealed);
  for (Server& server : servers_) server.prepares = true;
  Pass(job_.retransmit() * 2, {a_});
  ASSERT_EQ(state(), State::kMoving);
  ASSERT_FALSE(ServerGot<ReceiveChunks>(3).empty());
  const std::vector<ReceiveChunks> receive = ServerGot<ReceiveChunks>(2);
  ASSERT_FALSE(receive.empty());
  const Server dead = servers_[2];
  Deliver(dead.peer, Copied{dead.id, dead.life, coordinator_->ballot(), receive[0].version, receive[0].chunks});
  ASSERT_EQ(state(), State::kMoving) << "the other one's copies are not made";
  Close(dead.peer);
  servers_.erase(servers_.begin() + 2);
  EXPECT_EQ(state(), State::kOpen);
  Pass(job_.lease() * 2, {a_});
  AnswerMoves();
  EXPECT_EQ(state(), State::kOpen);
  EXPECT_EQ(coordinator_->map()->Find(dead.id), nullptr);
  EXPECT_NE(coordinator_->map()->Find(servers_[2].id), nullptr);
}

TEST_F(CoordinatorServers, AReceiverThatNeverAnswersHoldsThemUpForTheTimeoutAtMost) {
  StartWith(2);
  JoinServer();
  ASSERT_EQ(state(), State::kMoving);
  Pass(job_.timeout + job_.heartbeat() * 2, {a_});
  EXPECT_EQ(state(), State::kOpen);
}

TEST_F(CoordinatorServers, ADrainedServerIsEmptiedAndMayGo) {
  StartWith(3);
  EXPECT_TRUE(Drain("ps2").ok());
  EXPECT_TRUE(Drain("ps2").ok()) << "asked again";
  for (int i = 0; i < 5; ++i) {
    AnswerMoves();
    Pass(job_.heartbeat(), {a_});
  }
  EXPECT_EQ(coordinator_->map()->Find(servers_[2].id), nullptr);
  EXPECT_EQ(ServerGot<Drained>(2).size(), 1u);
  Close(servers_[2].peer);
  servers_.pop_back();
  EXPECT_EQ(coordinator_->Servers().size(), 2u);
  RunStep();
}

// A worker that learns the new map from the first server that promised pushes at once. What is whole there by then
// counts when the last one has promised, without waiting for the announcement to be repeated; at this ballot only (rule
// R7).
TEST_F(CoordinatorServers, WhatIsAnnouncedBeforeTheBallotIsOpenCounts) {
  for (const bool old : {false, true}) {
    servers_.clear();
    ASSERT_NO_FATAL_FAILURE(StartWith(2));
    const auto grant = TakeGrant(a_);
    ASSERT_TRUE(grant);
    const Contribution c = ContributionOf(a_, *grant);
    const uint64_t before = version();
    JoinServer();
    for (Server& server : servers_) server.promises = false;
    AnswerMoves();
    ASSERT_EQ(state(), State::kRecovering);
    const Ballot ballot = coordinator_->ballot();
    const auto promise = [&](Server& s) {
      s.promises = true;
      s.promised = ballot;
      DeliverAt(s.peer, ballot, Promised{s.id, s.life, s.version, s.digest, s.applied, 1, {}, {}, {}});
    };
    const auto announce = [&](Server& s, Ballot at) { DeliverAt(s.peer, at, Staged{s.id, c}); };
    promise(servers_[0]);
    announce(servers_[0], old ? Ballot{ballot.value - 1} : ballot);
    promise(servers_[1]);
    announce(servers_[1], ballot);
    announce(servers_[1], ballot);
    EXPECT_EQ(state(), State::kRecovering);
    promise(servers_[2]);
    EXPECT_EQ(state(), State::kOpen);
    announce(servers_[2], ballot);
    EXPECT_EQ(version(), before + (old ? 0 : 1)) << "sealed and committed at once, by messages alone";
  }
}

TEST_F(CoordinatorServers, DrainsThatMakeNoSenseAreRefused) {
  StartWith(2);
  EXPECT_EQ(Drain("nobody").code(), Code::kNotFound);
  EXPECT_EQ(Drain("ps1").code(), Code::kInvalidArgument) << "two copies need two servers";
  const Status host = Drain("ps0");
  EXPECT_EQ(host.code(), Code::kInvalidArgument);
  EXPECT_NE(host.message().find("--state FOLDER"), std::string::npos) << "its record ends with it: " << host.message();
}

TEST_F(CoordinatorServers, ItsHostIsDrainedWhenSomebodyElseCanTakeOffice) {
  lasting_record_ = true;
  StartWith(3);
  EXPECT_NE(Drain("ps0").message().find("no other server could take office"), std::string::npos);
  // Another one says hello again, and that it keeps the record.
  Hello hello = HelloOf(servers_[1], "tcp://ps1");
  hello.may_coordinate = true;
  Deliver(servers_[1].peer, hello);
  EXPECT_TRUE(Drain("ps0").ok()) << Drain("ps0").message();
  for (int i = 0; i < 5; ++i) {
    AnswerMoves();
    Pass(job_.heartbeat(), {a_});
  }
  EXPECT_EQ(coordinator_->map()->Find(servers_[0].id), nullptr) << "it holds nothing";
  EXPECT_EQ(ServerGot<Drained>(0).size(), 1u) << "the sign to leave office";
}

TEST_F(CoordinatorServers, AServerMayAskForItself) {
  StartWith(2);
  EXPECT_TRUE(coordinator_->Servers().size() == 2);
  Deliver(servers_[1].peer, ControlRequest{"drain", ""});
  EXPECT_EQ(ServerGot<ControlReply>(1).at(0).code, Code::kOk);
  Pass(job_.heartbeat(), {a_});
  EXPECT_EQ(coordinator_->map()->servers.size(), 1u) << "the other has copies of everything";
  EXPECT_EQ(ServerGot<Drained>(1).size(), 1u);
}

TEST_F(CoordinatorServers, CopiesThatDifferAreFoundAndTheBackupRemoved) {
  StartWith(2);
  const Seal seal = *servers_[0].applied;
  const auto report = [&](size_t server, uint64_t checksum) {
    Deliver(servers_[server].peer,
            Applied{servers_[server].id, servers_[server].life, seal.id, seal.digest, 1, {{{0}, checksum}}});
  };
  report(1, 5);
  report(0, 5);
  EXPECT_EQ(coordinator_->map()->servers.size(), 2u);
  report(1, 6);
  EXPECT_EQ(coordinator_->map()->servers.size(), 1u);
  const auto events = Events();
  EXPECT_EQ(std::count(events.begin(), events.end(), "replica-diverged"), 1);
}

// Taking office: the old coordinator's server is left out, the step in flight goes on.
TEST_F(CoordinatorServers, ANewCoordinatorGoesOnAsSoonAsTheContributorsAreBack) {
  StartWith(2);
  const auto grant = TakeGrant(a_);
  Configuration found = *record_;
  found.map = *WithoutServers(found.map, {servers_[1].id});
  servers_.pop_back();
  Begin(found);
  Reconnect(0);
  EXPECT_EQ(state(), State::kOpen);
  EXPECT_EQ(coordinator_->map()->servers.size(), 1u);
  EXPECT_EQ(version(), 1u);
  a_.peer = {next_id_++};
  Hello worker = HelloOf(a_, dataset_);
  worker.version = {1};
  worker.lease = grant->lease;
  DeliverAt(a_.peer, {}, worker);
  EXPECT_FALSE(TakeGrant(a_)) << "it has its work";
  StageAll(a_, *grant);
  EXPECT_EQ(version(), 2u) << "without waiting for a lease's time";
}

// The seal went out without a straggler, which was told to go on to the next version; then the seal is dropped.
TEST_F(CoordinatorServers, AStragglerOfADroppedSealGetsWorkForItsStepAgain) {
  job_.quorum = 0.5;
  job_.grace = std::chrono::milliseconds(10);
  ASSERT_NO_FATAL_FAILURE(Start(3, {"a", "b"}));
  const Member* a = coordinator_->members().FindByName("a");
  const Member* b = coordinator_->members().FindByName("b");
  const Worker fast{a->id, a->peer, "a"};
  const Worker slow{b->id, b->peer, "b"};
  const auto grant = TakeGrant(fast);
  const auto late = TakeGrant(slow);
  ASSERT_TRUE(grant && late);
  for (Server& server : servers_) server.prepares = false;
  StageAll(fast, *grant);
  now_ = now_ + std::chrono::milliseconds(20);
  Tick();
  ASSERT_EQ(state(), State::kSealed);
  const auto ahead = TakeGrant(slow);
  ASSERT_TRUE(ahead);
  EXPECT_EQ(ahead->version, Version{2});
  (void)TakeGrant(fast);
  Close(servers_[2].peer);
  now_ = now_ + std::chrono::milliseconds(60);
  Tick();
  const auto again = TakeGrant(slow);
  ASSERT_TRUE(again) << "it would wait for version 2, and step 1 for it";
  EXPECT_EQ(again->version, Version{1});
  EXPECT_GT(again->number, ahead->number);
  EXPECT_NE(again->lease.id, late->lease.id) << "what it made of the first one is not mixed with the second";
}

// A restarted coordinator found an older contribution of a worker whole and counted on it. A server is lost with a part
// of it; the worker has gone on since and cannot push it again.
TEST_F(CoordinatorServers, WhatWasFoundIsNotWaitedForWhenItIsWholeNoMoreAndItsWorkerWentOn) {
  StartWith(2);
  const auto grant = TakeGrant(a_);
  for (Server& server : servers_) server.prepares = false;
  StageAll(a_, *grant);
  Begin(record_);
  Reconnect(0);
  Reconnect(1);
  a_.peer = {next_id_++};
  Hello worker = HelloOf(a_, dataset_);
  worker.version = {1};
  DeliverAt(a_.peer, {}, worker);
  ASSERT_EQ(state(), State::kSealed) << "what was found is sealed";
  (void)TakeGrant(a_);       // ahead, for the step after it; taken back with the ballot
  servers_[0].held.clear();  // its part, but not that of the chunks which it is about to take over
  Close(servers_[1].peer);
  now_ = now_ + std::chrono::milliseconds(60);
  Tick();
  ASSERT_EQ(state(), State::kOpen);
  EXPECT_FALSE(TakeGrant(a_)) << "perhaps it still has the gradient";
  Deliver(a_.peer, Ready{a_.id, {1}, LeaseId{grant->lease.id.value ^ (uint64_t{1} << 40)}});
  const auto other = TakeGrant(a_);
  ASSERT_TRUE(other);
  EXPECT_EQ(other->lease.ranges, grant->lease.ranges) << "its samples are lent again";
}

}  // namespace
}  // namespace everstep
