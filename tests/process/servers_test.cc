// Servers that die, join and are drained while the job runs, the coordinator's among them.
#include <fstream>

#include "tests/process/servers_testing.h"

namespace everstep::test {
namespace {

using testing::HasSubstr;

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
  ASSERT_NO_FATAL_FAILURE(FreezeTheCoordinatorMeanwhile());
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
  // As if the kill had met it in the middle of a line: that must not spoil the next one.
  std::ofstream(cluster.path("records.jsonl"), std::ios::app) << R"({"step":)";
  Flags again = job;
  again.push_back("--listen=" + cluster.address(0));
  again.push_back("--records=" + cluster.path("records.jsonl"));
  Program& second = *Must(cluster.Start("ps0-again", "everstep-ps", again));
  ExpectSameAsUndisturbed(a);
  EXPECT_EQ(Must(second.Wait()), 0) << second.log();
}

// A power cut: the record names servers that hold nothing any more. The newest checkpoint does.
TEST_F(ServersTest, Case31AllServersKilledAtOnceGoOnFromTheCheckpoint) {
  const Flags both{"--state=" + cluster.path("state"), "--checkpoints=" + cluster.path("ckpt"), "--checkpoint-every=10",
                   "--no-progress"};
  Flags first{"--epochs=1",  "--batch=40",         "--learning-rate=0.3", "--momentum=0.9",
              "--servers=2", "--chunk-bytes=1024", "--timeout-s=10"};
  first.insert(first.end(), both.begin(), both.end());
  Must(cluster.StartServer(first));
  Must(cluster.WaitForAddress(0));
  Flags second = both;
  second.push_back("--join=" + cluster.address(0));
  Must(cluster.StartServer(second));
  Must(cluster.WaitForAddress(1));
  next_ = 2;
  Program& a = StartModelWorker("a");
  Must(cluster.WaitForStep(30));
  Must(cluster.WaitFor("a checkpoint", [](const json& s) { return !EventsOf(s, "checkpoint").empty(); }));
  for (size_t i : {0, 1}) cluster.server(i).Kill();
  first.insert(first.end(), {"--listen=" + cluster.address(0), "--records=" + cluster.path("records.jsonl")});
  second.push_back("--listen=" + cluster.address(1));
  Program& again0 = *Must(cluster.Start("ps0-again", "everstep-ps", first));
  Program& again1 = *Must(cluster.Start("ps1-again", "everstep-ps", second));
  ExpectSameAsUndisturbed(a);
  EXPECT_EQ(Must(again0.Wait()), 0) << again0.log();
  EXPECT_EQ(Must(again1.Wait()), 0) << again1.log();
  EXPECT_THAT(again0.log(), HasSubstr("resuming job"));
}

}  // namespace
}  // namespace everstep::test
