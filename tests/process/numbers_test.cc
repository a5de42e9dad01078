// What real runs compute: poison, shapes, modes, clipping; over every address scheme.
#include <cmath>
#include <cstring>

#include "base/file.h"
#include "tests/process/process_test.h"

namespace everstep::test {
namespace {

using testing::HasSubstr;

std::vector<float> Floats(const std::string& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

class NumbersTest : public ProcessTest {
 protected:
  // The loss of each of the last quarter of the steps is below that of the first. A report travels beside the gradient
  // and may come too late for the record of its step.
  void ExpectLossFalls() {
    std::vector<double> losses;
    const auto commits = cluster.commits();
    for (const CommitLine& c : commits) {
      if (c.metrics.contains("loss")) losses.push_back(c.metrics.at("loss"));
    }
    ASSERT_GT(losses.size(), commits.size() / 2);
    for (size_t i = losses.size() - losses.size() / 4; i < losses.size(); ++i) EXPECT_LT(losses[i], losses[0]) << i;
  }
};

TEST_F(NumbersTest, Case23NanFromOneWorkerIsRefusedAndTheStepGoesOnWithoutIt) {
  StartServers(2, {"--epochs=1", "--batch=40", "--workers=2:2"});
  StartWorker("a", {"--dataset=4000"});
  Program& b = StartWorker("b", {"--dataset=4000", "--nan-at=7"});
  ExpectCleanEnd(4000);
  const json report = cluster.report();
  EXPECT_EQ(report.at("counters").at("refused_contributions"), 1);
  EXPECT_EQ(EventsOf(report, "contribution-refused", "b").size(), 1u);
  EXPECT_EQ(b.result().at("nonfinite"), 1);
  EXPECT_TRUE(std::isfinite(b.result().at("p0").get<double>()));
  const CommitLine step = cluster.commits().at(7);
  EXPECT_FALSE(step.Names("b"));
  EXPECT_TRUE(step.Names("a"));
}

TEST_F(NumbersTest, Case23NanFromEverybodyStopsTheJobWithAClearError) {
  StartServers(1, {"--epochs=1", "--batch=40", "--workers=2:2"});
  Program& a = StartWorker("a", {"--dataset=4000", "--nan-from=5"});
  Program& b = StartWorker("b", {"--dataset=4000", "--nan-from=5"});
  for (Program* w : {&a, &b, &cluster.server(0)}) {
    EXPECT_EQ(Must(w->Wait()), 6) << w->name();
    EXPECT_THAT(w->log(), HasSubstr("every contribution to step 5 holds NaN or Inf")) << w->name();
    EXPECT_THAT(w->log(), HasSubstr("intact at version 5")) << w->name();
  }
  EXPECT_EQ(cluster.report().at("version"), 5);
}

TEST_F(NumbersTest, OneServerOneWorkerLearns) {
  StartServers(1, {"--epochs=4", "--batch=50", "--learning-rate=0.5"});
  StartWorker("a", {"--model=mlp", "--dataset=1000"});
  ExpectCleanEnd(1000, 4);
  ExpectLossFalls();
}

TEST_F(NumbersTest, SevenServersWithAModelOfThreeChunks) {
  StartServers(7, {"--epochs=1", "--batch=50", "--learning-rate=0.2", "--chunk-bytes=4096"});
  // 3 x 4096 bytes.
  StartWorker("a", {"--elements=3072", "--dataset=1000", "--dump=" + cluster.path("a.bin")});
  StartWorker("b", {"--elements=3072", "--dataset=1000", "--dump=" + cluster.path("b.bin")});
  ExpectCleanEnd(1000);
  ExpectLossFalls();
  EXPECT_EQ(Must(ReadFile(cluster.path("a.bin"))), Must(ReadFile(cluster.path("b.bin"))));
}

TEST_F(NumbersTest, TensorsWithoutElementsScalarsAndBuffers) {
  StartServers(2, {"--epochs=1", "--batch=50", "--learning-rate=0.3", "--chunk-bytes=64"});
  Program& a = StartWorker("a", {"--elements=40", "--odd-shapes", "--dataset=1000", "--dump=" + cluster.path("a.bin")});
  ExpectCleanEnd(1000);
  ExpectLossFalls();
  // p, the scalar, the buffer. The scalar decays; the buffer is the mean target of the last step.
  const std::vector<float> values = Floats(Must(ReadFile(cluster.path("a.bin"))));
  ASSERT_EQ(values.size(), 42u);
  EXPECT_NEAR(values[40], std::pow(0.7, 20), 1e-5);
  EXPECT_GT(values[41], 0.2);
  EXPECT_LT(values[41], 0.8);
  EXPECT_NEAR(a.result().at("p0").get<double>(), 0.5, 0.2);
}

TEST_F(NumbersTest, AModelOfOneElement) {
  StartServers(2, {"--epochs=1", "--batch=50", "--learning-rate=0.2"});
  StartWorker("a", {"--elements=1", "--dataset=1000"});
  ExpectCleanEnd(1000);
  ExpectLossFalls();
}

TEST_F(NumbersTest, AsyncTakesEachContributionAsItComes) {
  StartServers(2, {"--mode=async", "--epochs=2", "--batch=10", "--learning-rate=0.1"});
  StartWorker("quick", {"--dataset=1000", "--compute-ms=1"});
  StartWorker("slow", {"--dataset=1000", "--compute-ms=8"});
  ExpectCleanEnd(1000, 2, false);
  ExpectLossFalls();
  size_t quick = 0, stale = 0;
  for (const CommitLine& c : cluster.commits()) {
    if (c.step == 0) continue;
    ASSERT_EQ(c.contributors.size(), 1u);
    quick += c.Names("quick");
    stale += c.contributors[0].base < c.step;
  }
  EXPECT_GT(quick, cluster.commits().size() / 2) << "nobody waits for the slow one";
  EXPECT_GT(stale, 0u);
}

TEST_F(NumbersTest, SspKeepsTheQuickestWithinItsBound) {
  StartServers(1, {"--mode=ssp", "--staleness=2", "--epochs=2", "--batch=10", "--learning-rate=0.1", "--workers=2:2"});
  StartWorker("quick", {"--dataset=1000"});
  StartWorker("slow", {"--dataset=1000", "--compute-ms=8"});
  ExpectCleanEnd(1000, 2, false);
  int ahead = 0, farthest = 0;
  const auto commits = cluster.commits();
  for (size_t i = 1; i + 1 < commits.size(); ++i) {
    ahead += commits[i].Names("quick") ? 1 : -1;
    farthest = std::max(farthest, ahead);
  }
  EXPECT_LE(farthest, 3) << "at most `staleness` may be started ahead of the slowest";
  EXPECT_GE(farthest, 2) << "but it need not wait for each step";
}

TEST_F(NumbersTest, QuorumAndGraceGoOnWithoutAStraggler) {
  StartServers(1, {"--epochs=1", "--batch=40", "--quorum=0.5", "--grace-ms=20"});
  Program& slow = StartWorker("slow", {"--dataset=2000", "--compute-ms=120"});
  Must(cluster.WaitForReady(1));
  StartWorker("quick", {"--dataset=2000", "--compute-ms=2"});
  ExpectCleanEnd(2000);
  size_t without = 0;
  for (const CommitLine& c : cluster.commits()) without += c.step > 0 && !c.Names("slow");
  EXPECT_GT(without, 10u);
  EXPECT_GT(slow.result().at("dropped"), 0);
  EXPECT_EQ(slow.result().at("lives"), 1) << "a straggler stays a member";
}

// The norm is one of all shards together: two servers clip exactly as one does.
TEST_F(NumbersTest, ClippingByTheGlobalNormIsTheSameOverTwoServers) {
  const auto train = [](Cluster& where, size_t servers) {
    Must(where.StartServers(servers,
                            {"--timeout-s=10", "--no-progress", "--epochs=1", "--batch=50", "--learning-rate=0.3",
                             "--momentum=0.9", "--clip-norm=0.05", "--chunk-bytes=256"}));
    Must(where.StartWorker("a", {"--model=mlp", "--dataset=1000", "--dump=" + where.path("a.bin")}));
    Must(where.WaitForCleanEnd());
    return Must(ReadFile(where.path("a.bin")));
  };
  Cluster one;
  EXPECT_EQ(train(one, 1), train(cluster, 2));
  size_t clipped = 0;
  for (const CommitLine& c : cluster.commits()) clipped += c.scale < 1;
  EXPECT_GT(clipped, 10u);
}

TEST(AddressTest, IpcTrainsLikeTcpAndLeavesNoSocket) {
  std::vector<std::string> dumps;
  for (const char* scheme : {"tcp", "ipc"}) {
    Cluster cluster(Cluster::Options{scheme, ""});
    Must(cluster.StartServers(2, {"--timeout-s=10", "--no-progress", "--epochs=1", "--batch=50", "--workers=2:2"}));
    EXPECT_EQ(cluster.address(1).substr(0, 3), scheme);
    for (const char* name : {"a", "b"}) {
      Must(cluster.StartWorker(
          name, {"--model=mlp", "--dataset=1000", "--dump=" + cluster.path(std::string(name) + ".bin")}));
    }
    Must(cluster.WaitForCleanEnd());
    Must(CheckLedger(cluster.commits(), 1000, 1));
    dumps.push_back(Must(ReadFile(cluster.path("a.bin"))));
    EXPECT_THAT(cluster.Sockets(), testing::IsEmpty());
  }
  EXPECT_EQ(dumps[0], dumps[1]);
}

}  // namespace
}  // namespace everstep::test
