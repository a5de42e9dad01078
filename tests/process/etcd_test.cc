// Servers that find each other and elect their coordinator through a real etcd.
#include "tests/support/etcd.h"
#include "tests/process/servers_testing.h"

namespace everstep::test {
namespace {

using testing::HasSubstr;

class EtcdServersTest : public ServersTest {
 protected:
  std::string RecordFlag() override { return "--etcd=" + etcd_->url(); }

  // All with the same flags: who coordinates is theirs to settle.
  void StartEqual(size_t count, const std::string& timeout = "10") {
    for (size_t i = 0; i < count; ++i) {
      const std::string name = "ps" + std::to_string(i);
      Must(cluster.StartServer({"--name=fashion", "--epochs=1", "--batch=40", "--learning-rate=0.3", "--momentum=0.9",
                                "--chunk-bytes=1024", "--no-progress", RecordFlag(), "--timeout-s=" + timeout,
                                "--servers=" + std::to_string(count)}));
      Must(cluster.WaitForAddress(i));
    }
    next_ = count;
  }

  std::unique_ptr<Etcd> etcd_ = Must(Etcd::Start());
};

TEST_F(EtcdServersTest, AKilledCoordinatorIsReplacedThroughEtcd) {
  StartReplicated(3);
  Program& a = StartModelWorker("a");
  Must(cluster.WaitForStep(30));
  cluster.server(0).Kill();
  ExpectSameAsUndisturbed(a);
  EXPECT_EQ(Must(cluster.server(1).Wait()), 0) << cluster.server(1).log();
  EXPECT_EQ(Must(cluster.server(2).Wait()), 0) << cluster.server(2).log();
}

TEST_F(EtcdServersTest, AFrozenCoordinatorChangesNothingWhenItWakes) {
  StartReplicated(3, {"--timeout-s=5"});
  Program& a = StartModelWorker("a");
  Must(cluster.WaitForStep(30));
  ASSERT_NO_FATAL_FAILURE(FreezeTheCoordinatorMeanwhile());
  ExpectSameAsUndisturbed(a);
  EXPECT_THAT(cluster.server(0).log(), HasSubstr("stands down"));
}

// Case 28: without etcd training goes on; a server's death then waits for it, and nothing is lost.
TEST_F(EtcdServersTest, WithoutEtcdTrainingGoesOnAndADeathWaitsForIt) {
  StartReplicated(3, {"--timeout-s=20"});
  Program& a = StartModelWorker("a");
  Must(cluster.WaitForStep(20));
  etcd_->Freeze();
  const uint64_t before = Must(cluster.AskStatus()).at("step");
  Must(cluster.WaitForStep(before + 60));
  cluster.server(2).Kill();
  Must(cluster.WaitForEvent("server-lost", "ps2"));
  std::this_thread::sleep_for(std::chrono::seconds(2));
  const uint64_t stuck = Must(cluster.AskStatus()).at("step");
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_EQ(Must(cluster.AskStatus()).at("step").get<uint64_t>(), stuck) << "a map was changed without its record";
  etcd_->Thaw();
  Must(cluster.WaitForStep(stuck + 10));
  ExpectSameAsUndisturbed(a);
}

TEST_F(EtcdServersTest, EtcdMayBeRestarted) {
  StartReplicated(2);
  Program& a = StartModelWorker("a", 30);
  Must(cluster.WaitForStep(20));
  etcd_->Kill();
  Must(cluster.WaitForStep(60));
  Must(etcd_->Restart());
  Program& fresh = JoinServer();
  Must(cluster.WaitFor("a share for ps2", [&](const json& s) { return BytesOf(s, "ps2") >= 15'000; }));
  ExpectSameAsUndisturbed(a);
  EXPECT_EQ(Must(fresh.Wait()), 0);
}

TEST_F(EtcdServersTest, TwoJobsShareOneEtcd) {
  StartReplicated(2);
  Cluster other;
  Must(other.StartServer(
      {"--name=other", "--max-steps=40", "--epochs=0", "--batch=4", "--no-progress", RecordFlag(), "--timeout-s=10"}));
  Must(other.WaitForAddress(0));
  Must(other.StartWorker("b"));
  Program& a = StartModelWorker("a");
  Must(other.WaitForCleanEnd());
  ExpectSameAsUndisturbed(a);
}

}  // namespace
}  // namespace everstep::test
