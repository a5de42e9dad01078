// Ports, signals and the end: what processes bind, how they go, and that they leave nothing behind.
#include <signal.h>

#include <algorithm>
#include <thread>

#include "tests/process/process_test.h"
#include "tests/support/seed.h"

namespace everstep::test {
namespace {

using testing::HasSubstr;

TEST_F(ProcessTest, Case33TakenPortIsAClearError) {
  StartServers(1, {"--max-steps=1000"});
  const std::string taken = cluster.address();
  Program& second = *Must(cluster.StartServer({"--max-steps=1000", "--listen=" + taken}));
  EXPECT_EQ(Must(second.Wait(std::chrono::seconds(5))), 4);
  EXPECT_THAT(second.log(), HasSubstr(taken));
  EXPECT_THAT(second.log(), HasSubstr("taken"));
  EXPECT_TRUE(cluster.server(0).running());
}

TEST_F(ProcessTest, Case33TakenSocketPathIsAClearErrorAndADeadOnesIsNot) {
  const std::string address = "ipc://" + cluster.path("s.sock");
  const auto start = [&] {
    return Must(cluster.StartServer({"--max-steps=3", "--epochs=0", "--listen=" + address, "--no-progress"}));
  };
  start();
  Must(cluster.WaitForAddress(0));
  Program& second = *start();
  EXPECT_EQ(Must(second.Wait(std::chrono::seconds(5))), 4);
  EXPECT_THAT(second.log(), HasSubstr(address));
  Must(cluster.AskStatus());  // the first one is still there
  // After a SIGKILL its socket file lies there without anybody behind it.
  cluster.server(0).Kill();
  EXPECT_EQ(cluster.Sockets().size(), 1u);
  start();
  Must(cluster.WaitForAddress(2));
  Program& a = StartWorker("a", {"--servers=" + address});
  EXPECT_EQ(Must(a.Wait()), 0);
  EXPECT_EQ(Must(cluster.server(2).Wait()), 0);
  EXPECT_THAT(cluster.Sockets(), testing::IsEmpty());
}

TEST_F(ProcessTest, Case33AdvertisedAddressIsHandedOnVerbatim) {
  const Flags job{"--servers=2", "--max-steps=3", "--epochs=0", "--batch=4", "--no-progress"};
  Must(cluster.StartServer(job));
  Must(cluster.WaitForAddress(0));
  EXPECT_THAT(cluster.address(0), testing::MatchesRegex("tcp://127\\.0\\.0\\.1:[1-9][0-9]*"));
  // The second listens on a socket and says so with a path that only it would write.
  const std::string odd = "ipc://" + cluster.folder() + "/./s1.sock";
  Must(cluster.StartServer(
      {"--join=" + cluster.address(0), "--listen=ipc://" + cluster.path("s1.sock"), "--advertise=" + odd}));
  Must(cluster.WaitForAddress(1));
  EXPECT_EQ(cluster.address(1), odd);
  Must(cluster.WaitForEvent("server-joined", "ps1"));
  EXPECT_EQ(Must(cluster.AskStatus()).at("servers").at(1).at("address"), odd);
  StartWorker("a");
  ExpectCleanEnd();
}

TEST_F(ProcessTest, Case33AddressesThatOthersCouldReachNeedLeave) {
  Program& s = *Must(cluster.StartServer({"--max-steps=3", "--listen=tcp://0.0.0.0:0"}));
  EXPECT_EQ(Must(s.Wait()), 5);
  EXPECT_THAT(s.log(), HasSubstr("--insecure"));
}

// SIGTERM and SIGINT while processes start, train, wait and finish: all gone, nothing left behind.
TEST(SignalTest, Case34SignalsAtAnyMomentLeaveNoProcessAndNoSocket) {
  const uint64_t seed = Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  for (int round = 0; round < 12; ++round) {
    Cluster cluster(Cluster::Options{"ipc", ""});
    const bool coordinator_first = random.Chance(0.5);
    const int signal = random.Chance(0.5) ? SIGTERM : SIGINT;
    Must(cluster.StartServer({"--servers=2", "--max-steps=40", "--epochs=0", "--timeout-s=3", "--no-progress"}));
    Must(cluster.WaitForAddress(0));
    Must(cluster.StartServer({"--join=" + cluster.address()}));
    Must(cluster.StartWorker("a", {"--compute-ms=4"}));
    Must(cluster.StartWorker("b", {"--compute-ms=4"}));
    std::this_thread::sleep_for(std::chrono::milliseconds(random.Below(400)));
    std::vector<Program*> programs{&cluster.server(0), &cluster.server(1), &cluster.worker("a"), &cluster.worker("b")};
    if (!coordinator_first) std::reverse(programs.begin(), programs.end());
    for (Program* p : programs) p->Signal(signal);
    for (Program* p : programs) {
      // 128 + signal: it came before the program had begun to look for signals.
      EXPECT_THAT(Must(p->Wait()), testing::AnyOf(0, 4, 6, 128 + signal)) << p->name() << ", round " << round;
      EXPECT_THAT(p->log(), Not(HasSubstr("CHECK"))) << p->name();
    }
    EXPECT_THAT(cluster.Sockets(), testing::IsEmpty()) << "round " << round;
  }
}

TEST_F(ProcessTest, Case34WorkerThatWaitsForNobodyGoesAtOnce) {
  Program& w = StartWorker("w", {"--servers=tcp://127.0.0.1:1", "--timeout-s=60"});
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  w.Signal(SIGTERM);
  EXPECT_THAT(Must(w.Wait(std::chrono::seconds(2))), testing::AnyOf(0, 128 + SIGTERM));
}

TEST_F(ProcessTest, Case34SecondSignalEndsAWorkerThatCannotLeaveInOrder) {
  StartServers(1, {"--max-steps=1000", "--epochs=0", "--timeout-s=60"});
  Program& w = StartWorker("w", {"--hang-at=3", "--announce"});
  while (Must(cluster.WaitForBegin("w")) < 3) {
  }
  w.Signal(SIGTERM);
  EXPECT_FALSE(w.Wait(std::chrono::milliseconds(300)).ok()) << "it is in the middle of a step";
  w.Signal(SIGTERM);
  EXPECT_EQ(Must(w.Wait(std::chrono::seconds(2))), 130);
}

// What cannot work is refused at once, not after the timeout, and is not tried again and again.
TEST_F(ProcessTest, Case36FailingAtOnceIsReportedAtOnce) {
  const Time began = SteadyNow();
  for (const char* flag : {"--optimizer=sgdd", "--batch=0", "--listen=nowhere", "--no-such-flag"}) {
    Program& s = *Must(cluster.Start(flag + 2, "everstep-ps", {"--max-steps=3", flag}));
    EXPECT_EQ(Must(s.Wait()), 2) << flag;
    EXPECT_FALSE(s.log().empty() && s.output().empty()) << flag;
  }
  StartServers(1, {"--name=apples", "--max-steps=1000", "--timeout-s=30"});
  Program& w = StartWorker("w", {"--job=pears", "--timeout-s=30"});
  EXPECT_EQ(Must(w.Wait()), 5);
  EXPECT_LT(Seconds(SteadyNow() - began), 5);
  EXPECT_EQ(EventsOf(Must(cluster.AskStatus()), "worker-refused").size(), 1u);
}

// Whatever goes first: everybody else ends by its deadline, in order. The sanitizer build runs this too.
TEST(ShutdownTest, Case38AnyOrderOfDeaths) {
  const uint64_t seed = Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  for (int round = 0; round < 6; ++round) {
    Cluster cluster;
    Must(cluster.StartServers(2, {"--max-steps=100000", "--epochs=0", "--timeout-s=2", "--no-progress"}));
    for (const char* name : {"a", "b"}) Must(cluster.StartWorker(name, {"--compute-ms=3"}));
    Must(cluster.WaitForReady(2));
    Must(cluster.WaitForStep(2));
    std::vector<Program*> order{&cluster.server(0), &cluster.server(1), &cluster.worker("a"), &cluster.worker("b")};
    std::string told;
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);
    for (Program* p : order) {
      told += p->name() + " ";
      p->Signal(SIGTERM);
      if (random.Chance(0.5)) std::this_thread::sleep_for(std::chrono::milliseconds(random.Below(200)));
    }
    for (Program* p : order) {
      EXPECT_THAT(Must(p->Wait()), testing::AnyOf(0, 4, 6)) << p->name() << " of " << told;
    }
  }
}

}  // namespace
}  // namespace everstep::test
