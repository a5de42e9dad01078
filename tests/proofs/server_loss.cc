// [server-loss] kill -9 of a server, and of the coordinator's host: the copies take over, and the next step commits
// soon. One host, default settings, two copies of a 100 MB model on three servers.
#include <signal.h>

#include <algorithm>
#include <thread>

#include "base/random.h"
#include "tests/proofs/proof.h"
#include "tests/support/fleet.h"

namespace everstep::test {
namespace {

constexpr double kAllowedMs = 500;
const Flags kWorkerFlags{"--dataset=100000", "--compute-ms=50"};

double NowMs() { return static_cast<double>(SteadyNow().ns) / 1e6; }

// Of the first such event after a point in time; 0 when there is none yet.
double FirstAfter(const json& status, const std::string& kind, double ms) {
  for (const json& event : EventsOf(status, kind)) {
    if (event.at("at_ms") > ms) return event.at("at_ms").get<double>();
  }
  return 0;
}

struct Phases {
  std::vector<double> detect;   // kill -> its link is seen to have closed
  std::vector<double> promote;  // -> the map without it is in force
  std::vector<double> rejoin;   // within the next: the last worker has found the new coordinator
  std::vector<double> resend;   // -> every contribution is whole again and the step is sealed
  std::vector<double> commit;   // -> committed
  std::vector<double> beyond;   // all of it, less a normal step
  std::vector<double> longer;   // stricter: from the commit before the kill, less a normal step
  std::vector<double> normal;
  size_t rolled_forward = 0;  // the step in flight was as good as committed

  static json Spread(const std::vector<double>& values) {
    return {{"median", Median(values)},
            {"min", *std::min_element(values.begin(), values.end())},
            {"max", *std::max_element(values.begin(), values.end())}};
  }
  json ToJson() const {
    if (beyond.empty()) return nullptr;
    return {{"kills", beyond.size()},
            {"normal_step_ms", Median(normal)},
            {"detect_ms", Median(detect)},
            {"promote_ms", Median(promote)},
            {"rejoin_ms", Median(rejoin)},
            {"resend_ms", Median(resend)},
            {"commit_ms", Median(commit)},
            {"rolled_forward", rolled_forward},
            {"beyond_normal_ms", Spread(beyond)},
            {"step_longer_by_ms", Spread(longer)}};
  }
};

// Median of the last steps, in which nothing happened.
Result<double> NormalStep(Fleet& fleet, size_t steps) {
  EVERSTEP_RETURN_IF_ERROR(fleet.WaitSteps(steps));
  EVERSTEP_ASSIGN(const std::vector<CommitLine> commits, fleet.Commits());
  std::vector<double> times = StepTimes(commits);
  times.erase(times.begin(), times.end() - static_cast<long>(std::min(steps, times.size())));
  return Median(times);
}

// `frozen`: it only stands still, which is what the proof must not take for a quick death.
Status KillOne(Fleet& fleet, bool coordinating, bool frozen, double wait_share, Phases* phases) {
  EVERSTEP_RETURN_IF_ERROR(fleet.WaitWhole(std::chrono::seconds(120)));
  EVERSTEP_ASSIGN(const double normal, NormalStep(fleet, 7));
  size_t victim = fleet.coordinator();
  for (size_t server : fleet.alive()) {
    if (!coordinating && server != fleet.coordinator()) victim = server;
  }
  std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(wait_share * normal));
  const double killed = NowMs();
  if (frozen) {
    fleet.cluster().server(victim).Signal(SIGSTOP);
    fleet.Forget(victim);
  } else {
    fleet.Kill(victim);
  }

  // The first step that the ballot after the loss decides: one that commits before needed no recovery.
  double lost = 0, recovered = 0, committed = 0, sealed = 0, before = 0;
  EVERSTEP_RETURN_IF_ERROR(fleet.WaitFor("a ballot without " + fleet.name(victim), [&](const json& s) {
    lost = FirstAfter(s, coordinating ? "ballot" : "server-lost", killed);
    recovered = lost > 0 ? FirstAfter(s, "recovered", lost) : 0;
    return recovered > 0;
  }));
  const Time deadline = SteadyNow() + kPatience;
  while (committed == 0) {
    if (SteadyNow() > deadline) return {Code::kDeadlineExceeded, "no step was committed after the kill"};
    EVERSTEP_ASSIGN(const std::vector<CommitLine> commits, fleet.Commits());
    for (size_t i = 1; i < commits.size() && committed == 0; ++i) {
      // Rolled forward, it commits in the moment in which the ballot opens.
      if (commits[i].committed_ms < recovered - 1) continue;
      committed = commits[i].committed_ms;
      before = commits[i - 1].committed_ms;
      sealed = std::max(commits[i].sealed_ms, recovered);
      phases->rolled_forward += commits[i].sealed_ms <= recovered;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  phases->detect.push_back(lost - killed);
  phases->promote.push_back(recovered - lost);
  phases->resend.push_back(sealed - recovered);
  phases->commit.push_back(std::max(0.0, committed - sealed));
  phases->beyond.push_back(committed - killed - normal);
  if (coordinating) {
    EVERSTEP_ASSIGN(const json status, fleet.Ask());
    double joined = recovered;
    for (const json& event : EventsOf(status, "worker-joined"))
      joined = std::max(joined, event.at("at_ms").get<double>());
    phases->rejoin.push_back(joined - recovered);
  }
  phases->longer.push_back(committed - before - normal);
  phases->normal.push_back(normal);
  return fleet.Add().status();
}

}  // namespace

Status ProveServerLoss(const ProofContext& context, json* figures) {
  const uint64_t elements = context.quick ? 4'000'000 : 25'000'000;
  const bool frozen = context.Plants("frozen");
  const int kills = frozen ? 1 : context.quick ? 5 : 10;
  Random random(context.seed);
  Fleet fleet;
  EVERSTEP_RETURN_IF_ERROR(
      fleet.Start(3, {"--epochs=0", "--max-steps=1000000", "--batch=96", "--learning-rate=0.01", "--momentum=0.9"}));
  for (const char* name : {"a", "b"}) {
    Flags flags = kWorkerFlags;
    flags.push_back("--elements=" + std::to_string(elements));
    EVERSTEP_RETURN_IF_ERROR(fleet.StartWorker(name, flags).status());
  }
  EVERSTEP_RETURN_IF_ERROR(fleet.WaitSteps(5, std::chrono::seconds(60)));
  Phases server, coordinator;
  for (int i = 0; i < kills; ++i) {
    EVERSTEP_RETURN_IF_ERROR(KillOne(fleet, false, frozen, random.Uniform(), &server));
    if (frozen) break;
    EVERSTEP_RETURN_IF_ERROR(KillOne(fleet, true, false, random.Uniform(), &coordinator));
  }
  for (const char* name : {"a", "b"}) {
    if (!fleet.cluster().worker(name).running()) return Broken(std::string("worker ") + name + " has ended");
  }
  EVERSTEP_ASSIGN(const std::vector<CommitLine> commits, fleet.Commits());
  EVERSTEP_RETURN_IF_ERROR(CheckChain(commits));
  (*figures)["model_mb"] = elements * sizeof(float) / 1'000'000;
  (*figures)["server"] = server.ToJson();
  (*figures)["coordinator"] = coordinator.ToJson();
  (*figures)["allowed_ms"] = kAllowedMs;
  (*figures)["steps"] = commits.size();
  if (Median(server.beyond) > kAllowedMs)
    return Broken("the median loss of a server cost " + std::to_string(Median(server.beyond)) + " ms");
  if (Median(coordinator.beyond) > kAllowedMs)
    return Broken("the median loss of the coordinator cost " + std::to_string(Median(coordinator.beyond)) + " ms");
  return Status::Ok();
}

}  // namespace everstep::test
