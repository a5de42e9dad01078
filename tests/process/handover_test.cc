// The coordinating server is asked to go: by SIGTERM, and by `everstep drain`. Its chunks go to others, another server
// takes office, and it ends with exit code 0; the job notices next to nothing. Where nobody could take over, that is
// said.
#include "tests/process/servers_testing.h"

namespace everstep::test {
namespace {

using testing::HasSubstr;

class HandoverTest : public ServersTest {
 protected:
  void ExpectHandedOver(Program& worker) {
    EXPECT_EQ(Must(cluster.server(0).Wait(std::chrono::seconds(30))), 0) << cluster.server(0).log();
    EXPECT_THAT(cluster.server(0).log(), HasSubstr("leaves its office to another one"));
    EXPECT_TRUE(worker.running());
    const uint64_t last = ReadCommits(cluster.path("records.jsonl")).back().step;
    EXPECT_LT(last, 300u) << "it left in mid-training";
    ExpectSameAsUndisturbed(worker);
    EXPECT_EQ(AllCommits().back().step, 300u);
    for (size_t i = 1; i < next_; ++i) EXPECT_EQ(Must(cluster.server(i).Wait()), 0) << cluster.server(i).log();
  }
};

TEST_F(HandoverTest, SigtermMovesItsChunksAndThenItsOffice) {
  StartReplicated(3);
  Program& a = StartModelWorker("a", 15);
  Must(cluster.WaitForStep(30));
  cluster.server(0).Signal(SIGTERM);
  ExpectHandedOver(a);
}

TEST_F(HandoverTest, EverstepDrainDoesTheSameAndTellsHowItWent) {
  StartReplicated(3);
  Program& a = StartModelWorker("a", 15);
  Must(cluster.WaitForStep(30));
  Program& drain = *Must(cluster.Start("drain", "everstep", {"drain", "ps0", "--servers=" + cluster.address(0)}));
  EXPECT_EQ(Must(drain.Wait(std::chrono::seconds(30))), 0) << drain.log();
  EXPECT_THAT(drain.output(), HasSubstr("ps0 is empty and has left"));
  ExpectHandedOver(a);
}

TEST_F(HandoverTest, OfficeGoesFromOneToTheNextUntilNobodyIsLeft) {
  StartReplicated(3);
  Program& a = StartModelWorker("a", 20);
  Must(cluster.WaitForStep(20));
  cluster.server(0).Signal(SIGTERM);
  EXPECT_EQ(Must(cluster.server(0).Wait(std::chrono::seconds(30))), 0) << cluster.server(0).log();
  // Whoever has it now, both are asked; the last one has nobody to leave the job to, and says so.
  const auto took = [&](size_t i) { return cluster.server(i).log().find("takes office") != std::string::npos; };
  const Time asked = SteadyNow();
  while (!took(1) && !took(2)) {
    ASSERT_LT(Seconds(SteadyNow() - asked), 20) << "nobody took office";
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const size_t next = took(1) ? 1 : 2, last = 3 - next;
  while (ReadCommits(cluster.path("ps" + std::to_string(next) + ".jsonl")).size() < 10)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  cluster.server(next).Signal(SIGTERM);
  EXPECT_EQ(Must(cluster.server(next).Wait(std::chrono::seconds(30))), 0) << cluster.server(next).log();
  while (ReadCommits(cluster.path("ps" + std::to_string(last) + ".jsonl")).size() < 5)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  cluster.server(last).Signal(SIGTERM);
  EXPECT_EQ(Must(cluster.server(last).Wait(std::chrono::seconds(30))), 6);
  EXPECT_THAT(cluster.server(last).log(), HasSubstr("cannot hand over"));
  (void)Must(a.Wait());
  EXPECT_THAT(a.output(), HasSubstr("the job has failed"));
  Must(CheckChain(AllCommits()));
}

TEST_F(HandoverTest, WithoutARecordItSaysWhatToStartAndEndsTheJob) {
  StartServers(2, {"--epochs=1", "--batch=40"});
  StartWorker("a", {"--dataset=40000", "--compute-ms=10"});
  Must(cluster.WaitForStep(5));
  Program& drain = *Must(cluster.Start("drain", "everstep", {"drain", "ps0", "--servers=" + cluster.address(0)}));
  EXPECT_EQ(Must(drain.Wait()), 2);
  EXPECT_THAT(drain.log(), HasSubstr("--state FOLDER"));
  Must(cluster.WaitForStep(10));
  cluster.server(0).Signal(SIGTERM);
  EXPECT_EQ(Must(cluster.server(0).Wait()), 6);
  EXPECT_THAT(cluster.server(0).log(), HasSubstr("--state FOLDER"));
  (void)Must(cluster.worker("a").Wait());
  EXPECT_THAT(cluster.worker("a").output(), HasSubstr("the job has failed"));
}

}  // namespace
}  // namespace everstep::test
