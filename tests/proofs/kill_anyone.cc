// [kill-anyone] kill -9 of whoever is in the job, at seeded random moments: each server in turn, the coordinator's host
// (also right after a worker got the new version from it), a worker, a worker and a server in the same step. Nothing
// that was committed is lost, no sample is used twice or never, and the parameters are those that the records call for.
#include <algorithm>
#include <cstdlib>
#include <thread>

#include "base/random.h"
#include "tests/proofs/replayed_job.h"

namespace everstep::test {
namespace {

constexpr uint64_t kStepsAKill = 100;  // many more than pass from one kill to the next
const char* const kKinds[] = {"server", "coordinator", "worker", "worker-and-server", "published", "server"};

std::string AnyWorker(const ReplayedJob& job, Random& random) {
  auto it = job.workers().begin();
  std::advance(it, static_cast<long>(random.Below(job.workers().size())));
  return *it;
}

// The one that has been there longest without coordinating: so each has its turn.
size_t NextServer(const Fleet& fleet) {
  for (size_t server : fleet.alive()) {
    if (server != fleet.coordinator()) return server;
  }
  return fleet.alive().front();
}

Status KillAndReplace(ReplayedJob& job, const std::string& kind, Random& random) {
  Fleet& fleet = job.fleet;
  const bool worker = kind.starts_with("worker");
  if (kind == "published") {
    // A worker that begins a step has just been told that the one before is committed; the others may not have been.
    EVERSTEP_RETURN_IF_ERROR(fleet.cluster().WaitForBegin(AnyWorker(job, random)).status());
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(random.Below(300'000)));
  }
  if (worker) job.KillWorker(AnyWorker(job, random));
  if (kind == "worker-and-server") fleet.Kill(NextServer(fleet));
  if (kind == "coordinator" || kind == "published") fleet.Kill(fleet.coordinator());
  if (kind == "server") fleet.Kill(NextServer(fleet));
  if (kind != "worker") EVERSTEP_RETURN_IF_ERROR(fleet.Add().status());
  if (worker) EVERSTEP_RETURN_IF_ERROR(job.AddWorker().status());
  EVERSTEP_RETURN_IF_ERROR(fleet.WaitWhole());
  EVERSTEP_RETURN_IF_ERROR(job.WaitWorkers());
  return fleet.WaitSteps(2);
}

}  // namespace

Status ProveKillAnyone(const ProofContext& context, json* figures) {
  const size_t kills = !context.control.empty() ? 1 : context.quick ? 6 : 50;
  Random random(context.seed);
  ReplayedJob job(kills * kStepsAKill);
  EVERSTEP_RETURN_IF_ERROR(job.Start(3, 3));
  EVERSTEP_RETURN_IF_ERROR(job.fleet.WaitWhole());
  std::map<std::string, int> done;
  std::vector<double> whole_again;
  const auto fail = [&](const Status& why, size_t i, const std::string& kind) {
    job.fleet.cluster().Keep();
    return why.With("kill " + std::to_string(i) + " (" + kind + "; kept: " + job.fleet.cluster().folder() + ")");
  };
  if (context.Plants("both-copies")) {
    job.fleet.Kill(NextServer(job.fleet));
    job.fleet.Kill(NextServer(job.fleet));
    return job.fleet.WaitSteps(10, std::chrono::seconds(60));
  }
  for (size_t i = 0; i < kills; ++i) {
    const std::string kind = kKinds[i % std::size(kKinds)];
    const Time began = SteadyNow();
    if (const Status killed = KillAndReplace(job, kind, random); !killed.ok()) return fail(killed, i, kind);
    whole_again.push_back(Milliseconds(SteadyNow() - began));
    ++done[kind];
  }
  (*figures)["kills"] = done;
  (*figures)["whole_again_ms"] = {{"median", Median(whole_again)},
                                  {"max", *std::max_element(whole_again.begin(), whole_again.end())}};
  const Status finished = job.Finish(context, figures);
  return finished.ok() ? finished : fail(finished, kills, "the end");
}

}  // namespace everstep::test
