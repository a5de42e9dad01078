#include "tests/sim/run.h"

#include "tests/sim/faults.h"
#include "tests/sim/planned.h"

namespace everstep::sim {
namespace {

using std::chrono::milliseconds;

// How long the rest of the job may take once nothing goes wrong any more.
Duration LivenessBound(const Scenario& s) {
  const uint64_t batches = s.job.max_steps + s.job.epochs * (s.dataset_size / s.job.batch + 1);
  const Duration step =
      s.compute_max * 20 + s.server_work * 4 + (s.network.latency + s.network.jitter * 2) * 20 + milliseconds(20);
  return s.job.timeout * 4 + step * static_cast<int64_t>(batches + 30);
}

class Run {
 public:
  Run(uint64_t seed, const RunOptions& options, std::optional<uint64_t> network_seed)
      : cluster_(MakeScenario(seed), options.tracing), faults_(cluster_), world_(cluster_.world()) {
    world_.SetLineLimit(options.trace_lines);
    if (network_seed) world_.ReseedNetwork(*network_seed);
  }

  void Go() {
    const Scenario& scenario = cluster_.scenario();
    const Duration bound = LivenessBound(scenario);
    start_ = world_.now();
    world_.Trace(nullptr, [&] { return Describe(scenario); });
    cluster_.StartAll();
    faults_.Start();
    world_.RunUntil(start_ + scenario.fault_phase, [&] { return AllOver(); });
    if (world_.violation()) return;
    world_.Trace(nullptr, [] { return std::string("==== the faults stop"); });
    faults_.Heal();
    if (!world_.RunUntil(world_.now() + bound, [&] { return AllOver(); })) {
      world_.Violate(
          "P7", "the job did not end within " + std::to_string(static_cast<int>(Seconds(bound))) + " s without faults");
    }
    if (!world_.violation()) CheckEnd();
  }

  RunResult Result(uint64_t seed) {
    RunResult result;
    result.seed = seed;
    result.violation = world_.violation();
    result.scenario = Describe(cluster_.scenario());
    if (result.violation) result.states = cluster_.Describe();
    result.lines = world_.lines();
    result.faults = faults_.counts();
    const auto add = [&](const char* name, uint64_t count) {
      if (count > 0) result.faults[name] += count;
    };
    add("messages lost", world_.dropped());
    add("messages doubled", world_.duplicated());
    add("messages out of order", world_.reordered());
    add("messages late", world_.spiked());
    add("messages garbled", world_.garbled());
    result.steps = cluster_.checkers().chain().training_steps();
    result.messages = world_.messages();
    result.events = world_.events();
    result.coordinators = cluster_.coordinators().size();
    result.job_failed = failed_;
    result.virtual_time = world_.now() - start_;
    result.trace_hash = world_.trace_hash();
    return result;
  }

  uint64_t Fingerprint() { return cluster_.checkers().chain().Fingerprint(); }

 private:
  // The job has ended and every process knows it.
  bool AllOver() {
    const CoordinatorNode* ended = cluster_.Ended();
    if (ended == nullptr) return false;
    for (auto& worker : cluster_.workers()) {
      if (worker->running()) return false;
    }
    if (!ended->failure()) return true;
    for (auto& server : cluster_.servers()) {
      // One that came after the end has nobody to tell it.
      if (server->running() && server->core()->job_spec() && !server->core()->failure()) return false;
    }
    return true;
  }

  void CheckEnd() {
    const CoordinatorNode& ended = *cluster_.Ended();
    if (ended.failure()) return CheckFailure(*ended.failure());
    if (cluster_.scenario().story == Story::kServerLost && faults_.server_lost()) {
      // It died after the last commit; the end is the end.
      return;
    }
    cluster_.checkers().chain().AtEnd(cluster_.checkers().chain().version());
    bool somebody = false;
    for (auto& worker : cluster_.workers()) somebody |= worker->done();
    const bool late = world_.spiked() + world_.dropped() + world_.duplicated() + world_.reordered() > 0;
    if (!somebody && !late && faults_.counts().empty())
      world_.Violate("P7", "the job is complete, and no worker has its result");
  }

  void CheckFailure(const Status& failure) {
    failed_ = true;
    const ChainChecker& chain = cluster_.checkers().chain();
    const bool poison = failure.code() == Code::kNonFinite && chain.PoisonExplains(chain.version());
    const bool lost = failure.code() == Code::kFailed && faults_.server_lost();
    if (!poison && !lost) world_.Violate("P7", "the job was given up without a reason: " + failure.ToString());
  }

  Cluster cluster_;
  Faults faults_;
  World& world_;
  Time start_;
  bool failed_ = false;
};

}  // namespace

RunResult RunSeed(uint64_t seed, const RunOptions& options) {
  if (options.planned) return RunPlanned(seed, options);
  Run run(seed, options, std::nullopt);
  run.Go();
  RunResult result = run.Result(seed);
  if (result.violation || MakeScenario(seed).story != Story::kCalm) return result;
  // Nothing but the times of arrival differs: the bits must not (promise P5).
  Run again(seed, options, Mix64(seed ^ 0xa11));
  again.Go();
  RunResult second = again.Result(seed);
  if (!second.violation && again.Fingerprint() != run.Fingerprint()) {
    second.violation = Violation{"P5", "the same contributions in another order of arrival give other parameters"};
  }
  second.trace_hash ^= Mix64(result.trace_hash);
  return second;
}

}  // namespace everstep::sim
