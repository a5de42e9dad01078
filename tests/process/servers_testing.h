// The fixture of tests in which servers die, join and are drained while the job runs. Each test compares the final
// parameters with those of a run that nothing happened to: the same contributions must give the same bits.
#pragma once

#include <signal.h>

#include <map>
#include <optional>
#include <thread>

#include "base/file.h"
#include "tests/process/process_test.h"

namespace everstep::test {

inline constexpr uint64_t kDataset = 12'000;
inline const Flags kModel{"--dataset=12000", "--elements=6000"};

class ServersTest : public ProcessTest {
 protected:
  // Where the configuration record is kept: with it, any server may take office.
  virtual std::string RecordFlag() { return "--state=" + cluster.path("state"); }

  void StartReplicated(size_t count, Flags more = {"--timeout-s=10"}) {
    Flags job{"--epochs=1",         "--batch=40",    "--learning-rate=0.3", "--momentum=0.9",
              "--chunk-bytes=1024", "--no-progress", RecordFlag(),          "--servers=" + std::to_string(count)};
    job.insert(job.end(), more.begin(), more.end());
    Must(cluster.StartServer(job));
    Must(cluster.WaitForAddress(0));
    for (size_t i = 1; i < count; ++i) JoinServer();
  }
  Program& JoinServer(std::optional<std::string> address = {}) {
    const std::string name = "ps" + std::to_string(next_++);
    Program* server = Must(cluster.StartServer({"--join=" + address.value_or(cluster.address(0)), RecordFlag(),
                                                "--no-progress", "--records=" + cluster.path(name + ".jsonl"),
                                                "--report=" + cluster.path(name + ".json")}));
    Must(cluster.WaitForAddress(next_ - 1));
    return *server;
  }
  // The job takes 300 steps; `compute_ms` each gives what happens to it meanwhile the time that it takes.
  Program& StartModelWorker(const std::string& name, int compute_ms = 10) {
    Flags flags = kModel;
    flags.push_back("--compute-ms=" + std::to_string(compute_ms));
    flags.push_back("--dump=" + cluster.path(name + ".bin"));
    return StartWorker(name, flags);
  }
  // What all coordinators together have committed; where two of them name a step they must agree.
  std::vector<CommitLine> AllCommits() {
    std::vector<std::string> paths{cluster.path("records.jsonl")};
    for (size_t i = 1; i < next_; ++i) paths.push_back(cluster.path("ps" + std::to_string(i) + ".jsonl"));
    return Must(ReadAllCommits(paths));
  }
  // Server 0 coordinates and is stopped until another one has committed 30 steps or so, then it wakes.
  void FreezeTheCoordinatorMeanwhile() {
    cluster.server(0).Signal(SIGSTOP);
    const Time frozen = SteadyNow();
    while (AllCommits().back().step < 60 || ReadCommits(cluster.path("records.jsonl")).back().step > 59) {
      ASSERT_LT(Seconds(SteadyNow() - frozen), 20) << "nobody took office: " << cluster.server(1).log();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    cluster.server(0).Signal(SIGCONT);
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

}  // namespace everstep::test
