// Processes that die, freeze or hang, and what the others see.
#include <signal.h>

#include <atomic>
#include <set>

#include "base/file.h"
#include "tests/process/process_test.h"
#include "tests/support/relay.h"

namespace everstep::test {
namespace {

using testing::HasSubstr;

// The job's own death: with replication 1 a server takes its part of the parameters with it.
TEST_F(ProcessTest, Case1KilledServerEndsTheJobForEverybodyWithItsName) {
  StartServers(2, {"--max-steps=1000000", "--batch=8", "--epochs=0", "--timeout-s=5", "--replication=1"});
  Program& a = StartWorker("a", {"--compute-ms=5"});
  Program& b = StartWorker("b", {"--compute-ms=5"});
  Must(cluster.WaitForReady(2));
  Must(cluster.WaitForStep(3));
  cluster.server(1).Kill();
  const Time killed = SteadyNow();
  for (Program* worker : {&a, &b}) {
    EXPECT_EQ(Must(worker->Wait()), 6);
    EXPECT_THAT(worker->log(), HasSubstr("server ps1 at " + cluster.address(1) + " is gone"));
  }
  EXPECT_EQ(Must(cluster.server(0).Wait()), 6);
  EXPECT_LT(Seconds(SteadyNow() - killed), 5) << "a lease is half a second";
  EXPECT_THAT(cluster.report().at("failure"), HasSubstr("server ps1"));
  Must(CheckChain(cluster.commits()));
}

TEST_F(ProcessTest, Case1KilledCoordinatorIsLookedForAndNamedWithinTheTimeout) {
  StartServers(2, {"--max-steps=1000000", "--batch=8", "--epochs=0", "--timeout-s=3"});
  Program& a = StartWorker("a", {"--compute-ms=5"});
  Must(cluster.WaitForStep(3));
  const std::string address = cluster.address(0);
  cluster.server(0).Kill();
  const Time killed = SteadyNow();
  EXPECT_EQ(Must(a.Wait()), 4);
  EXPECT_THAT(a.log(), HasSubstr(address));
  EXPECT_EQ(Must(cluster.server(1).Wait()), 4);
  EXPECT_THAT(cluster.server(1).log(), HasSubstr("no coordinator at " + address));
  EXPECT_GT(Seconds(SteadyNow() - killed), 2) << "it was not waited for at all";
  EXPECT_LT(Seconds(SteadyNow() - killed), 10);
}

TEST_F(ProcessTest, Case2NewLifeOfANameIsAdmittedAtOnceAndTheOldOneEnds) {
  StartServers(1, {"--max-steps=1000000", "--batch=8", "--epochs=0", "--timeout-s=60"});
  StartWorker("a", {"--compute-ms=5"});
  Program& old_b = StartWorker("b", {"--compute-ms=5"});
  Must(cluster.WaitForReady(2));
  old_b.Signal(SIGSTOP);  // its lease runs for 6 s
  Program& new_b = *Must(
      cluster.Start("b2", "everstep-plain-worker", {"--name=b", "--servers=" + cluster.address(), "--compute-ms=5"}));
  Must(cluster.WaitForEvent("worker-fenced", "b", std::chrono::seconds(5)));
  Must(cluster.WaitFor("two workers on", [](const json& s) { return s.at("members").size() == 2; }));
  // The old life does not fight for the name when it wakes.
  old_b.Signal(SIGCONT);
  EXPECT_EQ(Must(old_b.Wait()), 5);
  EXPECT_THAT(old_b.log(), HasSubstr("a new life of b has joined"));
  const uint64_t step = Must(cluster.AskStatus()).at("step");
  Must(cluster.WaitForStep(step + 5));
  EXPECT_TRUE(new_b.running());
  EXPECT_EQ(EventsOf(Must(cluster.AskStatus()), "worker-fenced").size(), 1u);
}

TEST_F(ProcessTest, Case2KilledAndRestartedWithTheSameNameGoesOn) {
  StartServers(1, {"--epochs=1", "--batch=20"});
  StartWorker("a", {"--dataset=2000", "--compute-ms=15"});
  for (int life = 0; life < 3; ++life) {
    Program& b = StartWorker("b", {"--dataset=2000", "--compute-ms=15"});
    Must(cluster.WaitFor("a step with b", [&](const json&) {
      const auto commits = cluster.commits();
      return !commits.empty() && commits.back().Names("b");
    }));
    if (life < 2) b.Kill();
  }
  ExpectCleanEnd(2000);
}

TEST_F(ProcessTest, Case3FrozenWorkerIsFencedAndJoinsAgainByItself) {
  StartServers(2, {"--epochs=1", "--batch=30", "--chunk-bytes=2048"});
  Program& a = StartWorker("a", {"--dataset=30000", "--compute-ms=2"});
  Program& b = StartWorker("b", {"--dataset=30000", "--compute-ms=2", "--announce"});
  Must(cluster.WaitForReady(2));
  Must(cluster.WaitForBegin("b"));
  b.Signal(SIGSTOP);
  Must(cluster.WaitForEvent("worker-fenced", "b"));
  const uint64_t fenced_at = Must(cluster.AskStatus()).at("step");
  Must(cluster.WaitForStep(fenced_at + 5));
  b.Signal(SIGCONT);
  Must(cluster.WaitFor("b to be back", [&](const json& s) {
    return s.at("members").size() == 2 && s.at("members").at(1).at("contributions").get<uint64_t>() > 0;
  }));
  ExpectCleanEnd(30000);
  EXPECT_EQ(a.result().at("lives"), 1);
  EXPECT_EQ(a.result().at("links"), 3);
  EXPECT_EQ(b.result().at("lives"), 2);
  EXPECT_THAT(b.log(), HasSubstr("excluded"));
  // What the fenced life contributed late is in no step: from the fence on, b's steps carry its new life.
  std::set<std::string> lives;
  for (const CommitLine& c : cluster.commits()) {
    for (const ContributorLine& w : c.contributors) {
      if (w.name == "b" && c.step > fenced_at) lives.insert(w.worker);
    }
  }
  EXPECT_EQ(lives.size(), 1u);
}

// Part of the gradient reaches one server, the rest never leaves; then the worker dies.
TEST_F(ProcessTest, Case4DeathAfterReachingOneOfTwoServersLeavesNoTrace) {
  const Flags job{"--epochs=1",    "--batch=40",  "--chunk-bytes=2048", "--timeout-s=10",
                  "--no-progress", "--servers=2", "--learning-rate=0.5"};
  Must(cluster.StartServer(job));
  Must(cluster.WaitForAddress(0));
  // The second server is reached through a relay, which can lose what b pushes.
  std::atomic<uint64_t> lose_of{0};
  std::atomic<int> lost{0};
  const std::string real = "ipc://" + cluster.path("ps1.sock");
  const auto relay = Must(Relay::Start("tcp://127.0.0.1:0", real, [&](bool to_server, transport::Frame frame) {
    const Result<Envelope> message = Decode(frame.header);
    const Push* push = message.ok() && to_server ? std::get_if<Push>(&message->body) : nullptr;
    if (push == nullptr || push->contribution.worker.value != lose_of) return std::optional(std::move(frame));
    ++lost;
    return std::optional<transport::Frame>();
  }));
  Must(cluster.StartServer({"--join=" + cluster.address(0), "--listen=" + real, "--advertise=" + relay->address()}));
  StartWorker("a", {"--dataset=12000", "--compute-ms=3", "--dump=" + cluster.path("a.bin")});
  Must(cluster.WaitForReady(1));
  Program& b = StartWorker("b", {"--dataset=12000", "--compute-ms=3"});
  Must(cluster.WaitFor("b to have joined", [&](const json& s) {
    if (s.at("members").size() < 2) return false;
    lose_of = std::stoull(s.at("members").at(1).at("life").get<std::string>(), nullptr, 16);
    return true;
  }));
  // The first server holds b's part of the step; the step cannot be whole.
  Must(cluster.WaitFor("a lost push and a staged one",
                       [&](const json& s) { return lost > 0 && s.at("server").at("slots").get<int>() == 2; }));
  const uint64_t step = Must(cluster.AskStatus()).at("version");
  b.Kill();
  Must(cluster.WaitForStep(step));
  EXPECT_FALSE(cluster.commits().at(step).Names("b"));
  ExpectCleanEnd(12000);
  // All elements saw the same contributions, on whichever server they lie.
  const std::string dump = Must(ReadFile(cluster.path("a.bin")));
  std::set<std::string> values;
  for (size_t i = 0; i < dump.size(); i += 4) values.insert(dump.substr(i, 4));
  EXPECT_EQ(values.size(), 1u);
}

TEST_F(ProcessTest, Case7NobodyAtTheAddressEndsWithinTheDeadlineAndNamesIt) {
  const Time began = SteadyNow();
  Program& w = StartWorker("w", {"--servers=tcp://127.0.0.1:1", "--timeout-s=1"});
  EXPECT_EQ(Must(w.Wait()), 4);
  EXPECT_THAT(w.log(), HasSubstr("tcp://127.0.0.1:1"));
  EXPECT_LT(Seconds(SteadyNow() - began), 6);
  Program& s = *Must(cluster.StartServer({"--join=tcp://127.0.0.1:1", "--find-timeout-s=1"}));
  EXPECT_EQ(Must(s.Wait()), 4);
  EXPECT_THAT(s.log(), HasSubstr("no coordinator at tcp://127.0.0.1:1"));
}

TEST_F(ProcessTest, Case7WrongJobNameIsRefusedAtOnceWithBothNames) {
  StartServers(1, {"--name=apples", "--max-steps=1000"});
  Program& w = StartWorker("w", {"--job=pears"});
  EXPECT_EQ(Must(w.Wait()), 5);
  EXPECT_THAT(w.log(), HasSubstr("apples"));
  EXPECT_THAT(w.log(), HasSubstr("pears"));
}

TEST_F(ProcessTest, Case7AServerThatDoesNotCoordinateLeadsToTheOneThatDoes) {
  StartServers(2, {"--max-steps=20"});
  Program& w = StartWorker("w", {"--servers=" + cluster.address(1)});
  EXPECT_EQ(Must(w.Wait()), 0) << w.log();
  ExpectCleanEnd();
}

TEST_F(ProcessTest, Case7ServersThatNeverComeEndTheWaitWithWhoCame) {
  Program& ps = *Must(cluster.StartServer({"--servers=3", "--max-steps=1000", "--timeout-s=2", "--no-progress"}));
  Must(cluster.WaitForAddress(0));
  Program& w = StartWorker("w");
  EXPECT_EQ(Must(w.Wait()), 4);
  EXPECT_THAT(w.log(), HasSubstr("1 of 3 servers"));
  EXPECT_THAT(w.log(), HasSubstr(cluster.address(0)));
  EXPECT_EQ(Must(ps.Wait()), 4);
}

// A server that is only silent may come back; nothing is committed without it, and nothing is lost.
TEST_F(ProcessTest, Case8FrozenServerStopsTheStepUntilItIsBack) {
  StartServers(2, {"--epochs=1", "--batch=20", "--timeout-s=5", "--replication=1"});
  Program& a = StartWorker("a", {"--dataset=4000", "--compute-ms=10"});
  Must(cluster.WaitForStep(5));
  cluster.server(1).Signal(SIGSTOP);
  Must(cluster.WaitFor("nothing to move for two leases", [last = json(), since = Time{}](const json& s) mutable {
    if (s.at("version") != last) {
      last = s.at("version");
      since = SteadyNow();
    }
    return SteadyNow() - since > std::chrono::seconds(1);
  }));
  cluster.server(1).Signal(SIGCONT);
  ExpectCleanEnd(4000);
  EXPECT_TRUE(a.result().at("finished"));
}

TEST_F(ProcessTest, Case10NothingDependsOnTheFirstWorker) {
  StartServers(1, {"--epochs=1", "--batch=20"});
  Program& first = StartWorker("first", {"--dataset=4000", "--compute-ms=10"});
  Must(cluster.WaitForReady(1));
  Program& second = StartWorker("second", {"--dataset=4000", "--compute-ms=10"});
  Must(cluster.WaitForReady(2));
  Must(cluster.WaitForStep(5));
  first.Kill();
  ExpectCleanEnd(4000);
  EXPECT_TRUE(second.result().at("finished"));
  EXPECT_TRUE(cluster.report().at("evaluation").contains("p0"));
}

// The first worker dies while it offers the initial values of a large model; another one takes over.
TEST_F(ProcessTest, Case10AnotherWorkerInitialisesWhenTheFirstDiesMeanwhile) {
  StartServers(2, {"--max-steps=3", "--epochs=0", "--batch=4"});
  Program& first = StartWorker("first", {"--elements=8000000"});
  Must(cluster.WaitForEvent("worker-ready", "first"));
  first.Kill();
  Program& second = StartWorker("second", {"--elements=8000000"});
  ExpectCleanEnd();
  EXPECT_TRUE(second.result().at("finished"));
}

TEST_F(ProcessTest, Case12BelowTheMinimumTheJobPausesAndGoesOnAtTheSameStep) {
  StartServers(2, {"--epochs=1", "--batch=20", "--workers=2:4"});
  StartWorker("a", {"--dataset=3000", "--compute-ms=2"});
  Program& b = StartWorker("b", {"--dataset=3000", "--compute-ms=2"});
  Must(cluster.WaitForStep(5));
  b.Kill();
  Must(cluster.WaitForEvent("paused", "everstep"));
  const json paused = Must(cluster.AskStatus());
  EXPECT_EQ(paused.at("state"), "paused");
  StartWorker("c", {"--dataset=3000", "--compute-ms=2"});
  Must(cluster.WaitForEvent("resumed", "everstep"));
  ExpectCleanEnd(3000);
  const auto commits = cluster.commits();
  const uint64_t step = paused.at("version");
  EXPECT_GT(commits.at(step).committed_ms, EventsOf(cluster.report(), "resumed").at(0).at("at_ms").get<double>());
  for (const CommitLine& c : commits) EXPECT_GE(c.step == 0 ? 2 : c.members, 2u) << "step " << c.step;
}

// A step that takes three leases is no hang; a step that never ends is one, and costs the others one deadline.
TEST_F(ProcessTest, Case16SlowStepIsWaitedForAndAHangIsExpelled) {
  StartServers(1, {"--epochs=1", "--batch=20", "--timeout-s=1"});
  Program& a = StartWorker("a", {"--dataset=600", "--compute-ms=2", "--slow-at=4", "--slow-ms=400"});
  Program& h = StartWorker("h", {"--dataset=600", "--compute-ms=2", "--hang-at=8"});
  Must(cluster.WaitFor(
      "the hang to be expelled",
      [](const json& s) {
        for (const json& e : EventsOf(s, "worker-fenced", "h")) {
          if (e.at("detail").get<std::string>().starts_with("it made no progress for 10 s")) return true;
        }
        return false;
      },
      std::chrono::seconds(30)));
  // Its live network thread does not bring it back in to hold up the next step as well.
  EXPECT_EQ(Must(a.Wait(std::chrono::seconds(8))), 0);
  h.Kill();
  ExpectCleanEnd(600);
  for (const json& e : EventsOf(cluster.report(), "worker-fenced", "a")) {
    EXPECT_THAT(e.at("detail").get<std::string>(), Not(HasSubstr("no progress")));
  }
}

}  // namespace
}  // namespace everstep::test
