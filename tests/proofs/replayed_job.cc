#include "tests/proofs/replayed_job.h"

#include <signal.h>

#include <algorithm>
#include <cstring>

#include "base/file.h"
#include "tests/support/replay.h"

namespace everstep::test {
namespace {

constexpr uint64_t kBatch = 48;
constexpr uint64_t kModelSeed = 3;

// One sample more of the one, one less of the other: the sum stays 1.
void ForgeWeight(std::vector<CommitLine>* commits) {
  for (CommitLine& commit : *commits) {
    if (commit.contributors.size() < 2) continue;
    commit.contributors[0].weight += 1.0 / kBatch;
    commit.contributors[1].weight -= 1.0 / kBatch;
    return;
  }
}

}  // namespace

Status ReplayedJob::Start(size_t servers, size_t workers, Flags more) {
  Flags job{"--epochs=1", "--batch=" + std::to_string(kBatch), "--learning-rate=0.05", "--momentum=0.5",
            "--timeout-s=10"};
  const auto cuts = [](const std::string& flag) { return flag.starts_with("--chunk-bytes="); };
  if (std::none_of(more.begin(), more.end(), cuts)) job.push_back("--chunk-bytes=256");
  job.insert(job.end(), more.begin(), more.end());
  EVERSTEP_RETURN_IF_ERROR(fleet.Start(servers, std::move(job)));
  for (size_t i = 0; i < workers; ++i) EVERSTEP_RETURN_IF_ERROR(AddWorker().status());
  return WaitWorkers();
}

Result<std::string> ReplayedJob::AddWorker() {
  const std::string name = "w" + std::to_string(next_++);
  EVERSTEP_RETURN_IF_ERROR(
      fleet
          .StartWorker(name, {"--model=mlp", "--model-seed=" + std::to_string(kModelSeed), "--announce",
                              "--dataset=" + std::to_string(steps_ * kBatch), "--compute-ms=15", "--jitter-ms=5",
                              "--jitter-seed=" + std::to_string(next_)})
          .status());
  workers_.insert(name);
  return name;
}

Status ReplayedJob::WaitWorkers() {
  return fleet.WaitFor(
      std::to_string(workers_.size()) + " ready workers",
      [&](const json& s) {
        size_t ready = 0;
        for (const json& m : s.at("members")) ready += m.at("ready").get<bool>() && workers_.contains(m.at("name"));
        return ready == workers_.size();
      },
      std::chrono::seconds(30));
}

void ReplayedJob::KillWorker(const std::string& name) {
  fleet.cluster().worker(name).Kill();
  workers_.erase(name);
}

Status ReplayedJob::Finish(const ProofContext& context, json* figures) {
  EVERSTEP_ASSIGN(const json disturbed, fleet.Ask());
  const std::string dump = fleet.cluster().path("last.bin");
  EVERSTEP_ASSIGN(Program * last,
                  fleet.StartWorker("last", {"--model=mlp", "--model-seed=" + std::to_string(kModelSeed),
                                             "--dataset=" + std::to_string(steps_ * kBatch), "--dump=" + dump}));
  EVERSTEP_RETURN_IF_ERROR(fleet.WaitFor("the last worker", [&](const json& s) {
    for (const json& m : s.at("members")) {
      if (m.at("name") == "last" && m.at("ready")) return true;
    }
    return false;
  }));
  for (const std::string& name : workers_) fleet.cluster().worker(name).Signal(SIGTERM);
  EVERSTEP_ASSIGN(const int code, last->Wait(std::chrono::minutes(10)));
  if (code != 0) return Broken("the last worker ended with " + std::to_string(code) + ": " + last->log());
  EVERSTEP_RETURN_IF_ERROR(fleet.cluster().WaitForCleanEnd(std::chrono::seconds(60)));

  EVERSTEP_ASSIGN(std::vector<CommitLine> commits, fleet.Commits());
  if (context.Plants("forged-weight")) ForgeWeight(&commits);
  if (context.Plants("lost-record")) commits.erase(commits.begin() + static_cast<long>(commits.size() / 2));
  EVERSTEP_RETURN_IF_ERROR(CheckChain(commits));
  EVERSTEP_RETURN_IF_ERROR(CheckLedger(commits, steps_ * kBatch, 1));
  uint64_t contributions = 0;
  for (const CommitLine& commit : commits) contributions += commit.contributors.size();
  const auto model = MakeMlpModel(kModelSeed);
  const std::vector<float> wanted = Replay(commits, {1, steps_ * kBatch, 0.5f}, model.get());
  EVERSTEP_ASSIGN(const std::string got, ReadFile(dump));
  (*figures)["steps"] = commits.size() - 1;
  (*figures)["steps_disturbed"] = disturbed.at("step");
  (*figures)["contributions"] = contributions;
  (*figures)["samples"] = steps_ * kBatch;
  (*figures)["parameters"] = wanted.size();
  const bool equal =
      got.size() == wanted.size() * sizeof(float) && std::memcmp(got.data(), wanted.data(), got.size()) == 0;
  (*figures)["bit_equal_to_replay"] = equal;
  return equal ? Status::Ok() : Broken("the parameters are not those that the records call for");
}

}  // namespace everstep::test
