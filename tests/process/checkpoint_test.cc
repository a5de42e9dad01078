// Checkpoints of real jobs: continued runs are bit-equal, also over another number of servers; kill -9 in mid-save;
// broken files, full disks; never a fresh start in silence (cases 25, 28 to 31).
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
#include "tests/support/seed.h"

namespace everstep::test {
namespace {

using testing::HasSubstr;

const Flags kJob = {"--timeout-s=10",       "--no-progress",     "--batch=40",        "--optimizer=adam",
                    "--learning-rate=0.01", "--schedule=cosine", "--chunk-bytes=256", "--workers=2:2"};

// The later of two flags of one name holds.
Flags With(Flags flags, const Flags& more) {
  for (const std::string& flag : more) {
    const std::string name = flag.substr(0, flag.find('=') + 1);
    std::erase_if(flags, [&](const std::string& f) { return !name.empty() && f.starts_with(name); });
    flags.push_back(flag);
  }
  return flags;
}

// Every byte of a checkpoint's arrays, in the order of the flat index space.
std::map<std::string, std::string> Arrays(Checkpoint& checkpoint) {
  std::map<std::string, std::string> arrays;
  const Manifest& m = checkpoint.manifest();
  for (const std::string& array : m.arrays) {
    std::string& bytes = arrays[array];
    bytes.resize(checkpoint.layout().size() * m.spec.chunk_bytes);
    Must(checkpoint.Read(array, 0, std::as_writable_bytes(std::span(bytes.data(), bytes.size()))));
  }
  return arrays;
}

class CheckpointTest : public testing::Test {
 protected:
  // A cluster whose servers share `folder`, with the job of kJob and `more`.
  void Start(Cluster& where, size_t servers, const std::string& folder, const Flags& more) {
    const Flags both = {"--checkpoints=" + folder};
    Flags first = With(With(kJob, both), more);
    first.push_back("--servers=" + std::to_string(servers));
    Must(where.StartServer(first).status());
    Must(where.WaitForAddress(0));
    for (size_t i = 1; i < servers; ++i) Must(where.StartServer(With(both, {"--join=" + where.address(0)})).status());
    for (size_t i = 1; i < servers; ++i) Must(where.WaitForAddress(i));
  }
  void Workers(Cluster& where, const Flags& more = {}) {
    for (const char* name : {"a", "b"}) {
      Must(where.StartWorker(name, With({"--model=mlp", "--dataset=2000", "--timeout-s=20",
                                         "--dump=" + where.path(std::string(name) + ".bin")},
                                        more)));
    }
  }
  FoundCheckpoint Find(const std::string& folder) {
    return Must(FindNewestCheckpoint(Must(MakeDirectoryStore(folder, false))));
  }
  void KillAll(Cluster& where, size_t servers) {
    for (size_t i = 0; i < servers; ++i) where.server(i).Kill();
    for (const char* name : {"a", "b"}) where.worker(name).Kill();
  }

  void TearDown() override {
    (void)umount(shared_.path("small").c_str());  // of a test that was ended by an exception
    if (HasFailure()) shared_.Keep();
  }
  Cluster shared_;  // its folder holds the checkpoints
};

// Must show 5: saved by 3 servers, loaded by 1, 2 and 5. The run that goes on ends as the one that was never stopped,
// bit by bit: parameters, and the optimizer's state.
TEST_F(CheckpointTest, Case30SavedBy3ServersLoadedBy1And2And5IsBitEqual) {
  Cluster whole;
  Start(whole, 1, whole.path("ck"), {"--epochs=1"});
  Workers(whole);
  Must(whole.WaitForCleanEnd());
  FoundCheckpoint want = Find(whole.path("ck"));
  ASSERT_TRUE(want.newest);
  EXPECT_EQ(want.newest->manifest().version.value, 51u);

  Cluster first;
  Start(first, 3, shared_.path("ck"), {"--epochs=1", "--checkpoint-every=10"});
  Workers(first, {"--compute-ms=10"});
  Must(first.WaitForStep(23));
  KillAll(first, 3);
  FoundCheckpoint saved = Find(shared_.path("ck"));
  ASSERT_TRUE(saved.newest) << Describe(saved.broken);
  ASSERT_EQ(saved.newest->manifest().files.size(), 3u);

  for (const size_t servers : {1u, 2u, 5u}) {
    SCOPED_TRACE(std::to_string(servers) + " servers");
    const std::string folder = shared_.path("ck" + std::to_string(servers));
    std::filesystem::copy(shared_.path("ck"), folder);
    Cluster second;
    std::filesystem::copy_file(first.path("records.jsonl"), second.path("records.jsonl"));
    Start(second, servers, folder, {"--epochs=1"});
    EXPECT_THAT(second.server(0).log(), HasSubstr("resuming job everstep from checkpoint"));
    EXPECT_THAT(second.server(0).log(), HasSubstr(" lost"));
    Workers(second);
    Must(second.WaitForCleanEnd());
    EXPECT_EQ(Must(ReadFile(second.path("a.bin"))), Must(ReadFile(whole.path("a.bin"))));
    FoundCheckpoint got = Find(folder);
    ASSERT_TRUE(got.newest);
    EXPECT_EQ(got.newest->manifest().job, saved.newest->manifest().job) << "the same job";
    EXPECT_EQ(got.newest->manifest().version.value, 51u);
    EXPECT_EQ(got.newest->manifest().files.size(), servers);
    EXPECT_EQ(got.newest->manifest().arrays.size(), 3u);
    EXPECT_EQ(Arrays(*got.newest), Arrays(*want.newest));
    // The records are those of one run: lost steps are cut off, and each sample is used once.
    Must(CheckChain(second.commits()));
    Must(CheckLedger(second.commits(), 2000, 1));
  }
}

// Must show 4: kill -9 of everything during saves at 30 random moments. Whatever was going on, the next start finds a
// complete checkpoint that is no older than the newest one that was announced, and goes on from it.
TEST_F(CheckpointTest, Case28KilledDuringASaveAt30RandomMoments) {
  const uint64_t seed = Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  const std::string folder = shared_.path("ck");
  uint64_t least = 0;
  size_t broken = 0;
  for (int life = 0; life < 30; ++life) {
    SCOPED_TRACE("life " + std::to_string(life));
    Cluster cluster;
    // Slow enough that a save is under way at almost any time: 24 kB at 0.1 MB/s are 240 ms on each server.
    Start(
        cluster, 2, folder,
        {"--max-steps=1000000", "--epochs=0", "--checkpoint-every=1", "--checkpoint-rate=0.1", "--checkpoint-keep=2"});
    Workers(cluster, {"--model=vector", "--elements=4000", "--compute-ms=2"});
    Must(cluster.WaitFor("steps", [&](const json& s) { return s.at("version").get<uint64_t>() > least + 1; }));
    if (least > 0) {
      EXPECT_THAT(cluster.server(0).log(), HasSubstr("resuming job everstep"));
    }
    if (life == 0) Must(cluster.WaitForEvent("checkpoint", ""));
    std::this_thread::sleep_for(std::chrono::milliseconds(random.Below(400)));
    const json status = Must(cluster.AskStatus());
    KillAll(cluster, 2);
    FoundCheckpoint found = Find(folder);
    ASSERT_TRUE(found.newest) << Describe(found.broken);
    const uint64_t version = found.newest->manifest().version.value;
    EXPECT_GE(version, least);
    for (const json& event : EventsOf(status, "checkpoint"))
      EXPECT_GE(version, std::stoull(event.at("target").get<std::string>().substr(1)));
    least = version;
    broken += found.broken.size();
  }
  std::printf("30 kills: %zu torn checkpoints were skipped, the last complete one has version %llu\n", broken,
              static_cast<unsigned long long>(least));
  EXPECT_GT(broken, 0u) << "no kill met a save";
}

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
  Program& refused = *Must(second.StartServer(With(kJob, {"--max-steps=4", "--epochs=0", "--checkpoints=" + folder})));
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
  Must(again.StartServer(With(With(kJob, job), {"--checkpoints=" + folder, "--listen=" + address, "--servers=1"})));
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
  Program& python = *Must(first.Start("python", "/usr/bin/env", {"python3", EVERSTEP_READ_SAFETENSORS, model}));
  EXPECT_EQ(Must(python.Wait()), 0) << python.log();
  for (const char* line : {"w1 F32 [32, 16]", "b1 F32 [32]", "w2 F32 [4, 32]", "b2 F32 [4]"})
    EXPECT_THAT(python.output(), HasSubstr(line));
  Program& listed = *Must(first.Start("list", "everstep", {"checkpoints", folder, "--verify", "--json"}));
  EXPECT_EQ(Must(listed.Wait()), 0) << listed.log();
  EXPECT_EQ(json::parse(listed.output()).at("checkpoints").at(0).at("step"), 6);

  Cluster second;  // no step changes anything: what comes out is what went in
  Must(second.StartServers(1, With(kJob, {"--max-steps=1", "--epochs=0", "--init=" + model, "--learning-rate=0"})));
  Workers(second);
  Must(second.WaitForCleanEnd());
  EXPECT_EQ(Must(ReadFile(second.path("a.bin"))), Must(ReadFile(first.path("a.bin"))));

  Cluster third;
  Must(third.StartServers(1, With(kJob, {"--max-steps=1", "--epochs=0", "--init=" + model})));
  Program& other = *Must(third.StartWorker("v", {"--elements=10", "--dataset=2000"}));
  EXPECT_EQ(Must(other.Wait()), 5);
  EXPECT_THAT(other.log(), HasSubstr("has no tensor \"p\""));
}

}  // namespace
}  // namespace everstep::test
