// Checkpoints as the coordinator sees them: when one is taken, what makes it whole, what ends it, and how a job
// resumes.
#include <gmock/gmock.h>

#include "tests/ps/coordinator_testing.h"

namespace everstep {
namespace {

using State = Coordinator::State;
using testing::Contains;
using testing::HasSubstr;

class CoordinatorCheckpoint : public test::CoordinatorTest {
 protected:
  void BeginWith(Coordinator::Options options) {
    options.job = kJob;
    options.spec = job_;
    options.holder = {next_id_++};
    coordinator_.emplace(now_, std::move(options));
    Pump();
  }
  // Two servers and a worker at version 1; a checkpoint every `every` steps.
  void StartSaving(uint64_t every) {
    job_.servers = 2;
    Coordinator::Options options;
    options.checkpoint_every = every;
    BeginWith(std::move(options));
    AddServer();
    AddServer();
    a_ = Admit("a");
    StageAll(a_, *TakeGrant(a_));
    Events();
    for (Server& server : servers_) server.got.clear();
  }
  void Step() {
    const auto grant = TakeGrant(a_);
    ASSERT_TRUE(grant);
    StageAll(a_, *grant);
  }
  void Done(size_t server, const Snapshot& s, Code code = Code::kOk) {
    SnapshotDone done;
    done.server = servers_[server].id;
    done.label = s.label;
    done.file = s.label + "-ps" + std::to_string(server) + ".safetensors";
    done.chunks = {{static_cast<uint32_t>(server)}};
    done.code = code;
    done.message = code == Code::kOk ? "" : "the disk is full";
    Deliver(servers_[server].peer, done);
  }
  std::optional<Snapshot> Asked(size_t server) {
    const auto got = ServerGot<Snapshot>(server);
    return got.empty() ? std::nullopt : std::optional(got.back());
  }

  Worker a_;
};

TEST_F(CoordinatorCheckpoint, EveryNStepsAndOnlyThen) {
  StartSaving(3);
  for (uint64_t step = 1; step <= 7; ++step) {
    Step();
    const auto asked = Asked(0);
    ASSERT_EQ(asked.has_value(), step % 3 == 0) << step;
    if (!asked) continue;
    EXPECT_EQ(asked->version.value, step + 1);
    EXPECT_EQ(asked->digest, coordinator_->digest());
    EXPECT_EQ(Asked(1), asked);
    Done(0, *asked);
    EXPECT_FALSE(coordinator_->TakeCheckpoint());
    Done(1, *asked);
    Done(1, *asked);  // once more
    const auto work = coordinator_->TakeCheckpoint();
    ASSERT_TRUE(work);
    EXPECT_EQ(Next(work->seal.id.step), asked->version);
    EXPECT_EQ(work->parts.size(), 2u);
    EXPECT_FALSE(coordinator_->TakeCheckpoint());
    coordinator_->OnCheckpoint(now_, Status::Ok());
    EXPECT_THAT(Events(), Contains("checkpoint"));
  }
  EXPECT_EQ(coordinator_->counters().checkpoints, 2u);
}

// The servers must hear of it before anything of the next step, or they would not hold the version any more.
TEST_F(CoordinatorCheckpoint, IsAskedForAfterTheCommitAndBeforeTheNextSeal) {
  StartSaving(1);
  Step();
  Step();
  std::vector<std::string> order;
  for (const Envelope& e : servers_[0].got) {
    if (const auto* m = std::get_if<Commit>(&e.body)) order.push_back("commit " + ToString(m->seal.step));
    if (const auto* m = std::get_if<SealStep>(&e.body)) order.push_back("seal " + ToString(m->seal.id.step));
    if (const auto* m = std::get_if<Snapshot>(&e.body)) order.push_back("snapshot " + ToString(m->version));
  }
  EXPECT_EQ(order, (std::vector<std::string>{"seal 1", "commit 1", "snapshot 2", "seal 2", "commit 2"}))
      << "and none is begun while another is being written";
}

TEST_F(CoordinatorCheckpoint, IsAskedForAgainUntilItIsAnswered) {
  StartSaving(5);
  for (int step = 1; step <= 5; ++step) Step();
  const auto asked = Asked(0);
  ASSERT_TRUE(asked && Asked(1));
  Done(0, *asked);
  Pass(job_.retransmit() * 2, {a_});
  EXPECT_FALSE(Asked(0));
  EXPECT_EQ(Asked(1), asked);
}

TEST_F(CoordinatorCheckpoint, AnErrorEndsItAndTheJobGoesOn) {
  StartSaving(1);
  Step();
  const auto first = Asked(0);
  Done(1, *first, Code::kResourceExhausted);
  EXPECT_THAT(Events(), Contains("checkpoint-failed"));
  Done(0, *first);
  EXPECT_FALSE(coordinator_->TakeCheckpoint());
  Step();
  const auto second = Asked(0);
  ASSERT_TRUE(second);
  EXPECT_NE(second->label, first->label);
  Done(0, *second);
  Done(1, *second);
  ASSERT_TRUE(coordinator_->TakeCheckpoint());
  coordinator_->OnCheckpoint(now_, {Code::kResourceExhausted, "no space for the manifest"});
  EXPECT_EQ(coordinator_->counters().failed_checkpoints, 2u);
  EXPECT_EQ(state(), State::kOpen);
}

TEST_F(CoordinatorCheckpoint, TheLastVersionIsSavedAndWaitedFor) {
  job_.max_steps = 2;
  StartSaving(1);
  Step();
  const auto first = Asked(0);  // still being written when the last step commits
  Step();
  EXPECT_EQ(state(), State::kFinished);
  EXPECT_FALSE(Asked(0));
  Done(0, *first);
  Done(1, *first);
  ASSERT_TRUE(coordinator_->TakeCheckpoint());
  coordinator_->OnCheckpoint(now_, Status::Ok());
  Pump();
  const auto last = Asked(0);
  ASSERT_TRUE(last);
  EXPECT_EQ(last->version.value, 3u);
  Close(a_.peer);
  now_ = now_ + std::chrono::seconds(5);
  EXPECT_FALSE(coordinator_->Done(now_));
  Done(0, *last);
  Done(1, *last);
  ASSERT_TRUE(coordinator_->TakeCheckpoint());
  coordinator_->OnCheckpoint(now_, Status::Ok());
  EXPECT_TRUE(coordinator_->Done(now_ + std::chrono::seconds(5)));
}

TEST_F(CoordinatorCheckpoint, AServerThatIsGoneIsNotWaitedForForEver) {
  job_.max_steps = 1;
  StartSaving(1);
  Step();
  ASSERT_TRUE(Asked(0));
  EXPECT_EQ(state(), State::kFinished);
  Close(servers_[1].peer);
  Pass(job_.lease() * 2, {});
  EXPECT_THAT(Events(), Contains("checkpoint-failed"));
}

// ---- Resuming ----

class CoordinatorResume : public CoordinatorCheckpoint {
 protected:
  // Version 8, made by step 7 of an earlier life at ballot 5.
  Coordinator::Options Saved(uint64_t recorded = 0) {
    Seal seal;
    seal.id = {{5}, {7}};
    seal.contributors = {Contribution{{4}, {7}, {1}, {{2}, 0, {{60, 70}}}}};
    seal.weights = {1.0};
    seal.ledger_after = {0, {{0, 70}}};
    seal.digest = SealDigest(seal);
    Coordinator::Options options;
    options.resume = ResumePoint{{"the-label", seal, 0.5}, Spec(), dataset_, {recorded}, {recorded == 0 ? 100 : 20u}};
    return options;
  }
  // A server that takes its time with restoring.
  void AddSlowServer() {
    promises_at_first_ = false;
    AddServer();
    promises_at_first_ = true;
  }
  // What a server does with a Promise that says where to restore from.
  void Restored(size_t server) {
    Server& s = servers_[server];
    const auto promises = ServerGot<Promise>(server);
    ASSERT_FALSE(promises.empty());
    ASSERT_TRUE(promises.back().restore);
    s.promised = coordinator_->ballot();
    s.applied = promises.back().restore->seal;
    s.version = Next(s.applied->id.step);
    s.digest = s.applied->digest;
    DeliverAt(s.peer, s.promised, Promised{s.id, s.life, s.version, s.digest, s.applied, 0.5, {}, {}, {}});
  }
};

TEST_F(CoordinatorResume, GoesOnWithTheSavedVersionLedgerAndJob) {
  job_.servers = 2;
  BeginWith(Saved());
  AddSlowServer();
  EXPECT_EQ(state(), State::kGathering);
  AddSlowServer();  // no worker is needed to begin
  ASSERT_EQ(state(), State::kRecovering);
  EXPECT_GT(coordinator_->ballot().value, 100u);
  Restored(0);
  Restored(1);
  ASSERT_EQ(state(), State::kOpen);
  EXPECT_EQ(version(), 8u);
  EXPECT_TRUE(Commits().empty()) << "nothing new was committed";
  const Worker a = Admit("a");
  const auto grant = TakeGrant(a);
  ASSERT_TRUE(grant);
  EXPECT_EQ(grant->version, Version{8});
  ASSERT_EQ(grant->lease.ranges.size(), 1u);
  EXPECT_EQ(grant->lease.ranges[0].begin, 70u) << "what was consumed is not lent again";
  StageAll(a, *grant);
  ASSERT_EQ(Commits().size(), 1u);
  EXPECT_EQ(version(), 9u);
}

TEST_F(CoordinatorResume, ReplacesTheRecordThatItFound) {
  record_answers_ = false;
  BeginWith(Saved(12));
  AddSlowServer();
  ASSERT_TRUE(proposal_);
  EXPECT_EQ(proposal_->expected, Ballot{12});
  EXPECT_GT(proposal_->next.ballot.value, 20u);
}

TEST_F(CoordinatorResume, AWorkerOfTheLostLifeJoinsAgainAndAnotherModelIsRefused) {
  BeginWith(Saved());
  const Worker old{{901}, {902}, "old"};
  Hello hello = HelloOf(old, dataset_);
  hello.version = {11};
  DeliverAt(old.peer, {}, hello);
  EXPECT_EQ(mail_.Take<Fenced>(old.peer).size(), 1u);
  EXPECT_EQ(coordinator_->members().size(), 0u);
  hello.version = {};
  hello.spec.tensors[0].name = "other";
  DeliverAt(old.peer, {}, hello);
  const auto refused = mail_.Take<Refused>(old.peer);
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].code, Code::kWrongSpec);
}

TEST_F(CoordinatorResume, AServerThatCannotRestoreEndsTheJobWithItsReason) {
  BeginWith(Saved());
  AddSlowServer();
  ASSERT_EQ(state(), State::kRecovering);
  SnapshotDone failed;
  failed.server = servers_[0].id;
  failed.label = "the-label";
  failed.code = Code::kNotFound;
  failed.message = "there is no such folder";
  Deliver(servers_[0].peer, failed);
  EXPECT_EQ(state(), State::kFailed);
  EXPECT_THAT(coordinator_->failure()->message(), HasSubstr("no such folder"));
}

TEST_F(CoordinatorResume, InitialValuesOfAFileAreCheckedAgainstTheModel) {
  job_.servers = 1;
  Coordinator::Options options;
  options.initial = {{"w", {16}, DType::kFloat32, Role::kTrainable}};
  BeginWith(std::move(options));
  const Worker a = AddWorker("a");
  auto refused = mail_.Take<Refused>(a.peer);
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].code, Code::kWrongSpec);
  EXPECT_THAT(refused[0].message, HasSubstr("[16] float32 in the file"));
  EXPECT_THAT(refused[0].message, HasSubstr("[32] float32 in the model"));

  Coordinator::Options fitting;
  fitting.initial = {{"other", {1}, DType::kFloat32, Role::kTrainable}, {"w", {32}, DType::kFloat32, Role::kTrainable}};
  BeginWith(std::move(fitting));
  const Worker b = Admit("b");
  AddSlowServer();
  Restored(0);
  ASSERT_EQ(state(), State::kOpen);
  EXPECT_EQ(version(), 1u);
  ASSERT_EQ(Commits().size(), 1u) << "step 0, for the records";
  const auto grant = TakeGrant(b);
  ASSERT_TRUE(grant);
  EXPECT_EQ(grant->version, Version{1}) << "nobody is asked for initial values";
}

}  // namespace
}  // namespace everstep
