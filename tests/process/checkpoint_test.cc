// Checkpoints of real jobs: broken files, full disks; never a fresh start in silence (cases 25, 29 and 31). Kills in
// mid-save (case 28) and other numbers of servers (case 30) are the proofs torn-checkpoints and n-to-m.
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "base/file.h"
#include "checkpoint/loader.h"
#include "checkpoint/safetensors.h"
#include "tests/process/process_test.h"
#include "tests/support/saved_job.h"

namespace everstep::test {
namespace {

using testing::HasSubstr;

class CheckpointTest : public testing::Test {
 protected:
  void Start(Cluster& where, size_t servers, const std::string& folder, const Flags& more) {
    Must(StartSaving(where, servers, folder, more));
  }
  void Workers(Cluster& where, const Flags& more = {}) { Must(StartSavedWorkers(where, more)); }
  FoundCheckpoint Find(const std::string& folder) { return Must(FindSaved(folder)); }

  void TearDown() override {
    (void)umount(shared_.path("small").c_str());  // of a test that was ended by an exception
    if (HasFailure()) shared_.Keep();
  }
  Cluster shared_;  // its folder holds the checkpoints
};

// Must show 4: a flipped byte, a truncated file, a missing shard file.
TEST_F(CheckpointTest, Case29BrokenOnesAreNamedAndTheOneBeforeIsTaken) {
  const std::string folder = shared_.path("ck");
  Cluster first;
  Start(first, 2, folder, {"--max-steps=20", "--epochs=0", "--checkpoint-every=5", "--checkpoint-keep=9"});
  Workers(first, {"--compute-ms=60"});
  Must(first.WaitForCleanEnd());
  const auto store = std::shared_ptr<Store>(Must(MakeDirectoryStore(folder, false)));
  const auto entries = Must(ListCheckpoints(*store));
  ASSERT_EQ(entries.size(), 4u);
  const auto file = [&](size_t i, uint32_t server) { return folder + "/" + ShardFileName(entries[i].label, {server}); };
  std::string flipped = Must(ReadFile(file(0, 0)));
  flipped[flipped.size() / 2] ^= 1;
  std::ofstream(file(0, 0), std::ios::binary) << flipped;
  std::filesystem::resize_file(file(1, 1), 1000);
  std::filesystem::remove(file(2, 0));

  Cluster second;
  Start(second, 1, folder, {"--max-steps=20", "--epochs=0"});
  Workers(second);
  Must(second.WaitForCleanEnd());
  const std::string log = second.server(0).log();
  EXPECT_THAT(log, HasSubstr(entries[0].label + " is skipped"));
  EXPECT_THAT(log, HasSubstr("does not match its checksum"));
  EXPECT_THAT(log, HasSubstr(entries[1].label + " is skipped"));
  EXPECT_THAT(log, HasSubstr(entries[2].label + " is skipped"));
  EXPECT_THAT(log, HasSubstr("is missing"));
  EXPECT_THAT(log, HasSubstr("resuming job everstep from checkpoint " + entries[3].label + ", step 5"));
  EXPECT_EQ(Must(ReadFile(second.path("a.bin"))), Must(ReadFile(first.path("a.bin"))));
}

// Case 31.
TEST_F(CheckpointTest, Case31NeverAFreshStartInSilence) {
  const std::string folder = shared_.path("ck");
  Cluster first;
  Start(first, 1, folder, {"--max-steps=4", "--epochs=0", "--checkpoint-every=2"});
  Workers(first, {"--compute-ms=20"});
  Must(first.WaitForCleanEnd());
  std::vector<std::string> labels;
  for (const CheckpointEntry& e : Must(ListCheckpoints(*Must(MakeDirectoryStore(folder, false))))) {
    labels.push_back(e.label);
    std::filesystem::resize_file(folder + "/" + ManifestName(e.label), 100);
  }
  ASSERT_FALSE(labels.empty());
  Cluster second;
  Program& refused =
      *Must(second.StartServer(With(kSavedJob, {"--max-steps=4", "--epochs=0", "--checkpoints=" + folder})));
  EXPECT_EQ(Must(refused.Wait()), 6);
  for (const std::string& label : labels) EXPECT_THAT(refused.log(), HasSubstr(label));
  EXPECT_THAT(refused.log(), HasSubstr("--allow-fresh"));

  Cluster third;
  Start(third, 1, folder, {"--max-steps=4", "--epochs=0", "--allow-fresh"});
  Workers(third);
  Must(third.WaitForCleanEnd());
  EXPECT_THAT(third.server(0).log(), HasSubstr("starts anew"));
}

TEST_F(CheckpointTest, AnotherJobsFolderAnotherSeedAndAnotherOptimizerAreRefused) {
  const std::string folder = shared_.path("ck");
  Cluster first;
  Start(first, 1, folder, {"--max-steps=2", "--epochs=0"});
  Workers(first);
  Must(first.WaitForCleanEnd());
  const std::pair<Flags, const char*> cases[] = {{{"--name=other"}, "give each job a folder of its own"},
                                                 {{"--seed=7"}, "made with seed 1, not 7"},
                                                 {{"--optimizer=sgd"}, "holds the state of adam"}};
  for (const auto& [flags, why] : cases) {
    Cluster second;
    Flags all = {"--chunk-bytes=256", "--max-steps=9", "--epochs=0", "--checkpoints=" + folder};
    if (flags.front() != "--optimizer=sgd") all.push_back("--optimizer=adam");
    Program& server = *Must(second.StartServer(With(all, flags)));
    EXPECT_NE(Must(server.Wait()), 0);
    EXPECT_THAT(server.log(), HasSubstr(why));
  }
}

// Must show 4: a full disk. The job goes on, says so, and what was complete stays.
TEST_F(CheckpointTest, Case29AFullDiskIsSaidAndTheJobGoesOn) {
  if (geteuid() != 0) GTEST_SKIP() << "mounting a small tmpfs needs root";
  const std::string folder = shared_.path("small");
  std::filesystem::create_directory(folder);
  if (mount("none", folder.c_str(), "tmpfs", 0, "size=512k") != 0)
    GTEST_SKIP() << "no tmpfs can be mounted here: " << strerror(errno);
  Cluster cluster;
  Start(cluster, 1, folder, {"--max-steps=60", "--epochs=0", "--checkpoint-every=5", "--checkpoint-keep=100"});
  Workers(cluster, {"--model=vector", "--elements=10000", "--compute-ms=10"});
  Must(cluster.WaitForCleanEnd());
  EXPECT_EQ(cluster.report().at("version"), 61);
  EXPECT_GT(cluster.report().at("counters").at("failed_checkpoints").get<int>(), 0);
  EXPECT_THAT(cluster.server(0).log(), HasSubstr("No space left"));
  EXPECT_TRUE(Find(folder).newest);
  umount(folder.c_str());
}

// Workers that outlive all servers go on with what the servers went back to.
TEST_F(CheckpointTest, WorkersThatOutliveTheServersJoinTheResumedJob) {
  const std::string folder = shared_.path("ck");
  Cluster cluster;
  const Flags job = {"--max-steps=120", "--epochs=0", "--checkpoint-every=20"};
  Start(cluster, 1, folder, job);
  const std::string address = cluster.address(0);
  Workers(cluster, {"--compute-ms=10"});
  Must(cluster.WaitForEvent("checkpoint", ""));
  Must(cluster.WaitForStep(35));
  cluster.server(0).Kill();
  Must(cluster.server(0).Wait());
  Cluster again;
  Must(
      again.StartServer(With(With(kSavedJob, job), {"--checkpoints=" + folder, "--listen=" + address, "--servers=1"})));
  Must(again.WaitForAddress(0));
  EXPECT_EQ(Must(cluster.worker("a").Wait()), 0) << cluster.worker("a").log();
  EXPECT_EQ(Must(cluster.worker("b").Wait()), 0) << cluster.worker("b").log();
  Must(again.WaitForCleanEnd());
  EXPECT_EQ(again.report().at("version"), 121);
  EXPECT_EQ(Must(ReadFile(cluster.path("a.bin"))), Must(ReadFile(cluster.path("b.bin"))));
}

// What a job has made is where another begins, by way of one file.
TEST_F(CheckpointTest, ExportedAndTakenAsInitialValues) {
  const std::string folder = shared_.path("ck");
  Cluster first;
  Start(first, 2, folder, {"--max-steps=6", "--epochs=0"});
  Workers(first);
  Must(first.WaitForCleanEnd());
  const std::string model = shared_.path("model.safetensors");
  Program& exported = *Must(first.Start("export", "everstep", {"export", folder, "-o", model}));
  EXPECT_EQ(Must(exported.Wait()), 0) << exported.log();
  Program& listed = *Must(first.Start("list", "everstep", {"checkpoints", folder, "--verify", "--json"}));
  EXPECT_EQ(Must(listed.Wait()), 0) << listed.log();
  EXPECT_EQ(json::parse(listed.output()).at("checkpoints").at(0).at("step"), 6);

  Cluster second;  // no step changes anything: what comes out is what went in
  Must(
      second.StartServers(1, With(kSavedJob, {"--max-steps=1", "--epochs=0", "--init=" + model, "--learning-rate=0"})));
  Workers(second);
  Must(second.WaitForCleanEnd());
  EXPECT_EQ(Must(ReadFile(second.path("a.bin"))), Must(ReadFile(first.path("a.bin"))));

  Cluster third;
  Must(third.StartServers(1, With(kSavedJob, {"--max-steps=1", "--epochs=0", "--init=" + model})));
  Program& other = *Must(third.StartWorker("v", {"--elements=10", "--dataset=2000"}));
  EXPECT_EQ(Must(other.Wait()), 5);
  EXPECT_THAT(other.log(), HasSubstr("has no tensor \"p\""));
}

// An interpreter with the package that everybody loads safetensors with: $EVERSTEP_PYTHON, or the system's.
std::string PythonWithSafetensors(Cluster& cluster) {
  const char* given = std::getenv("EVERSTEP_PYTHON");
  for (const std::string& python : {std::string(given == nullptr ? "" : given), std::string("python3")}) {
    if (python.empty()) continue;
    Program& tried = *Must(cluster.Start("tried", "/usr/bin/env", {python, "-c", "import numpy, safetensors"}));
    if (Must(tried.Wait()) == 0) return python;
  }
  return {};
}

// The values that a worker ended with, out of the exported file, by another program.
void ExpectExportReadBy(const std::string& python, const char* reader) {
  Cluster job;
  Must(StartSaving(job, 2, job.path("ck"), {"--max-steps=6", "--epochs=0"}));
  Must(StartSavedWorkers(job));
  Must(job.WaitForCleanEnd());
  const std::string model = job.path("model.safetensors");
  Program& exported = *Must(job.Start("export", "everstep", {"export", job.path("ck"), "-o", model}));
  ASSERT_EQ(Must(exported.Wait()), 0) << exported.log();
  Program& read = *Must(
      job.Start("python", "/usr/bin/env",
                {python, EVERSTEP_READ_SAFETENSORS, model, "--dump", job.path("read.bin"), "w1", "b1", "w2", "b2"}));
  ASSERT_EQ(Must(read.Wait()), 0) << read.log();
  EXPECT_THAT(read.output(), testing::StartsWith(std::string("# read by ") + reader));
  for (const char* line : {"w1 F32 [32, 16]", "b1 F32 [32]", "w2 F32 [4, 32]", "b2 F32 [4]"})
    EXPECT_THAT(read.output(), HasSubstr(line));
  EXPECT_EQ(Must(ReadFile(job.path("read.bin"))), Must(ReadFile(job.path("a.bin"))))
      << "other values than the worker's";
}

TEST(ExportTest, IsWhatTheFormatsDescriptionSays) { ExpectExportReadBy("python3", ""); }

TEST(ExportTest, IsReadByPythonsSafetensorsWithEqualValues) {
  Cluster cluster;
  const std::string python = PythonWithSafetensors(cluster);
  if (python.empty())
    GTEST_SKIP() << "no python3 with safetensors and numpy; name one by EVERSTEP_PYTHON=/path/to/python3";
  ExpectExportReadBy(python, "safetensors ");
}

}  // namespace
}  // namespace everstep::test
