// Members that come and go, and the ledger that stays exact.
#include <signal.h>

#include "tests/process/process_test.h"
#include "tests/support/relay.h"

namespace everstep::test {
namespace {

using testing::HasSubstr;

TEST_F(ProcessTest, Case11FlapperIsBackedOffWhileTheOthersGoOn) {
  StartServers(1, {"--max-steps=1000000", "--epochs=0", "--batch=20", "--timeout-s=30"});
  Program& a = StartWorker("a", {"--compute-ms=2"});
  Must(cluster.WaitForStep(2));
  int code = 0;
  int starts = 0;
  while (starts < 10) {
    Program& flapper = StartWorker("flapper", {"--die-at=0"});
    code = Must(flapper.Wait());
    ++starts;
    if (code != 128 + SIGKILL) break;
    const uint64_t step = Must(cluster.AskStatus()).at("step");
    Must(cluster.WaitForStep(step + 2));
  }
  EXPECT_EQ(starts, 6);
  EXPECT_EQ(code, 4);
  EXPECT_THAT(cluster.worker("flapper").log(), HasSubstr("joined 5 times without one committed contribution"));
  const json status = Must(cluster.AskStatus());
  EXPECT_EQ(EventsOf(status, "worker-lost", "flapper").size(), 5u);
  EXPECT_EQ(EventsOf(status, "worker-refused", "flapper").size(), 1u);
  a.Signal(SIGTERM);
  EXPECT_EQ(Must(a.Wait()), 0);
  EXPECT_EQ(a.result().at("lives"), 1);
  EXPECT_EQ(a.result().at("links"), 2);
}

TEST_F(ProcessTest, Case13AnotherModelIsRefusedWithBothHashesAndTheRunGoesOn) {
  StartServers(1, {"--epochs=1", "--batch=20"});
  Program& a = StartWorker("a", {"--dataset=4000", "--compute-ms=2"});
  Must(cluster.WaitForStep(2));
  Program& model = StartWorker("model", {"--dataset=4000", "--elements=999"});
  EXPECT_EQ(Must(model.Wait()), 5);
  EXPECT_THAT(model.log(), testing::ContainsRegex("hash [0-9a-f]{16}, the job's has [0-9a-f]{16}"));
  EXPECT_THAT(model.log(), HasSubstr("[999]"));
  Program& data = StartWorker("data", {"--dataset=4001"});
  EXPECT_EQ(Must(data.Wait()), 5);
  EXPECT_THAT(data.log(), HasSubstr("4001"));
  EXPECT_THAT(data.log(), HasSubstr("4000"));
  Must(cluster.WaitFor("the run's end", [](const json& s) { return s.at("state") == "finished"; }));
  Must(a.Wait());
  Must(cluster.server(0).Wait());
  EXPECT_EQ(a.result().at("lives"), 1);
  EXPECT_EQ(a.result().at("links"), 2);
  Must(CheckLedger(cluster.commits(), 4000, 1));
}

TEST_F(ProcessTest, Case13AnotherProtocolVersionIsRefusedWithBothVersions) {
  StartServers(1, {"--max-steps=1000000", "--epochs=0", "--batch=20"});
  Program& a = StartWorker("a", {"--compute-ms=2"});
  Must(cluster.WaitForStep(2));
  // What this worker says arrives as another version's.
  const auto relay =
      Must(Relay::Start("tcp://127.0.0.1:0", cluster.address(), [](bool to_server, transport::Frame frame) {
        if (to_server) frame.header = WithProtocolVersion(frame.header, kProtocolVersion + 1);
        return std::optional(std::move(frame));
      }));
  Program& other = StartWorker("other", {"--servers=" + relay->address(), "--timeout-s=5"});
  EXPECT_EQ(Must(other.Wait()), 5);
  EXPECT_THAT(other.log(), HasSubstr("protocol version " + std::to_string(kProtocolVersion + 1)));
  EXPECT_THAT(other.log(), HasSubstr("speaks " + std::to_string(kProtocolVersion)));
  const uint64_t step = Must(cluster.AskStatus()).at("step");
  Must(cluster.WaitForStep(step + 5));
  EXPECT_TRUE(a.running());
}

TEST_F(ProcessTest, Case14ObserversAreNeverMembers) {
  StartServers(1, {"--max-steps=20", "--epochs=0", "--batch=20", "--workers=2:2"});
  std::vector<std::unique_ptr<Probe>> observers;
  for (int i = 0; i < 20; ++i) {
    auto& probe = *observers.emplace_back(std::make_unique<Probe>(cluster.address()));
    Hello hello;
    hello.role = PeerRole::kObserver;
    hello.name = "observer";
    probe.Send({{}, {}, hello});
    EXPECT_EQ(Must(probe.Expect<Welcome>(kPatience)).job.max_steps, 20u);
  }
  StartWorker("a");
  Must(cluster.WaitForReady(1));
  EXPECT_EQ(Must(cluster.AskStatus()).at("members").size(), 1u);
  Must(cluster.WaitForEvent("paused", "everstep"));  // the observers do not make up the minimum
  StartWorker("b");                                  // nor do they use up the maximum
  ExpectCleanEnd();
  EXPECT_EQ(cluster.report().at("members_max"), 2);
}

// Half a gigabyte goes through the two cores of a small machine while a lease is one second.
TEST_F(ProcessTest, Case15HeartbeatsGetThroughWhileBulkFillsTheLinks) {
  StartServers(2, {"--max-steps=6", "--epochs=0", "--batch=20"});
  std::vector<Program*> workers;
  for (const char* name : {"a", "b", "c"}) workers.push_back(&StartWorker(name, {"--elements=6000000"}));
  ExpectCleanEnd();
  for (Program* w : workers) {
    EXPECT_EQ(w->result().at("lives"), 1) << w->name();
    EXPECT_EQ(w->result().at("links"), 3) << w->name();
  }
  EXPECT_EQ(cluster.report().at("counters").at("losses"), 0);
}

TEST_F(ProcessTest, Case17MembersFrom4To3To5To1To4WithinAnEpoch) {
  StartServers(2, {"--epochs=1", "--batch=60"});
  const uint64_t dataset = 20000;
  const Flags flags{"--dataset=20000", "--compute-ms=15"};
  const auto reach = [&](size_t workers) {
    Must(cluster.WaitFor(std::to_string(workers) + " contributors", [&](const json&) {
      const auto commits = cluster.commits();
      return !commits.empty() && commits.back().contributors.size() == workers;
    }));
  };
  for (const char* name : {"a", "b", "c", "d"}) StartWorker(name, flags);
  reach(4);
  cluster.worker("a").Kill();
  reach(3);
  StartWorker("e", flags);
  StartWorker("f", flags);
  reach(5);
  for (const char* name : {"b", "c"}) cluster.worker(name).Kill();
  for (const char* name : {"d", "e"}) cluster.worker(name).Signal(SIGTERM);
  reach(1);
  for (const char* name : {"g", "h", "i"}) StartWorker(name, flags);
  reach(4);
  ExpectCleanEnd(dataset);
  EXPECT_EQ(cluster.report().at("samples_committed"), dataset);
  EXPECT_GE(cluster.report().at("members_max"), 5);
}

TEST_F(ProcessTest, Case18GracefulLeaveKeepsWhatIsFinishedAndReturnsTheRest) {
  StartServers(1, {"--epochs=2", "--batch=40"});
  StartWorker("a", {"--dataset=6000", "--compute-ms=10"});
  for (const char* name : {"b", "c", "d"}) {
    Program& w = StartWorker(name, {"--dataset=6000", "--compute-ms=10"});
    Must(cluster.WaitFor("a step with it", [&](const json&) {
      const auto commits = cluster.commits();
      return !commits.empty() && commits.back().step > 0 && commits.back().Names(name);
    }));
    w.Signal(SIGTERM);
    EXPECT_EQ(Must(w.Wait()), 0);
    EXPECT_THAT(w.result().at("status").get<std::string>(), HasSubstr("left on request"));
  }
  ExpectCleanEnd(6000, 2);
  // What it had contributed when it left is in the records, though its last step may be committed after it has gone.
  for (const char* name : {"b", "c", "d"}) {
    const json result = cluster.worker(name).result();
    uint64_t contributed = 0;
    for (const CommitLine& c : cluster.commits()) contributed += c.step > 0 && c.Names(name);
    EXPECT_EQ(result.at("steps").get<uint64_t>() - result.at("dropped").get<uint64_t>(), contributed) << name;
  }
  EXPECT_EQ(cluster.report().at("counters").at("losses"), 0) << "a leave is no failure";
}

TEST_F(ProcessTest, Case20DeathAtTheEndOfAnEpochNeitherRepeatsNorSkipsIt) {
  StartServers(2, {"--epochs=3", "--batch=20"});
  StartWorker("a", {"--dataset=100", "--compute-ms=4"});
  Must(cluster.WaitForReady(1));
  // Steps 5 and 10 are the last ones of their epochs.
  StartWorker("b", {"--dataset=100", "--compute-ms=4", "--die-at=5"});
  StartWorker("c", {"--dataset=100", "--compute-ms=4", "--die-at=10"});
  Must(cluster.worker("a").Wait());
  for (const char* name : {"b", "c"}) cluster.worker(name).Kill();
  ExpectCleanEnd(100, 3);
}

TEST_F(ProcessTest, Case21LeavingAndComingBackAtTheSameSizeRepeatsNothing) {
  StartServers(1, {"--epochs=1", "--batch=30"});
  StartWorker("a", {"--dataset=6000", "--compute-ms=10"});
  for (int round = 0; round < 3; ++round) {
    Program& b = StartWorker("b", {"--dataset=6000", "--compute-ms=10"});
    Must(cluster.WaitForReady(2));
    const uint64_t step = Must(cluster.AskStatus()).at("step");
    Must(cluster.WaitForStep(step + 3));
    if (round == 2) break;
    b.Signal(SIGTERM);
    Must(b.Wait());
  }
  ExpectCleanEnd(6000);
}

TEST_F(ProcessTest, Case22DatasetThatNeitherBatchNorMembersDivide) {
  StartServers(2, {"--epochs=3", "--batch=32", "--workers=3:3"});
  for (const char* name : {"a", "b", "c"}) StartWorker(name, {"--dataset=101"});
  ExpectCleanEnd(101, 3);
  EXPECT_EQ(cluster.report().at("steps_committed"), 3 * 4);
}

TEST_F(ProcessTest, Case22DatasetSmallerThanOneBatchAndThanTheMembers) {
  StartServers(1, {"--epochs=4", "--batch=64", "--workers=3:3"});
  for (const char* name : {"a", "b", "c"}) StartWorker(name, {"--dataset=2"});
  ExpectCleanEnd(2, 4);
  EXPECT_EQ(cluster.report().at("steps_committed"), 4);
}

}  // namespace
}  // namespace everstep::test
