// Strangers at every port: the processes live, memory stays bounded, and the job beside them does not notice.
#include <signal.h>

#include <fstream>

#include "tests/process/process_test.h"
#include "tests/support/hostile.h"
#include "tests/support/seed.h"

namespace everstep::test {
namespace {

// Resident memory in MB.
double MemoryOf(pid_t pid) {
  std::ifstream statm("/proc/" + std::to_string(pid) + "/statm");
  double size = 0, resident = 0;
  statm >> size >> resident;
  return resident * 4096 / 1e6;
}

class HostileTest : public testing::TestWithParam<const char*> {};

TEST_P(HostileTest, Case39RubbishDamagedAndForgedMessagesOnEveryPort) {
  const uint64_t seed = Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  Cluster cluster(Cluster::Options{GetParam(), ""});
  const uint64_t dataset = 100000;
  Must(cluster.StartServers(
      2, {"--timeout-s=10", "--no-progress", "--epochs=1", "--batch=40", "--workers=2:8", "--chunk-bytes=2048"}));
  for (const char* name : {"a", "b"}) Must(cluster.StartWorker(name, {"--dataset=100000", "--compute-ms=2"}));
  Must(cluster.WaitForStep(3));
  const JobUid job = Must(Probe::FindJob(cluster.address(), kPatience));
  const double before = MemoryOf(cluster.server(0).pid());
  for (size_t i = 0; i < 2; ++i) {
    Must(SendRubbish(cluster.address(i), random, 60));
    SendDamagedMessages(cluster.address(i), random, 40);
    SendForgedMessages(cluster.address(i), job, random, 20);
  }
  const json status = Must(cluster.AskStatus());
  EXPECT_EQ(status.at("members").size(), 2u);
  EXPECT_EQ(status.at("counters").at("losses"), 0);
  EXPECT_GT(status.at("transport").at("refused_frames").get<int>() +
                status.at("transport").at("failed_handshakes").get<int>(),
            0);
  EXPECT_LT(MemoryOf(cluster.server(0).pid()) - before, 200);
  const uint64_t step = status.at("step");
  Must(cluster.WaitForStep(step + 5));
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(cluster.server(i).running());
  for (const char* name : {"a", "b"}) {
    cluster.worker(name).Signal(SIGTERM);
    EXPECT_EQ(Must(cluster.worker(name).Wait()), 0);
    EXPECT_EQ(cluster.worker(name).result().at("lives"), 1);
    EXPECT_EQ(cluster.worker(name).result().at("links"), 3);
  }
  Must(CheckChain(cluster.commits()));
  uint64_t used = 0;
  for (const CommitLine& c : cluster.commits()) used += c.step > 0 ? c.samples() : 0;
  EXPECT_EQ(used, Must(cluster.AskStatus()).at("samples").at("consumed").get<uint64_t>());
  EXPECT_LT(used, dataset);
}

INSTANTIATE_TEST_SUITE_P(Schemes, HostileTest, testing::Values("tcp", "ipc"),
                         [](const auto& test) { return std::string(test.param); });

// A stranger that speaks well and lies about being somebody else changes nothing.
TEST_F(ProcessTest, Case39ForgedGoodbyesAndContributionsOfAMemberChangeNothing) {
  StartServers(1, {"--epochs=1", "--batch=40"});
  StartWorker("a", {"--dataset=4000", "--compute-ms=10"});
  Must(cluster.WaitForStep(3));
  const JobUid job = Must(Probe::FindJob(cluster.address(), kPatience));
  const json member = Must(cluster.AskStatus()).at("members").at(0);
  const WorkerId victim{std::stoull(member.at("life").get<std::string>(), nullptr, 16)};
  Probe liar(cluster.address());
  liar.Send({job, {1}, Leave{victim, "goodbye"}});
  liar.Send({job, {1}, Fenced{victim, "go away"}});
  liar.Send({job, {1}, Report{victim, {3}, {7}, true, {{"accuracy", 2.0}}}});
  liar.Send({job, {1}, Ready{victim, {1}, {1}}});
  liar.Send({job, {1}, Commit{{{1}, {4}}, {5}, 1}});
  // Of the right size, for the right job, from no member.
  for (uint64_t base = 0; base < 6; ++base) {
    liar.Send({job, {1}, Push{{victim, {base}, {17}, {{9}, 0, {{0, 40}}}}, {0}}}, Buffer::Copy(std::string(4096, 'x')));
  }
  liar.Send({job, {1}, StatusRequest{}});
  Must(liar.Expect<StatusReply>(kPatience));
  ExpectCleanEnd(4000);
  EXPECT_EQ(cluster.worker("a").result().at("lives"), 1);
  EXPECT_EQ(cluster.report().at("counters").at("leaves"), 1) << "its own, at the end";
  EXPECT_FALSE(cluster.report().at("evaluation").contains("accuracy"));
}

}  // namespace
}  // namespace everstep::test
