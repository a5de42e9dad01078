// The step as the coordinator sees it: work given, contributions whole, sealed, prepared, committed.
#include <gtest/gtest.h>

#include "base/limits.h"
#include "tests/ps/coordinator_testing.h"

namespace everstep {
namespace {

using State = Coordinator::State;

class CoordinatorStep : public test::CoordinatorTest {
 protected:
  Worker Find(const std::string& name) {
    const Member* member = coordinator_->members().FindByName(name);
    return {member->id, member->peer, name};
  }
  // Lets the job run to its end with workers that contribute whatever they are given.
  void RunToTheEnd(const std::vector<Worker>& workers) {
    for (int rounds = 0; state() != State::kFinished && rounds < 10000; ++rounds) {
      for (const Worker& worker : workers) {
        if (const auto grant = TakeGrant(worker); grant && grant->version == coordinator_->version())
          StageAll(worker, *grant);
      }
    }
  }
};

// ---- Initial values ----

TEST_F(CoordinatorStep, OneWorkerIsAskedForTheInitialValues) {
  job_.servers = 2;
  Begin();
  AddServer();
  AddServer();
  const Worker idle = AddWorker("joins, not ready");
  const Worker a = Admit("a");
  const Worker b = Admit("b");
  EXPECT_FALSE(TakeGrant(idle));
  EXPECT_FALSE(TakeGrant(b));
  const auto grant = TakeGrant(a);
  ASSERT_TRUE(grant);
  EXPECT_EQ(grant->version, Version{0});
  EXPECT_TRUE(grant->lease.ranges.empty());
  StageAll(a, *grant);
  const auto commits = Commits();
  ASSERT_EQ(commits.size(), 1u);
  EXPECT_EQ(commits[0].seal.weights, (std::vector<double>{1}));
  EXPECT_EQ(commits[0].seal.learning_rate, 0);
  EXPECT_EQ(coordinator_->ledger().consumed(), 0u);
  EXPECT_TRUE(TakeGrant(b));  // work for everybody who is ready
  EXPECT_FALSE(TakeGrant(idle));
}

TEST_F(CoordinatorStep, Case10_WhenTheInitialiserDiesAnotherTakesOver) {
  job_.servers = 2;
  Begin();
  AddServer();
  AddServer();
  const Worker a = Admit("a");
  const Worker b = Admit("b");
  Stage(0, ContributionOf(a, *TakeGrant(a)));  // half of it
  Close(a.peer);
  const auto grant = TakeGrant(b);
  ASSERT_TRUE(grant);
  EXPECT_EQ(grant->version, Version{0});
  StageAll(b, *grant);
  EXPECT_EQ(version(), 1u);
  EXPECT_EQ(Commits()[0].seal.contributors[0].worker, b.id);
}

// ---- One step ----

TEST_F(CoordinatorStep, FromWorkToCommit) {
  Start(2, {"a", "b", "c"});
  const Worker workers[] = {Find("a"), Find("b"), Find("c")};
  const Digest before = coordinator_->digest();
  std::vector<Contribution> contributions;
  servers_[1].prepares = false;
  const Time granted = now_;
  now_ = now_ + std::chrono::milliseconds(10);
  for (const size_t i : {2, 0, 1}) {  // arrival is not the order of summation
    const auto grant = TakeGrant(workers[i]);
    ASSERT_TRUE(grant);
    EXPECT_EQ(grant->version, Version{1});
    EXPECT_EQ(state(), State::kOpen);
    contributions.push_back(StageAll(workers[i], *grant));
  }
  ASSERT_EQ(state(), State::kSealed);
  const auto seals = ServerGot<SealStep>(0);
  ASSERT_EQ(seals.size(), 1u);
  const Seal seal = seals[0].seal;
  EXPECT_FALSE(seals[0].collapsed);
  EXPECT_EQ(seal.id, (SealId{{1}, {1}}));
  EXPECT_EQ(seal.contributors, (std::vector<Contribution>{contributions[1], contributions[2], contributions[0]}));
  EXPECT_EQ(seal.weights, (std::vector<double>{0.3, 0.3, 0.4}));
  EXPECT_EQ(seal.learning_rate, 0.25);
  EXPECT_EQ(seal.ledger_after, (LedgerState{0, {{0, 10}}}));
  EXPECT_EQ(seal.previous, before);
  EXPECT_EQ(seal.digest, SealDigest(seal));
  // Work for the next step is given now, so that its samples can be loaded meanwhile.
  uint64_t ahead = 0;
  for (const Worker& worker : workers) {
    const auto grant = TakeGrant(worker);
    ASSERT_TRUE(grant);
    EXPECT_EQ(grant->version, Version{2});
    EXPECT_GE(grant->lease.ranges.front().begin, 10u);
    ahead += grant->lease.samples();
  }
  EXPECT_EQ(ahead, 10u);
  // One of two has prepared: nothing is decided (rule R10, trace T5).
  EXPECT_TRUE(ServerGot<Commit>(0).empty());
  EXPECT_EQ(version(), 1u);
  EXPECT_TRUE(Commits().empty());
  now_ = now_ + std::chrono::milliseconds(10);
  Deliver(servers_[1].peer, Prepared{servers_[1].id, servers_[1].life, seal.id, seal.digest, {}});
  EXPECT_EQ(version(), 2u);
  EXPECT_EQ(coordinator_->digest(), seal.digest);
  EXPECT_EQ(ServerGot<Commit>(0).size(), 1u);
  EXPECT_EQ(coordinator_->ledger().committed(), seal.ledger_after);
  const auto commits = Commits();
  ASSERT_EQ(commits.size(), 1u);
  EXPECT_EQ(commits[0].seal, seal);
  EXPECT_EQ(commits[0].names, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(commits[0].members, 3u);
  EXPECT_EQ(commits[0].granted_at, granted);
  EXPECT_EQ(commits[0].sealed_at - granted, Duration(std::chrono::milliseconds(10)));
  EXPECT_EQ(commits[0].committed_at, now_);
  EXPECT_FALSE(TakeGrant(workers[0]));  // has its work already
}

// Trace T16: parts of two contributions of one worker do not make a whole.
TEST_F(CoordinatorStep, PartsOfTwoContributionsAreNoWhole) {
  Start(2, {"a"});
  const Worker a = Find("a");
  const auto given_up = TakeGrant(a);
  Stage(0, ContributionOf(a, *given_up));
  Deliver(a.peer, Ready{a.id, {1}, given_up->lease.id});
  const Contribution c = ContributionOf(a, *TakeGrant(a));
  Stage(1, c);
  EXPECT_EQ(state(), State::kOpen);
  Stage(0, c);
  EXPECT_EQ(version(), 2u);
  EXPECT_EQ(Commits()[0].seal.contributors, (std::vector<Contribution>{c}));
}

TEST_F(CoordinatorStep, WholeMeansOnEveryShard) {
  Start(2, {"a"});
  const Worker a = Find("a");
  const Contribution c = ContributionOf(a, *TakeGrant(a));
  Stage(0, c);
  Stage(0, c);
  EXPECT_EQ(state(), State::kOpen);
  Stage(1, c);
  EXPECT_EQ(version(), 2u);
}

// Rule R7: announcements count at this ballot, from their server's own link, for one and the same contribution.
TEST_F(CoordinatorStep, AnnouncementsThatDoNotCount) {
  Start(2, {"a"});
  const Worker a = Find("a");
  const Contribution c = ContributionOf(a, *TakeGrant(a));
  Stage(0, c);
  DeliverAt(servers_[1].peer, {2}, Staged{servers_[1].id, c});
  DeliverAt(servers_[1].peer, {0}, Staged{servers_[1].id, c});
  Deliver(servers_[0].peer, Staged{servers_[1].id, c});  // one server speaks for the other
  Deliver(a.peer, Staged{servers_[1].id, c});
  Contribution other = c;
  other.base = {9};
  Deliver(servers_[1].peer, Staged{servers_[1].id, other});
  EXPECT_EQ(state(), State::kOpen);
  Deliver(servers_[1].peer, Staged{servers_[1].id, c});
  EXPECT_EQ(version(), 2u);
}

// Rule R10 and trace T7: only of this very seal, from this life of the server.
TEST_F(CoordinatorStep, PreparationsThatDoNotCount) {
  Start(2, {"a"});
  servers_[0].prepares = servers_[1].prepares = false;
  const Worker a = Find("a");
  StageAll(a, *TakeGrant(a));
  const Seal seal = ServerGot<SealStep>(0)[0].seal;
  const Server& one = servers_[1];
  Deliver(servers_[0].peer, Prepared{servers_[0].id, servers_[0].life, seal.id, seal.digest, {}});
  Deliver(one.peer, Prepared{one.id, one.life, {{0}, seal.id.step}, seal.digest, {}});
  Deliver(one.peer, Prepared{one.id, one.life, seal.id, {seal.digest.value ^ 1}, {}});
  Deliver(one.peer, Prepared{one.id, {one.life.value + 1}, seal.id, seal.digest, {}});
  Deliver(servers_[0].peer, Prepared{one.id, one.life, seal.id, seal.digest, {}});
  EXPECT_EQ(version(), 1u);
  Deliver(one.peer, Prepared{one.id, one.life, seal.id, seal.digest, {}});
  EXPECT_EQ(version(), 2u);
}

TEST_F(CoordinatorStep, ASingleServerCollapsesThePhases) {
  Start(1, {"a"});
  const Worker a = Find("a");
  StageAll(a, *TakeGrant(a));
  EXPECT_TRUE(ServerGot<SealStep>(0)[0].collapsed);
  EXPECT_TRUE(ServerGot<Commit>(0).empty());
  EXPECT_EQ(version(), 2u);
}

TEST_F(CoordinatorStep, TheClipScaleIsOfAllShards) {
  job_.clip_norm = 1;
  Start(2, {"a"});
  servers_[0].squared_norm = 9;
  servers_[1].squared_norm = 16;
  const Worker a = Find("a");
  StageAll(a, *TakeGrant(a));
  EXPECT_EQ(ServerGot<SealStep>(0)[0].seal.clip_norm, 1);
  const double scale = ServerGot<Commit>(0)[0].scale;
  EXPECT_NEAR(scale, 0.2, 1e-6);
  EXPECT_EQ(Commits()[0].scale, scale);
}

// Rule R18: what has no answer is said again, to whom it concerns.
TEST_F(CoordinatorStep, UnansweredSealsAndCommitsAreRepeated) {
  Start(2, {"a"});
  servers_[1].prepares = servers_[1].applies = false;
  const Worker a = Find("a");
  StageAll(a, *TakeGrant(a));
  ServerGot<SealStep>(0);
  ServerGot<SealStep>(1);
  Pass(job_.retransmit() * 3, {a});
  EXPECT_TRUE(ServerGot<SealStep>(0).empty());
  const auto again = ServerGot<SealStep>(1);
  EXPECT_GE(again.size(), 2u);
  EXPECT_LE(again.size(), 4u);
  servers_[1].prepares = true;
  Pass(job_.retransmit() * 2, {a});
  EXPECT_EQ(version(), 2u);
  ServerGot<Commit>(0);
  ServerGot<Commit>(1);
  Pass(job_.retransmit() * 3, {a});
  EXPECT_TRUE(ServerGot<Commit>(0).empty());
  EXPECT_GE(ServerGot<Commit>(1).size(), 2u);
  servers_[1].applies = true;
  Pass(job_.retransmit() * 2, {a});
  EXPECT_EQ(servers_[1].version, Version{2});
  ServerGot<Commit>(1);
  Pass(job_.retransmit() * 3, {a});
  EXPECT_TRUE(ServerGot<Commit>(1).empty());
}

TEST_F(CoordinatorStep, GrantsThatWereLostAreRepeatedByTheHeartbeat) {
  Start(2, {"a"});
  const Worker a = Find("a");
  const auto grant = TakeGrant(a);
  Deliver(a.peer, Heartbeat{a.id, Phase::kWaiting, 1, 0});
  EXPECT_EQ(TakeGrant(a), grant);
  EXPECT_TRUE(mail_.TakeOne<HeartbeatAck>(a.peer));
  Deliver(a.peer, Heartbeat{a.id, Phase::kComputing, 2, grant->number});
  EXPECT_FALSE(TakeGrant(a));
}

// ---- Whole runs ----

TEST_F(CoordinatorStep, Case22_EverySampleOnceWhateverTheSizes) {
  for (const auto& [dataset, batch, workers] : std::vector<std::tuple<uint64_t, uint64_t, size_t>>{
           {100, 10, 2}, {103, 10, 3}, {7, 64, 2}, {2, 64, 5}, {1, 1, 3}, {64, 5, 7}}) {
    SCOPED_TRACE(testing::Message() << dataset << " samples, batch " << batch << ", " << workers << " workers");
    servers_.clear();
    dataset_ = dataset;
    job_.batch = batch;
    job_.epochs = 3;
    std::vector<std::string> names;
    for (size_t i = 0; i < workers; ++i) names.push_back("w" + std::to_string(i));
    ASSERT_NO_FATAL_FAILURE(Start(2, names));
    std::vector<Worker> all;
    for (const std::string& name : names) all.push_back(Find(name));
    EXPECT_EQ(coordinator_->job_steps(), 3 * ((dataset + batch - 1) / batch));
    RunToTheEnd(all);
    ASSERT_EQ(state(), State::kFinished);
    const auto commits = Commits();
    EXPECT_EQ(commits.size(), coordinator_->job_steps());
    std::map<uint64_t, std::vector<int>> counts;
    for (const CommitRecord& record : commits) {
      uint64_t samples = 0;
      for (const Contribution& c : record.seal.contributors) {
        std::vector<int>& epoch = counts[c.lease.epoch];
        epoch.resize(dataset);
        for (const SampleRange& range : c.lease.ranges) {
          for (uint64_t p = range.begin; p < range.end; ++p) ++epoch[p];
        }
        samples += c.lease.samples();
      }
      EXPECT_LE(samples, batch);
    }
    ASSERT_EQ(counts.size(), 3u);
    for (const auto& [epoch, count] : counts) EXPECT_EQ(count, std::vector<int>(dataset, 1)) << "epoch " << epoch;
    EXPECT_EQ(coordinator_->ledger().consumed(), 3 * dataset);
  }
}

TEST_F(CoordinatorStep, TheJobEndsAfterItsStepsAndOneWorkerEvaluates) {
  job_.max_steps = 3;
  job_.epochs = 0;
  Start(2, {"a", "b"});
  const Worker a = Find("a");
  const Worker b = Find("b");
  EXPECT_EQ(coordinator_->job_steps(), 3u);
  RunToTheEnd({a, b});
  EXPECT_EQ(version(), 4u);
  EXPECT_FALSE(TakeGrant(a));  // nothing was given ahead of the end
  const auto for_a = mail_.TakeOne<Finish>(a.peer);
  const auto for_b = mail_.TakeOne<Finish>(b.peer);
  ASSERT_TRUE(for_a && for_b);
  EXPECT_EQ(for_a->version, Version{4});
  EXPECT_NE(for_a->evaluate, for_b->evaluate);
  EXPECT_FALSE(ServerGot<Finish>(0).empty());
  // The evaluator dies before it has reported: the other one is asked.
  const Worker evaluator = for_a->evaluate ? a : b;
  const Worker other = for_a->evaluate ? b : a;
  Close(evaluator.peer);
  EXPECT_EQ(mail_.TakeOne<Finish>(other.peer), (Finish{{4}, true}));
  Deliver(other.peer, Report{other.id, {4}, {}, true, {{"accuracy", 0.75}}});
  EXPECT_EQ(coordinator_->evaluation().at("accuracy"), 0.75);
  EXPECT_FALSE(coordinator_->Done(now_));
  Deliver(other.peer, Leave{other.id, "done"});
  EXPECT_TRUE(mail_.TakeOne<LeaveAck>(other.peer));
  now_ = now_ + job_.linger();
  EXPECT_TRUE(coordinator_->Done(now_));
}

TEST_F(CoordinatorStep, TheEndWaitsUntilTheLastVersionIsEverywhere) {
  job_.max_steps = 1;
  Start(2, {"a"});
  servers_[1].applies = false;
  const Worker a = Find("a");
  StageAll(a, *TakeGrant(a));
  EXPECT_EQ(version(), 2u);
  EXPECT_FALSE(mail_.TakeOne<Finish>(a.peer));
  servers_[1].applies = true;
  Pass(job_.retransmit() * 2, {a});
  EXPECT_EQ(state(), State::kFinished);
}

TEST_F(CoordinatorStep, MetricsAreMeansOverTheSamples) {
  Start(2, {"a", "b", "c"});
  const Worker workers[] = {Find("a"), Find("b"), Find("c")};
  std::vector<Grant> grants;
  for (const Worker& worker : workers) grants.push_back(*TakeGrant(worker));
  Deliver(workers[0].peer, Report{workers[0].id, {1}, grants[0].lease.id, false, {{"loss", 1}}});
  Deliver(workers[1].peer, Report{workers[1].id, {1}, grants[1].lease.id, false, {{"loss", 2}, {"extra", 5}}});
  Deliver(workers[2].peer, Report{workers[2].id, {1}, grants[2].lease.id, false, {{"loss", 3}}});
  for (size_t i = 0; i < 3; ++i) StageAll(workers[i], grants[i]);
  const auto metrics = Commits()[0].metrics;
  EXPECT_DOUBLE_EQ(metrics.at("loss"), (3 * 1 + 3 * 2 + 4 * 3) / 10.0);
  EXPECT_DOUBLE_EQ(metrics.at("extra"), 5);
}

// Reports of contributions that never counted must not fill the memory that later ones need.
TEST_F(CoordinatorStep, ReportsOfStepsThatAreOverAreForgotten) {
  job_.epochs = 0;
  job_.max_steps = 1000;
  Start(2, {"a"});
  const Worker a = Find("a");
  for (uint64_t step = 1; step <= 3; ++step) {
    const auto grant = TakeGrant(a);
    ASSERT_TRUE(grant);
    for (uint64_t i = 0; i < limits::kMaxSlots / 2; ++i)
      Deliver(a.peer, Report{a.id, {step}, {1 + i}, false, {{"loss", 9}}});
    Deliver(a.peer, Report{a.id, {step + 2}, {7}, false, {{"loss", 9}}});  // of a version that is far off
    Deliver(a.peer, Report{a.id, {step}, grant->lease.id, false, {{"loss", 1}}});
    StageAll(a, *grant);
    const auto commits = Commits();
    ASSERT_EQ(commits.size(), 1u);
    EXPECT_EQ(commits[0].metrics, (std::map<std::string, double>{{"loss", 1}})) << "step " << step;
  }
}

}  // namespace
}  // namespace everstep
