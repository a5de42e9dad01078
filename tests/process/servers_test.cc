// Servers that die, join and are drained while the job runs, the coordinator's among them. Each test compares the final
// parameters with those of a run that nothing happened to: the same contributions must give the same bits.
#include <signal.h>

#include "base/file.h"
#include "tests/process/process_test.h"

namespace everstep::test {
namespace {

using testing::HasSubstr;

constexpr uint64_t kDataset = 12'000;
const Flags kModel{"--dataset=12000", "--elements=6000", "--compute-ms=4"};

class ServersTest : public ProcessTest {
 protected:
  // All may take office: they share the folder of the record.
  void StartReplicated(size_t count, Flags more = {"--timeout-s=10"}) {
    Flags job{"--epochs=1",
              "--batch=40",
              "--learning-rate=0.3",
              "--momentum=0.9",
              "--chunk-bytes=1024",
              "--no-progress",
              "--state=" + cluster.path("state"),
              "--servers=" + std::to_string(count)};
    job.insert(job.end(), more.begin(), more.end());
    Must(cluster.StartServer(job));
    Must(cluster.WaitForAddress(0));
    for (size_t i = 1; i < count; ++i) JoinServer();
  }
  Program& JoinServer(std::optional<std::string> address = {}) {
    const std::string name = "ps" + std::to_string(next_++);
    Program* server = Must(cluster.StartServer(
        {"--join=" + address.value_or(cluster.address(0)), "--state=" + cluster.path("state"), "--no-progress",
         "--records=" + cluster.path(name + ".jsonl"), "--report=" + cluster.path(name + ".json")}));
    Must(cluster.WaitForAddress(next_ - 1));
    return *server;
  }
  Program& StartModelWorker(const std::string& name) {
    Flags flags = kModel;
    flags.push_back("--dump=" + cluster.path(name + ".bin"));
    return StartWorker(name, flags);
  }
  // What all coordinators together have committed; where two of them name a step they must agree.
  std::vector<CommitLine> AllCommits() {
    std::map<uint64_t, CommitLine> steps;
    std::vector<std::string> files{"records.jsonl"};
    for (size_t i = 1; i < next_; ++i) files.push_back("ps" + std::to_string(i) + ".jsonl");
    for (const std::string& file : files) {
      for (CommitLine& line : ReadCommits(cluster.path(file))) {
        const auto [it, fresh] = steps.try_emplace(line.step, line);
        EXPECT_EQ(it->second.digest, line.digest) << "two histories of step " << line.step;
      }
    }
    std::vector<CommitLine> all;
    for (auto& [step, line] : steps) all.push_back(std::move(line));
    return all;
  }
  // The worker finished, the ledger is exact, and its parameters are those of an undisturbed run.
  void ExpectSameAsUndisturbed(Program& worker) {
    EXPECT_EQ(Must(worker.Wait(std::chrono::seconds(60))), 0) << worker.log();
    const auto commits = AllCommits();
    Must(CheckChain(commits));
    Must(CheckLedger(commits, kDataset, 1));
    const std::string got = Must(ReadFile(cluster.path(worker.name() + ".bin")));
    Cluster calm;
    Must(calm.StartServers(1, {"--epochs=1", "--batch=40", "--learning-rate=0.3", "--momentum=0.9",
                               "--chunk-bytes=1024", "--timeout-s=10", "--no-progress"}));
    Must(calm.StartWorker("a", {"--dataset=12000", "--elements=6000", "--dump=" + calm.path("a.bin")}));
    Must(calm.WaitForCleanEnd(std::chrono::seconds(60)));
    EXPECT_EQ(got, Must(ReadFile(calm.path("a.bin")))) << "other bits than without the disturbance";
  }
  uint64_t BytesOf(const json& status, const std::string& server) {
    for (const json& s : status.at("servers")) {
      if (s.at("name") == server) return s.at("bytes").get<uint64_t>();
    }
    return 0;
  }

  size_t next_ = 1;
};

TEST_F(ServersTest, Case1AKilledServerIsReplacedByItsCopiesAndNothingIsLost) {
  StartReplicated(3);
  Program& a = StartModelWorker("a");
  Must(cluster.WaitForStep(30));
  const uint64_t before = Must(cluster.AskStatus()).at("step");
  cluster.server(1).Kill();
  Must(cluster.WaitForEvent("server-lost", "ps1"));
  Must(cluster.WaitForStep(before + 20));
  EXPECT_TRUE(a.running());
  // The copies that were lost are made again on those that are left.
  Must(cluster.WaitFor("two copies of everything", [&](const json& s) {
    return BytesOf(s, "ps0") == BytesOf(s, "ps2") && BytesOf(s, "ps0") >= 24'000;
  }));
  ExpectSameAsUndisturbed(a);
  EXPECT_EQ(Must(cluster.server(0).Wait()), 0);
  EXPECT_EQ(Must(cluster.server(2).Wait()), 0);
}

TEST_F(ServersTest, Case9AKilledCoordinatorsHostIsReplacedByAnotherServer) {
  StartReplicated(3);
  Program& a = StartModelWorker("a");
  Must(cluster.WaitForStep(30));
  cluster.server(0).Kill();
  ExpectSameAsUndisturbed(a);
  EXPECT_EQ(Must(cluster.server(1).Wait()), 0) << cluster.server(1).log();
  EXPECT_EQ(Must(cluster.server(2).Wait()), 0) << cluster.server(2).log();
  const std::string both = cluster.server(1).log() + cluster.server(2).log();
  EXPECT_THAT(both, HasSubstr("takes office"));
}

TEST_F(ServersTest, Case9AFrozenCoordinatorChangesNothingWhenItWakes) {
  StartReplicated(3, {"--timeout-s=5"});
  Program& a = StartModelWorker("a");
  Must(cluster.WaitForStep(30));
  cluster.server(0).Signal(SIGSTOP);
  const Time frozen = SteadyNow();
  while (AllCommits().back().step < 60 || ReadCommits(cluster.path("records.jsonl")).back().step > 59) {
    ASSERT_LT(Seconds(SteadyNow() - frozen), 20) << "nobody took office: " << cluster.server(1).log();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  cluster.server(0).Signal(SIGCONT);
  ExpectSameAsUndisturbed(a);
  EXPECT_EQ(Must(cluster.server(0).Wait()), 0) << cluster.server(0).log();
  EXPECT_THAT(cluster.server(0).log(), HasSubstr("stands down"));
}

TEST_F(ServersTest, ANewServerGetsItsShareAndADrainedOneLeaves) {
  StartReplicated(2);
  Program& a = StartModelWorker("a");
  Must(cluster.WaitForStep(30));
  Program& fresh = JoinServer();
  Must(cluster.WaitFor("a share for ps2", [&](const json& s) { return BytesOf(s, "ps2") >= 15'000; }));
  Program& drain = *Must(cluster.Start("drain", "everstep", {"drain", "ps1", "--servers=" + cluster.address(0)}));
  EXPECT_EQ(Must(drain.Wait()), 0) << drain.log();
  EXPECT_THAT(drain.output(), HasSubstr("ps1 is empty and has left"));
  EXPECT_EQ(Must(cluster.server(1).Wait()), 0) << cluster.server(1).log();
  EXPECT_TRUE(a.running());
  ExpectSameAsUndisturbed(a);
  EXPECT_EQ(Must(fresh.Wait()), 0);
}

// Also with one copy of everything: SIGTERM empties the server first.
TEST_F(ServersTest, SigtermEmptiesAServerBeforeItEnds) {
  StartReplicated(2, {"--timeout-s=10", "--replication=1"});
  Program& a = StartModelWorker("a");
  Must(cluster.WaitForStep(30));
  cluster.server(1).Signal(SIGTERM);
  EXPECT_EQ(Must(cluster.server(1).Wait()), 0) << cluster.server(1).log();
  EXPECT_EQ(Must(cluster.AskStatus()).at("servers").size(), 1u);
  ExpectSameAsUndisturbed(a);
}

TEST_F(ServersTest, ADrainThatLeavesTooFewIsRefused) {
  StartReplicated(2, {"--timeout-s=10", "--replication=2"});
  StartModelWorker("a");
  Must(cluster.WaitForStep(3));
  Program& drain = *Must(cluster.Start("drain", "everstep", {"drain", "ps1", "--servers=" + cluster.address(0)}));
  EXPECT_EQ(Must(drain.Wait()), 2);
  EXPECT_THAT(drain.log(), HasSubstr("start another with everstep-ps --join first"));
}

// The coordinating server is started again at the same address before anybody else may take office.
TEST_F(ServersTest, ACoordinatorThatIsStartedAgainGoesOnFromTheOthersCopies) {
  const Flags job{"--epochs=1",     "--batch=40",         "--learning-rate=0.3",
                  "--momentum=0.9", "--chunk-bytes=1024", "--timeout-s=10",
                  "--no-progress",  "--servers=2",        "--state=" + cluster.path("state")};
  Must(cluster.StartServer(job));
  Must(cluster.WaitForAddress(0));
  Must(cluster.StartServer({"--join=" + cluster.address(0)}));  // it has no --state: it cannot take office
  Must(cluster.WaitForAddress(1));
  Program& a = StartModelWorker("a");
  Must(cluster.WaitForStep(30));
  cluster.server(0).Kill();
  (void)cluster.server(0).Wait();
  Flags again = job;
  again.push_back("--listen=" + cluster.address(0));
  again.push_back("--records=" + cluster.path("records.jsonl"));
  Program& second = *Must(cluster.Start("ps0-again", "everstep-ps", again));
  ExpectSameAsUndisturbed(a);
  EXPECT_EQ(Must(second.Wait()), 0) << second.log();
}

}  // namespace
}  // namespace everstep::test
