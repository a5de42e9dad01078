// [etcd] The record in a real etcd: the coordinator is killed, and frozen until long after another one has taken
// office; etcd stands still in mid-training, and is restarted; a second job shares it. The first job's parameters are
// those that its commit records call for.
#include "tests/support/etcd.h"

#include <signal.h>

#include <thread>

#include "tests/proofs/replayed_job.h"

namespace everstep::test {
namespace {

double NowMs() { return static_cast<double>(SteadyNow().ns) / 1e6; }

// Until a step is committed by whoever has taken office since `ms`; how long that was.
Result<double> WaitTakenOver(Fleet& fleet, double ms) {
  double taken = 0;
  EVERSTEP_RETURN_IF_ERROR(fleet.WaitFor("another coordinator", [&](const json& s) {
    for (const json& event : EventsOf(s, "recovered")) {
      if (taken == 0 && event.at("at_ms") > ms) taken = event.at("at_ms").get<double>();
    }
    return taken > 0;
  }));
  EVERSTEP_RETURN_IF_ERROR(fleet.WaitSteps(2));
  return taken - ms;
}

Status KillCoordinator(ReplayedJob& job, json* figures) {
  Fleet& fleet = job.fleet;
  const double killed = NowMs();
  fleet.Kill(fleet.coordinator());
  EVERSTEP_ASSIGN((*figures)["killed_coordinator_ms"], WaitTakenOver(fleet, killed));
  EVERSTEP_RETURN_IF_ERROR(fleet.Add().status());
  return fleet.WaitWhole();
}

// It wakes when others have long committed without it, and may change nothing.
Status FreezeCoordinator(ReplayedJob& job, json* figures) {
  Fleet& fleet = job.fleet;
  const size_t frozen = fleet.coordinator();
  const std::string records = fleet.cluster().path(frozen == 0 ? "records.jsonl" : fleet.name(frozen) + ".jsonl");
  const double since = NowMs();
  fleet.cluster().server(frozen).Signal(SIGSTOP);
  EVERSTEP_ASSIGN((*figures)["frozen_coordinator_ms"], WaitTakenOver(fleet, since));
  if (fleet.coordinator() == frozen) return Broken("nobody took office");
  EVERSTEP_RETURN_IF_ERROR(fleet.WaitSteps(30));
  const size_t before = ReadCommits(records).size();
  fleet.cluster().server(frozen).Signal(SIGCONT);
  // It joins again, as a new and empty server, and gets its share.
  EVERSTEP_RETURN_IF_ERROR(fleet.WaitWhole());
  EVERSTEP_RETURN_IF_ERROR(fleet.WaitSteps(30));
  const size_t written = ReadCommits(records).size() - before;
  (*figures)["commits_by_the_one_that_woke"] = written;
  const std::string log = fleet.cluster().server(frozen).log();
  if (log.find("stands down") == std::string::npos) return Broken("the frozen coordinator did not stand down: " + log);
  // A step that it had sealed before may be seen to have committed; the chain will show that it is the same one.
  if (written > 1) return Broken("the coordinator that woke committed steps");
  return Status::Ok();
}

Status FreezeEtcd(ReplayedJob& job, Etcd& etcd, std::chrono::seconds time, json* figures) {
  EVERSTEP_ASSIGN(const json before, job.fleet.Ask());
  etcd.Freeze();
  std::this_thread::sleep_for(time);
  EVERSTEP_ASSIGN(const json after, job.fleet.Ask());
  etcd.Thaw();
  const uint64_t steps = after.at("step").get<uint64_t>() - before.at("step").get<uint64_t>();
  double longest = 0;
  EVERSTEP_ASSIGN(const std::vector<CommitLine> commits, job.fleet.Commits());
  for (size_t i = 1; i < commits.size(); ++i) {
    if (commits[i].step > before.at("step") && commits[i].step <= after.at("step"))
      longest = std::max(longest, commits[i].committed_ms - commits[i - 1].committed_ms);
  }
  (*figures)["etcd_frozen"] = {{"seconds", time.count()},
                               {"steps", steps},
                               {"longest_pause_ms", longest},
                               {"normal_step_ms", before.at("step_ms").at("median")}};
  const auto least = static_cast<uint64_t>(Seconds(time) * 1000 / before.at("step_ms").at("median").get<double>() / 2);
  if (steps < least) {
    return Broken("while etcd was frozen " + std::to_string(steps) + " steps were committed, at least " +
                  std::to_string(least) + " were due");
  }
  if (before.at("ballot") != after.at("ballot")) return Broken("a ballot was won without etcd");
  return Status::Ok();
}

// Elections and map changes work again.
Status RestartEtcd(const ProofContext& context, ReplayedJob& job, Etcd& etcd, json* figures) {
  etcd.Kill();
  EVERSTEP_RETURN_IF_ERROR(job.fleet.WaitSteps(100));
  if (!context.Plants("etcd-stays-away")) EVERSTEP_RETURN_IF_ERROR(etcd.Restart());
  json second;
  EVERSTEP_RETURN_IF_ERROR(KillCoordinator(job, &second));
  (*figures)["killed_after_etcd_restart_ms"] = second.at("killed_coordinator_ms");
  return Status::Ok();
}

}  // namespace

Status ProveEtcd(const ProofContext& context, json* figures) {
  EVERSTEP_ASSIGN(const std::unique_ptr<Etcd> etcd, Etcd::Start());
  const std::chrono::seconds frozen(context.quick ? 5 : 20);
  ReplayedJob job(context.quick ? 2500 : 4000, "--etcd=" + etcd->url());
  EVERSTEP_RETURN_IF_ERROR(job.Start(3, 2, {"--name=first"}));
  EVERSTEP_RETURN_IF_ERROR(job.fleet.WaitWhole());
  // Another job, which is in nobody's way and ends by itself.
  Fleet other("--etcd=" + etcd->url());
  EVERSTEP_RETURN_IF_ERROR(
      other.Start(2, {"--name=second", "--epochs=0", "--max-steps=200", "--batch=4", "--timeout-s=10"}));
  EVERSTEP_RETURN_IF_ERROR(other.StartWorker("b", {"--compute-ms=10"}).status());

  const auto all = [&]() -> Status {
    EVERSTEP_RETURN_IF_ERROR(KillCoordinator(job, figures));
    EVERSTEP_RETURN_IF_ERROR(FreezeCoordinator(job, figures));
    EVERSTEP_RETURN_IF_ERROR(FreezeEtcd(job, *etcd, frozen, figures));
    EVERSTEP_RETURN_IF_ERROR(RestartEtcd(context, job, *etcd, figures));
    EVERSTEP_RETURN_IF_ERROR(job.Finish(context, figures));
    EVERSTEP_RETURN_IF_ERROR(other.cluster().WaitForCleanEnd());
    EVERSTEP_ASSIGN(const std::vector<CommitLine> commits, other.Commits());
    EVERSTEP_RETURN_IF_ERROR(CheckChain(commits));
    (*figures)["steps_of_the_other_job"] = commits.size() - 1;
    return commits.size() == 201 ? Status::Ok() : Broken("the other job lost steps");
  };
  const Status outcome = all();
  if (outcome.ok()) return outcome;
  job.fleet.cluster().Keep();
  return outcome.With("kept: " + job.fleet.cluster().folder());
}

}  // namespace everstep::test
