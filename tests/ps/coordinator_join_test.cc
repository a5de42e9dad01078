// Who gets into a job, and what the others are told.
#include <gtest/gtest.h>

#include "tests/ps/coordinator_testing.h"

namespace everstep {
namespace {

using State = Coordinator::State;

class CoordinatorJoin : public test::CoordinatorTest {
 protected:
  // Says hello as a stranger and returns the refusal; the link must be closed after it.
  Refused ExpectRefused(Hello hello, Code code, JobUid job = {}) {
    const PeerId peer{next_id_++};
    DeliverAt(peer, {}, std::move(hello), job);
    const auto refused = mail_.TakeOne<Refused>(peer);
    EXPECT_TRUE(refused) << Name(code);
    if (!refused) return {};
    EXPECT_EQ(refused->code, code) << refused->message;
    EXPECT_EQ(ClosingsOf(peer), 1u);
    EXPECT_FALSE(mail_.TakeOne<Welcome>(peer));
    return *refused;
  }
  Hello Newcomer() { return HelloOf({{next_id_++}, {}, "newcomer"}, dataset_); }
};

void ExpectMentions(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << "\"" << part << "\" is not in: " << message;
}

TEST_F(CoordinatorJoin, TheMapIsFormedWhenServersAndModelAreThere) {
  job_.servers = 2;
  Begin();
  record_answers_ = false;
  AddServer();
  EXPECT_EQ(servers_[0].id, ServerId{0});
  const Worker a = AddWorker("a");
  auto welcome = mail_.TakeOne<Welcome>(a.peer);
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->job, job_);
  EXPECT_FALSE(welcome->map);
  EXPECT_EQ(state(), State::kGathering);
  EXPECT_FALSE(proposal_);
  AddServer();
  EXPECT_EQ(servers_[1].id, ServerId{1});
  // The record comes first (rule R1) ...
  EXPECT_EQ(state(), State::kElecting);
  ASSERT_TRUE(proposal_);
  EXPECT_EQ(proposal_->expected, Ballot{0});
  EXPECT_EQ(proposal_->next.ballot, Ballot{1});
  EXPECT_EQ(proposal_->next.job, kJob);
  EXPECT_EQ(proposal_->next.spec, Spec());
  EXPECT_EQ(proposal_->next.dataset_size, dataset_);
  EXPECT_EQ(proposal_->next.map.ballot, Ballot{1});
  EXPECT_EQ(proposal_->next.map.servers[1].incarnation, servers_[1].life);
  EXPECT_TRUE(ServerGot<Promise>(0).empty());
  // ... then the promises of all (rule R2) ...
  servers_[1].promises = false;
  coordinator_->OnConfigured(now_, Status::Ok());
  Pump();
  EXPECT_EQ(state(), State::kRecovering);
  EXPECT_EQ(ServerGot<Promise>(0).size(), 1u);
  EXPECT_FALSE(mail_.TakeOne<MapUpdate>(a.peer));
  DeliverAt(servers_[1].peer, {1}, Promised{servers_[1].id, servers_[1].life, {}, {}, {}, 1, {}, {}, {}});
  // ... then the job is open.
  EXPECT_EQ(state(), State::kOpen);
  EXPECT_EQ(mail_.TakeOne<MapUpdate>(a.peer)->map, *coordinator_->map());
}

TEST_F(CoordinatorJoin, AServerThatGoesBeforeTheStartMayBeReplaced) {
  job_.servers = 2;
  Begin();
  AddServer();
  AddServer();
  Close(servers_[0].peer);
  const Worker a = Admit("a");
  EXPECT_EQ(state(), State::kGathering);  // not with a server that is gone
  servers_.erase(servers_.begin());
  AddServer();
  EXPECT_EQ(state(), State::kOpen);
  EXPECT_NE(servers_[0].id, servers_[1].id);
  EXPECT_TRUE(TakeGrant(a));
}

TEST_F(CoordinatorJoin, AServerThatReconnectsIsTheSame) {
  Start(2, {"a"});
  Close(servers_[1].peer);
  servers_[1].peer = {next_id_++};
  DeliverAt(servers_[1].peer, {}, HelloOf(servers_[1], "tcp://ps1"));
  EXPECT_EQ(ServerGot<Welcome>(1).size(), 1u);
  EXPECT_EQ(coordinator_->Servers().size(), 2u);
  Pass(job_.lease() * 2, {});
  EXPECT_NE(state(), State::kFailed);
}

TEST_F(CoordinatorJoin, Case13_AnotherModelIsRefusedNamingBoth) {
  Start(2, {"a"});
  Hello hello = Newcomer();
  hello.spec.tensors[0].shape = {33};
  const std::string message = ExpectRefused(hello, Code::kWrongSpec).message;
  const auto hex = [](uint64_t hash) {
    char text[20];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
    return std::string(text);
  };
  ExpectMentions(message, hex(hello.spec.hash()));
  ExpectMentions(message, hex(Spec().hash()));
  ExpectMentions(message, "w [33] here, w [32] there");
  EXPECT_EQ(coordinator_->members().size(), 1u);
}

TEST_F(CoordinatorJoin, Case13_AnotherDatasetIsRefusedNamingBoth) {
  Start(2, {"a"});
  Hello hello = Newcomer();
  hello.dataset_size = 101;
  const std::string message = ExpectRefused(hello, Code::kWrongSpec).message;
  ExpectMentions(message, "101");
  ExpectMentions(message, "100");
}

TEST_F(CoordinatorJoin, Case7_AnotherJobIsRefusedNamingBoth) {
  Start(2, {"a"});
  Hello hello = Newcomer();
  hello.job_name = "other";
  const std::string message = ExpectRefused(hello, Code::kWrongJob).message;
  ExpectMentions(message, "\"other\"");
  ExpectMentions(message, "\"test\"");
}

TEST_F(CoordinatorJoin, Case32_AnEarlierLifeOfTheJobIsAnotherJob) {
  Start(2, {"a"});
  ExpectMentions(ExpectRefused(Newcomer(), Code::kWrongJob, {76}).message, "earlier life");
  const PeerId peer{next_id_++};
  DeliverAt(peer, {}, Ready{{5}, {1}, {}}, {76});
  EXPECT_EQ(mail_.TakeOne<Refused>(peer)->code, Code::kWrongJob);
}

TEST_F(CoordinatorJoin, Case39_ModelsThatCannotBeAreRefused) {
  Begin();
  AddServer();
  Hello hello = Newcomer();
  hello.spec.tensors.clear();
  ExpectRefused(hello, Code::kInvalidArgument);
  hello.spec.tensors = {{"w", {int64_t{1} << 50}, DType::kFloat32, Role::kTrainable}};
  ExpectMentions(ExpectRefused(hello, Code::kInvalidArgument).message, "larger chunk-bytes");
  hello = Newcomer();
  hello.worker = {};
  ExpectRefused(hello, Code::kCorrupt);
  AddWorker("good");
  EXPECT_EQ(state(), State::kOpen);
}

TEST_F(CoordinatorJoin, AJobThatWouldNeverEndIsRefused) {
  Begin();
  Hello hello = Newcomer();
  hello.dataset_size = 0;
  ExpectMentions(ExpectRefused(hello, Code::kInvalidArgument).message, "max-steps");
  AddServer();
  AddWorker("with a dataset");  // the first one's model binds nobody
  EXPECT_EQ(state(), State::kOpen);
}

TEST_F(CoordinatorJoin, Case14_ObserversAreNeverMembers) {
  Start(2, {"a"});
  Hello hello;
  hello.role = PeerRole::kObserver;
  for (int i = 0; i < 100; ++i) {
    const PeerId peer{next_id_++};
    DeliverAt(peer, {}, hello);
    EXPECT_EQ(mail_.TakeOne<Welcome>(peer)->version, Version{1});
    Close(peer);
  }
  EXPECT_EQ(coordinator_->members().size(), 1u);
  EXPECT_TRUE(Events().empty());
}

TEST_F(CoordinatorJoin, Case2_ANewLifeIsInAtOnceAndTheOldOneIsFenced) {
  Start(2, {"a", "b"});
  const Worker old = {coordinator_->members().FindByName("a")->id, coordinator_->members().FindByName("a")->peer, "a"};
  const auto grant = TakeGrant(old);
  const Worker young = AddWorker("a");
  EXPECT_TRUE(mail_.TakeOne<Welcome>(young.peer));
  const auto fenced = mail_.TakeOne<Fenced>(old.peer);
  ASSERT_TRUE(fenced);
  EXPECT_EQ(fenced->worker, old.id);
  EXPECT_EQ(coordinator_->members().size(), 2u);
  // What the old life still says changes nothing (promise P6).
  StageAll(old, *grant);
  const Worker b{coordinator_->members().FindByName("b")->id, coordinator_->members().FindByName("b")->peer, "b"};
  StageAll(b, *TakeGrant(b));
  const auto commits = Commits();
  ASSERT_EQ(commits.size(), 1u);
  ASSERT_EQ(commits[0].seal.contributors.size(), 1u);
  EXPECT_EQ(commits[0].seal.contributors[0].worker, b.id);
  Deliver(old.peer, Heartbeat{old.id, Phase::kWaiting, 9, 9});
  EXPECT_TRUE(mail_.TakeOne<Fenced>(old.peer));
  DeliverAt(old.peer, {}, HelloOf(old, dataset_));
  EXPECT_TRUE(mail_.TakeOne<Fenced>(old.peer));
  EXPECT_EQ(coordinator_->members().size(), 2u);
}

TEST_F(CoordinatorJoin, AHelloOnAnotherLinkIsTheSameLife) {
  Start(2, {"a"});
  const Member* member = coordinator_->members().FindByName("a");
  const Worker before{member->id, member->peer, "a"};
  const Worker after{before.id, {next_id_++}, "a"};
  DeliverAt(after.peer, {}, HelloOf(after, dataset_));
  EXPECT_TRUE(mail_.TakeOne<Welcome>(after.peer));
  Close(before.peer);  // the old link's end does not end the member
  EXPECT_EQ(coordinator_->members().size(), 1u);
  EXPECT_EQ(coordinator_->members().FindByName("a")->peer, after.peer);
  EXPECT_EQ(coordinator_->counters().joins, 1u);
}

TEST_F(CoordinatorJoin, MoreWorkersThanTheMaximumAreRefused) {
  job_.max_workers = 2;
  Start(2, {"a", "b"});
  ExpectRefused(Newcomer(), Code::kResourceExhausted);
  EXPECT_EQ(coordinator_->members().size(), 2u);
}

TEST_F(CoordinatorJoin, Case11_AFlapperIsBackedOffAndReportedWhileOthersGoOn) {
  Start(2, {"steady"});
  const Worker steady{coordinator_->members().FindByName("steady")->id,
                      coordinator_->members().FindByName("steady")->peer, "steady"};
  for (int i = 0; i < 5; ++i) {
    const Worker flapper = Admit("flapper");
    ASSERT_TRUE(mail_.TakeOne<Welcome>(flapper.peer)) << i;
    Close(flapper.peer);
    const uint64_t before = version();
    const auto grant = TakeGrant(steady);
    ASSERT_TRUE(grant);
    StageAll(steady, *grant);
    EXPECT_EQ(version(), before + 1);
  }
  Events();
  Hello hello = HelloOf({{next_id_++}, {}, "flapper"}, dataset_);
  ExpectMentions(ExpectRefused(hello, Code::kUnavailable).message, "flapper joined 5 times");
  EXPECT_EQ(Events(), (std::vector<std::string>{"worker-refused"}));
}

TEST_F(CoordinatorJoin, AJoinerTakesPartFromTheNextStepBoundary) {
  Start(2, {"a"});
  const Member* member = coordinator_->members().FindByName("a");
  const Worker a{member->id, member->peer, "a"};
  const auto first = TakeGrant(a);
  EXPECT_EQ(first->lease.samples(), 10u);
  const Worker b = Admit("b");
  EXPECT_FALSE(TakeGrant(b));  // nobody is disturbed in the middle of a step
  StageAll(a, *first);
  const auto for_a = TakeGrant(a);
  const auto for_b = TakeGrant(b);
  ASSERT_TRUE(for_a && for_b);
  EXPECT_EQ(for_b->version, Version{2});
  EXPECT_EQ(for_a->lease.samples() + for_b->lease.samples(), 10u);  // the global batch stays (promise P5)
}

TEST_F(CoordinatorJoin, AfterTheEndNewcomersAreToldSo) {
  job_.max_steps = 1;
  Start(2, {"a"});
  const Member* member = coordinator_->members().FindByName("a");
  const Worker a{member->id, member->peer, "a"};
  StageAll(a, *TakeGrant(a));
  EXPECT_EQ(state(), State::kFinished);
  ExpectRefused(Newcomer(), Code::kFinished);
}

TEST_F(CoordinatorJoin, AfterAFailureNewcomersAreToldWhy) {
  Start(2, {"a"});
  coordinator_->Fail(now_, {Code::kCancelled, "stopped by hand"});
  ExpectMentions(ExpectRefused(Newcomer(), Code::kCancelled).message, "stopped by hand");
}

}  // namespace
}  // namespace everstep
