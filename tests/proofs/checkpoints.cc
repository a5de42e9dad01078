// [torn-checkpoints] kill -9 in mid-save at random moments: a complete checkpoint, as new as any that was announced, is
// always found, and the job goes on from it. [n-to-m] Saved by 3 servers, loaded by 1, 2 and 5: the run that goes on
// ends as one that was never stopped, bit by bit.
#include <cstring>
#include <filesystem>
#include <thread>

#include "base/file.h"
#include "base/random.h"
#include "tests/proofs/proof.h"
#include "tests/support/saved_job.h"

namespace everstep::test {
namespace {

struct Torn {
  uint64_t newest = 0;  // complete version
  size_t broken = 0;    // that were skipped
  size_t met_a_save = 0;
};

// One life of the job, killed at some moment.
Status LiveAndDie(const ProofContext& context, Cluster& cluster, const std::string& folder, bool first, Random& random,
                  Torn* torn) {
  // Slow enough that a save is under way at almost any time: 24 kB at 0.1 MB/s are 240 ms on each server.
  EVERSTEP_RETURN_IF_ERROR(StartSaving(
      cluster, 2, folder,
      {"--max-steps=1000000", "--epochs=0", "--checkpoint-every=1", "--checkpoint-rate=0.1", "--checkpoint-keep=2"}));
  EVERSTEP_RETURN_IF_ERROR(StartSavedWorkers(cluster, {"--model=vector", "--elements=4000", "--compute-ms=2"}));
  EVERSTEP_RETURN_IF_ERROR(
      cluster.WaitFor("steps", [&](const json& s) { return s.at("version").get<uint64_t>() > torn->newest + 1; }));
  if (!first && cluster.server(0).log().find("resuming job everstep") == std::string::npos)
    return Broken("the job did not go on from its checkpoint: " + cluster.server(0).log());
  if (first) EVERSTEP_RETURN_IF_ERROR(cluster.WaitForEvent("checkpoint", ""));
  std::this_thread::sleep_for(std::chrono::milliseconds(random.Below(400)));
  EVERSTEP_ASSIGN(const json status, cluster.AskStatus());
  KillSaved(cluster, 2);
  if (context.Plants("newest-deleted")) {
    EVERSTEP_ASSIGN(const FoundCheckpoint newest, FindSaved(folder));
    if (newest.newest) std::filesystem::remove(folder + "/" + ManifestName(newest.newest->manifest().label));
  }
  EVERSTEP_ASSIGN(const FoundCheckpoint found, FindSaved(folder));
  const uint64_t version = found.newest ? found.newest->manifest().version.value : 0;
  uint64_t announced = torn->newest;
  for (const json& event : EventsOf(status, "checkpoint"))
    announced = std::max<uint64_t>(announced, std::stoull(event.at("target").get<std::string>().substr(1)));
  if (version < announced) {
    return Broken("version " + std::to_string(version) + " is the newest that loads, version " +
                  std::to_string(announced) + " was complete");
  }
  torn->newest = version;
  torn->broken += found.broken.size();
  torn->met_a_save += !found.broken.empty();
  return Status::Ok();
}

std::string BytesOf(Cluster& cluster, const std::string& name) {
  const Result<std::string> bytes = ReadFile(cluster.path(name));
  return bytes.ok() ? *bytes : "";
}

}  // namespace

Status ProveTornCheckpoints(const ProofContext& context, json* figures) {
  const int kills = context.quick ? 6 : 30;
  Random random(context.seed);
  Cluster shared;
  const std::string folder = shared.path("checkpoints");
  Torn torn;
  for (int life = 0; life < kills; ++life) {
    Cluster cluster;
    const Status lived = LiveAndDie(context, cluster, folder, life == 0, random, &torn);
    if (lived.ok()) continue;
    shared.Keep();
    return lived.With("life " + std::to_string(life) + ", seed " + std::to_string(context.seed) +
                      ", kept: " + shared.folder());
  }
  (*figures)["kills"] = kills;
  (*figures)["seed"] = context.seed;
  (*figures)["kills_in_mid_save"] = torn.met_a_save;
  (*figures)["torn_checkpoints_skipped"] = torn.broken;
  (*figures)["newest_complete_version"] = torn.newest;
  return torn.broken > 0 ? Status::Ok() : Broken("no kill met a save");
}

Status ProveNToM(const ProofContext& context, json* figures) {
  constexpr uint64_t kLast = 51;  // version
  Cluster whole;
  EVERSTEP_RETURN_IF_ERROR(StartSaving(whole, 1, whole.path("checkpoints"), {"--epochs=1"}));
  EVERSTEP_RETURN_IF_ERROR(StartSavedWorkers(whole));
  EVERSTEP_RETURN_IF_ERROR(whole.WaitForCleanEnd());
  EVERSTEP_ASSIGN(FoundCheckpoint want, FindSaved(whole.path("checkpoints")));
  if (!want.newest || want.newest->manifest().version.value != kLast)
    return Broken("the undisturbed run did not save its last version");
  EVERSTEP_ASSIGN(const auto wanted, ArraysOf(*want.newest));

  Cluster first;
  const std::string saved_in = first.path("checkpoints");
  EVERSTEP_RETURN_IF_ERROR(StartSaving(first, 3, saved_in, {"--epochs=1", "--checkpoint-every=10"}));
  EVERSTEP_RETURN_IF_ERROR(StartSavedWorkers(first, {"--compute-ms=10"}));
  EVERSTEP_RETURN_IF_ERROR(first.WaitForStep(23));
  KillSaved(first, 3);
  EVERSTEP_ASSIGN(const FoundCheckpoint saved, FindSaved(saved_in));
  if (!saved.newest || saved.newest->manifest().files.size() != 3)
    return Broken("3 servers did not save: " + Describe(saved.broken));
  (*figures)["saved_by"] = 3;
  (*figures)["saved_version"] = saved.newest->manifest().version.value;
  (*figures)["arrays"] = saved.newest->manifest().arrays;

  for (const size_t servers : {1u, 2u, 5u}) {
    const std::string here = std::to_string(servers) + " servers";
    Cluster second;
    const std::string folder = second.path("checkpoints");
    std::filesystem::copy(saved_in, folder);
    std::filesystem::copy_file(first.path("records.jsonl"), second.path("records.jsonl"));
    Flags job{"--epochs=1"};
    if (context.Plants("another-rate")) job.push_back("--learning-rate=0.011");
    EVERSTEP_RETURN_IF_ERROR(StartSaving(second, servers, folder, job));
    EVERSTEP_RETURN_IF_ERROR(StartSavedWorkers(second));
    EVERSTEP_RETURN_IF_ERROR(second.WaitForCleanEnd());
    if (second.server(0).log().find("resuming job everstep from checkpoint") == std::string::npos)
      return Broken(here + " did not go on from the checkpoint");
    EVERSTEP_ASSIGN(FoundCheckpoint got, FindSaved(folder));
    if (!got.newest || got.newest->manifest().version.value != kLast ||
        got.newest->manifest().files.size() != servers || got.newest->manifest().job != saved.newest->manifest().job) {
      return Broken(here + " did not end the job as theirs");
    }
    EVERSTEP_ASSIGN(const auto arrays, ArraysOf(*got.newest));
    if (BytesOf(second, "a.bin") != BytesOf(whole, "a.bin") || arrays != wanted)
      return Broken(here + " ended with other bits than the run that was never stopped");
    // The records are those of one run: lost steps are cut off, and each sample is used once.
    EVERSTEP_RETURN_IF_ERROR(CheckChain(second.commits()));
    EVERSTEP_RETURN_IF_ERROR(CheckLedger(second.commits(), 2000, 1));
    (*figures)["bit_equal_with_servers"].push_back(servers);
  }
  return Status::Ok();
}

}  // namespace everstep::test
