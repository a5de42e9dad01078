// [kill-worker] kill -9 of a worker in mid-step on one host, at default settings: the step commits without it, soon,
// and nobody else restarts or reconnects.
#include <algorithm>
#include <csignal>

#include "base/random.h"
#include "tests/proofs/proof.h"

namespace everstep::test {
namespace {

constexpr double kAllowedMs = 250;
constexpr double kComputeMs = 40;

// The first commit after `ms` whose step the victim had been given work for; its time.
Result<double> CommitAfter(Cluster& cluster, double ms) {
  const Time deadline = SteadyNow() + kPatience;
  while (SteadyNow() < deadline) {
    for (const CommitLine& commit : cluster.commits()) {
      if (commit.committed_ms > ms) return commit.committed_ms;
    }
    (void)cluster.AskStatus();
  }
  return Status(Code::kDeadlineExceeded, "no step was committed after the kill");
}

}  // namespace

Status ProveKillWorker(const ProofContext& context, json* figures) {
  const int kills = context.quick ? 5 : 20;
  Random random(context.seed);
  Cluster cluster;
  EVERSTEP_RETURN_IF_ERROR(cluster.StartServers(
      2, {"--epochs=0", "--max-steps=100000", "--batch=96", "--learning-rate=0.01", "--no-progress"}));
  const Flags flags{"--elements=300000", "--dataset=100000", "--announce",
                    "--compute-ms=" + std::to_string(kComputeMs)};
  for (const char* name : {"stays1", "stays2"}) EVERSTEP_RETURN_IF_ERROR(cluster.StartWorker(name, flags).status());
  std::vector<double> over;
  std::vector<double> normal;
  for (int i = 0; i < kills; ++i) {
    const std::string name = "victim" + std::to_string(i);
    EVERSTEP_ASSIGN(Program * victim, cluster.StartWorker(name, flags));
    EVERSTEP_RETURN_IF_ERROR(cluster.WaitForReady(3));
    for (int step = 0; step < 3; ++step) EVERSTEP_RETURN_IF_ERROR(cluster.WaitForBegin(name).status());
    std::vector<double> times = StepTimes(cluster.commits());
    if (times.size() > 20) times.erase(times.begin(), times.end() - 20);
    normal.push_back(Median(times));
    EVERSTEP_RETURN_IF_ERROR(cluster.WaitForBegin(name).status());
    // Somewhere inside its computation.
    const Time until = SteadyNow() + Duration(static_cast<int64_t>(random.Uniform() * kComputeMs * 0.8 * 1e6));
    while (SteadyNow() < until) {
    }
    const double killed_ms = static_cast<double>(SteadyNow().ns) / 1e6;
    victim->Kill();
    EVERSTEP_ASSIGN(const double committed_ms, CommitAfter(cluster, killed_ms));
    over.push_back(committed_ms - killed_ms - normal.back());
    EVERSTEP_RETURN_IF_ERROR(cluster.WaitForEvent("worker-lost", name));
  }
  EVERSTEP_ASSIGN(const json status, cluster.AskStatus());
  for (const char* name : {"stays1", "stays2"}) cluster.worker(name).Signal(SIGTERM);
  for (const char* name : {"stays1", "stays2"}) {
    EVERSTEP_ASSIGN(const int code, cluster.worker(name).Wait());
    const json result = cluster.worker(name).result();
    if (code != 0) return Broken(std::string(name) + " ended with exit code " + std::to_string(code));
    (*figures)[name] = {{"lives", result.at("lives")}, {"links", result.at("links")}};
    // One life; one control link and one bulk link a server.
    if (result.at("lives") != 1 || result.at("links") != 3) return Broken(std::string(name) + " had to reconnect");
  }
  EVERSTEP_RETURN_IF_ERROR(CheckChain(cluster.commits()));
  (*figures)["kills"] = kills;
  (*figures)["normal_step_ms"] = Median(normal);
  (*figures)["beyond_normal_ms"] = {{"median", Median(over)},
                                    {"min", *std::min_element(over.begin(), over.end())},
                                    {"max", *std::max_element(over.begin(), over.end())}};
  (*figures)["allowed_ms"] = kAllowedMs;
  (*figures)["losses"] = status.at("counters").at("losses");
  if (Median(over) > kAllowedMs) return Broken("the median kill cost " + std::to_string(Median(over)) + " ms");
  return Status::Ok();
}

}  // namespace everstep::test
