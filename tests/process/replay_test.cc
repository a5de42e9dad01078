// everstep replay on a job that lost a worker and its coordinator's host: as recorded, bit by bit; and each thing that
// was changed, lost or damaged afterwards is found.
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "tests/process/process_test.h"

namespace everstep::test {
namespace {

using testing::HasSubstr;

struct Ran {
  int code = -1;
  std::string output;
  std::string errors;
};

class ReplayTest : public ProcessTest {
 protected:
  static constexpr size_t kServers = 3;

  // Everything that the job leaves behind lies in the cluster's folder.
  void RunJob(const Flags& optimizer) {
    std::filesystem::create_directory(cluster.path("kept"));
    std::filesystem::create_directory(cluster.path("records"));
    for (size_t i = 0; i < kServers; ++i) {
      const std::string name = "ps" + std::to_string(i);
      Flags flags{"--state=" + cluster.path("state"), "--checkpoints=" + cluster.path("saved"), "--checkpoint-every=20",
                  "--checkpoint-keep=100", "--no-progress"};
      if (i == 0) {
        flags.insert(flags.end(), {"--servers=3", "--epochs=2", "--batch=40", "--chunk-bytes=256", "--timeout-s=10"});
        flags.insert(flags.end(), optimizer.begin(), optimizer.end());
      } else {
        flags.insert(flags.end(),
                     {"--join=" + cluster.address(0), "--records=" + cluster.path("records/" + name + ".jsonl"),
                      "--report=" + cluster.path(name + ".json")});
      }
      Must(cluster.StartServer(flags));
      Must(cluster.WaitForAddress(i));
    }
    for (const char* name : {"a", "b", "c"}) {
      StartWorker(name, {"--model=mlp", "--dataset=2000", "--compute-ms=15", "--announce",
                         "--keep-contributions=" + cluster.path("kept")});
    }
    Must(cluster.WaitForStep(15));
    cluster.worker("c").Kill();
    Must(cluster.WaitForStep(30));
    cluster.server(0).Kill();
    Must(cluster.WaitForCleanEnd(std::chrono::seconds(60)));
    std::filesystem::copy_file(cluster.path("records.jsonl"), cluster.path("records/ps0.jsonl"));
  }

  Ran Replay(const std::string& records = "records", const Flags& more = {}) {
    Flags flags{"replay", cluster.path(records), "--checkpoints=" + cluster.path("saved"),
                "--contributions=" + cluster.path("kept")};
    flags.insert(flags.end(), more.begin(), more.end());
    Program& program = *Must(cluster.Start("replay", "everstep", flags));
    const int code = Must(program.Wait());
    return {code, program.output(), program.log()};
  }

  // The records of one step are changed by `spoil`, in a copy of the folder.
  Ran ReplaySpoiled(uint64_t step, const std::function<void(json&)>& spoil) {
    const std::string folder = cluster.path("spoiled");
    std::filesystem::remove_all(folder);
    std::filesystem::create_directory(folder);
    for (const auto& entry : std::filesystem::directory_iterator(cluster.path("records"))) {
      std::ifstream in(entry.path());
      std::ofstream out(folder + "/" + entry.path().filename().string());
      for (std::string line; std::getline(in, line);) {
        json record = json::parse(line);
        if (record.value("step", UINT64_MAX) == step) spoil(record);
        if (!record.is_null()) out << record.dump() << "\n";
      }
    }
    return Replay("spoiled");
  }

  // A kept contribution of a step.
  std::string Kept(uint64_t step) {
    for (const auto& entry : std::filesystem::directory_iterator(cluster.path("kept"))) {
      if (entry.path().filename().string().find("-" + std::to_string(step) + "-") != std::string::npos)
        return entry.path().string();
    }
    throw std::runtime_error("nothing was kept of step " + std::to_string(step));
  }
};

TEST_F(ReplayTest, AJobThatLostAWorkerAndItsCoordinatorIsWhatItsRecordsSay) {
  RunJob({"--optimizer=sgd", "--learning-rate=0.05", "--momentum=0.9", "--nesterov", "--weight-decay=0.001",
          "--clip-norm=0.5", "--schedule=cosine", "--warmup-steps=5"});
  Ran good = Replay();
  EXPECT_EQ(good.code, 0) << good.output << good.errors;
  EXPECT_THAT(good.output, HasSubstr("checkpoints, the last after step 1"));
  EXPECT_THAT(good.output, HasSubstr("replayed: the job is what its records say"));
  good = Replay("records", {"--json"});
  EXPECT_TRUE(json::parse(good.output).at("ok").get<bool>());
  EXPECT_GE(json::parse(good.output).at("checkpoints_equal").size(), 2u);

  // What contradicts itself. The digest covers all that a record says of the step but the scale.
  const auto contributor = [](json& record) -> json& { return record["contributors"][0]; };
  EXPECT_THAT(ReplaySpoiled(50, [&](json& r) { contributor(r)["worker"] = "00000000000000ff"; }).output,
              HasSubstr("step 50: its digest is not that of what it says"));
  EXPECT_THAT(ReplaySpoiled(50, [](json& r) { r["learning_rate"] = 0.05; }).output,
              HasSubstr("step 50: its learning rate is"));
  EXPECT_THAT(ReplaySpoiled(50, [](json& r) { r["ledger"]["consumed"] = json::array(); }).output,
              HasSubstr("step 50: the ledger after it is not"));
  EXPECT_THAT(ReplaySpoiled(50, [](json& r) { r["scale"] = 0.25; }).output,
              testing::AllOf(HasSubstr("step 50: its gradient was clipped by 0.25"),
                             HasSubstr("differs from the replay in momentum of tensor w1")));
  EXPECT_THAT(
      ReplaySpoiled(50, [](json& r) { std::reverse(r["contributors"].begin(), r["contributors"].end()); }).output,
      HasSubstr("step 50: its contributors are not in order"));
  EXPECT_THAT(ReplaySpoiled(50, [&](json& r) { contributor(r).erase("lease"); }).output,
              HasSubstr("step 50 has no lease"));
  // What is missing.
  Ran lost = ReplaySpoiled(50, [](json& r) { r = nullptr; });
  EXPECT_EQ(lost.code, 1);
  EXPECT_THAT(lost.output, HasSubstr("step 51 follows step 49"));
  lost = Replay("records/ps0.jsonl");
  EXPECT_EQ(lost.code, 1);
  EXPECT_THAT(lost.output, HasSubstr("beyond the records' end"));

  // A contribution that is damaged, and one that is gone.
  const std::string kept = Kept(60);
  std::string bytes = Must(ReadFile(kept));
  bytes[100] ^= 1;
  std::ofstream(kept, std::ios::binary) << bytes;
  EXPECT_THAT(Replay().output, HasSubstr("step 60: a contribution cannot be had, so the parameters end here"));
  EXPECT_THAT(Replay().output, HasSubstr("is damaged: its checksum differs"));
  std::filesystem::remove(kept);
  EXPECT_EQ(Replay().code, 1);
}

TEST_F(ReplayTest, AdamWToo) {
  RunJob({"--optimizer=adamw", "--learning-rate=0.01", "--weight-decay=0.1"});
  const Ran good = Replay();
  EXPECT_EQ(good.code, 0) << good.output << good.errors;
}

TEST_F(ReplayTest, WhatCannotBeReplayedSaysWhatToDo) {
  std::ofstream(cluster.path("old.jsonl"))
      << R"({"job":"j","uid":"aa","mode":"sync","optimizer":"sgd","epochs":1,"max_steps":0})"
      << "\n";
  const auto run = [&](Flags flags) {
    flags.insert(flags.begin(), "replay");
    Program& program = *Must(cluster.Start("replay", "everstep", flags));
    const int code = Must(program.Wait());
    return Ran{code, program.output(), program.log()};
  };
  Ran ran = run({cluster.path("old.jsonl")});
  EXPECT_EQ(ran.code, 6);
  EXPECT_THAT(ran.errors, HasSubstr("everstep audit takes older ones"));
  EXPECT_EQ(run({cluster.path("none.jsonl")}).code, 3);
  ran = run({cluster.path("old.jsonl"), "--contributions=" + cluster.folder()});
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.errors, HasSubstr("--contributions needs --checkpoints"));
}

}  // namespace
}  // namespace everstep::test
