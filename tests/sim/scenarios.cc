#include "tests/sim/scenarios.h"

#include <algorithm>

#include "tests/sim/plants.h"

namespace everstep::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

template <typename T>
T OneOf(Random& r, std::initializer_list<T> choices) {
  return *(choices.begin() + static_cast<long>(r.Below(choices.size())));
}

ParameterSpec MakeSpec(Random& r) {
  ParameterSpec spec;
  const auto add = [&](std::vector<int64_t> shape, DType dtype, Role role) {
    spec.tensors.push_back({"t" + std::to_string(spec.tensors.size()), std::move(shape), dtype, role});
  };
  const int64_t tensors = r.Between(1, 5);
  for (int64_t i = 0; i < tensors; ++i) {
    const auto shape = OneOf<std::vector<int64_t>>(r, {{}, {1}, {3}, {16}, {17, 3}, {7, 11}, {40}, {2, 0, 5}});
    if (r.Chance(0.15)) {
      add(shape, DType::kInt64, Role::kBuffer);
    } else {
      add(shape, DType::kFloat32, r.Chance(0.2) ? Role::kBuffer : Role::kTrainable);
    }
  }
  if (spec.bytes() == 0 || r.Chance(0.3)) add({r.Between(1, 60)}, DType::kFloat32, Role::kTrainable);
  return spec;
}

void ChooseOptimizer(Random& r, JobSpec* job) {
  OptimizerOptions& o = job->optimizer;
  o.kind = OneOf(r, {OptimizerKind::kSgd, OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW});
  o.learning_rate = OneOf(r, {0.1, 0.01, 0.5});
  if (o.kind == OptimizerKind::kSgd) {
    o.momentum = OneOf(r, {0.0, 0.9, 0.5});
    o.nesterov = o.momentum > 0 && r.Chance(0.4);
    if (o.momentum > 0 && !o.nesterov && r.Chance(0.3)) o.dampening = 0.1;
  }
  o.weight_decay = OneOf(r, {0.0, 0.0, 0.01});
  job->clip_norm = OneOf(r, {0.0, 0.5, 0.05});
  ScheduleOptions& s = job->schedule;
  if (r.Chance(0.4)) {
    s.kind = OneOf(r, {ScheduleKind::kStep, ScheduleKind::kCosine, ScheduleKind::kWsd});
    s.warmup_steps = r.Below(3);
    s.total_steps = 20;
    s.step_size = 4;
    s.gamma = 0.5;
    s.final_scale = 0.1;
    s.decay_steps = 6;
  }
}

void ChooseLength(Random& r, Scenario* s) {
  JobSpec& job = s->job;
  job.batch = static_cast<uint64_t>(OneOf<int>(r, {1, 4, 7, 16, 32}));
  if (r.Chance(0.2)) {  // the user brings their own data
    s->dataset_size = 0;
    job.epochs = 0;
    job.max_steps = static_cast<uint64_t>(r.Chance(0.5) ? r.Between(1, 40) : r.Between(40, 150));
    return;
  }
  const auto steps = static_cast<uint64_t>(r.Chance(0.5) ? r.Between(1, 40) : r.Between(40, 150));
  job.epochs = static_cast<uint64_t>(r.Between(1, 3));
  // Tiny ones (less than one batch), and what neither the batch nor the members divide.
  s->dataset_size = r.Chance(0.15) ? static_cast<uint64_t>(r.Between(1, 3))
                                   : std::max<uint64_t>(1, steps * job.batch / job.epochs + r.Below(job.batch + 1));
  if (r.Chance(0.2)) job.max_steps = 1 + r.Below(steps);
}

void ChooseFaults(Random& r, Scenario* s) {
  FaultMix& f = s->faults;
  f.every = milliseconds(OneOf<int>(r, {60, 150, 400}));
  s->fault_phase = milliseconds(r.Between(500, 6000));
  f.crash_worker = 4;
  f.crash_in_the_act = 6;
  f.leave = 2;
  f.join = 3;
  f.freeze_worker = 4;
  f.break_control = 3;
  f.break_bulk = 4;
  f.cut_worker = 3;
  if (r.Chance(0.5)) f.flapper = 2;
  if (r.Chance(0.5)) f.freeze_server = 2;
  if (r.Chance(0.5)) f.break_server = 3;
  if (r.Chance(0.3)) f.cut_server = 2;
  if (r.Chance(0.3)) f.freeze_coordinator = 2;
  if (r.Chance(0.3)) f.record_outage = 2;
  if (r.Chance(0.5)) f.stranger = 4;
  if (r.Chance(0.6)) f.crash_coordinator = 4;
  if (s->story == Story::kTakeover) f.takeover = 25;
  if (s->story == Story::kServerLost) f.crash_server = 6;
  if (s->story == Story::kReplicas) {
    f.crash_server = 8;
    f.join_server = 3;
    f.drain_server = 3;
  }
  if (r.Chance(0.25)) s->poison = OneOf(r, {0.01, 0.05});
  if (r.Chance(0.5)) s->abandon = 0.05;
  if (r.Chance(0.3)) s->slow_worker = 0.3;
  if (r.Chance(0.3)) s->record_unknown = 0.3;
  if (r.Chance(0.3)) s->network.garble = 0.01;
  if (r.Chance(0.2)) {
    s->network.spike = 0.002;
    s->network.spike_length = s->job.lease() * 2;
  }
}

Story ChooseStory(Random& r) {
  const uint64_t dice = r.Below(100);
  if (dice < 4) return Story::kCalm;
  if (dice < 40) return Story::kProcesses;
  if (dice < 64) return Story::kLossy;
  if (dice < 78) return Story::kTakeover;
  if (dice < 91) return Story::kReplicas;
  if (dice < 97) return Story::kPowerCuts;
  return Story::kServerLost;
}

// A planted bug that needs a certain moment is looked for where that moment is common.
void ChooseAmbush(Random& r, Scenario* s) {
  const Plant* plant = FindPlant(ActivePlant());
  if (plant != nullptr && plant->power_cuts && r.Chance(0.8)) {
    s->story = Story::kPowerCuts;
  } else if (plant != nullptr && plant->ambush != Ambush::kNone && r.Chance(0.8)) {
    s->story = Story::kReplicas;
    s->ambush = plant->ambush;
  } else if (s->story == Story::kReplicas && r.Chance(0.5)) {
    s->ambush = OneOf(r, {Ambush::kTornSeal, Ambush::kPublisherDies, Ambush::kWorkerAndServer, Ambush::kQuickRestart,
                          Ambush::kTwoSilences, Ambush::kReceiverDies, Ambush::kLateCommit});
  }
}

// Enough of everything that the moment comes, and little else that gets in between.
void MakeRoomForAmbush(Random& r, Scenario* s) {
  JobSpec& job = s->job;
  job.servers = static_cast<uint32_t>(r.Between(s->ambush == Ambush::kTornSeal ? 3 : std::max(2u, job.replication), 4));
  job.chunk_bytes = 64;
  while (s->spec.bytes() < 4 * 64) {
    s->spec.tensors.push_back({"t" + std::to_string(s->spec.tensors.size()), {40}, DType::kFloat32, Role::kTrainable});
  }
  s->workers = std::max<size_t>(s->workers, 2);
  if (s->dataset_size > 0) s->dataset_size = std::max<uint64_t>(s->dataset_size, 60 * job.batch);
  if (job.max_steps > 0) job.max_steps += 60;
  s->faults.every = milliseconds(r.Chance(0.5) ? 400 : 1500);
  s->fault_phase = milliseconds(r.Between(2000, 6000));
}

// Servers and coordinators die together or not at all; workers come and go meanwhile.
void ChoosePowerCuts(Random& r, Scenario* s) {
  s->job.servers = static_cast<uint32_t>(r.Between(1, 3));
  s->job.replication = r.Chance(0.5) ? 1 : 0;
  s->checkpoint_every = static_cast<uint64_t>(r.Between(1, 5));
  s->disk_latency = OneOf<Duration>(r, {milliseconds(2), milliseconds(30), s->job.lease()});
  if (r.Chance(0.3)) s->disk_failing = 0.02;
  if (s->dataset_size > 0) s->dataset_size = std::max<uint64_t>(s->dataset_size, 60 * s->job.batch);
  if (s->job.max_steps > 0) s->job.max_steps += 60;
  FaultMix& f = s->faults;
  f.every = milliseconds(400);
  s->fault_phase = milliseconds(r.Between(3000, 8000));
  f.freeze_server = f.cut_server = f.freeze_coordinator = f.record_outage = 0;
  f.crash_coordinator = f.stranger = 0;
  f.cut_power = 8;
  s->disk_damage = r.Chance(0.5) ? 0.5 : 0;
  s->record_unknown = 0;
  s->poison = 0;
}

}  // namespace

std::string_view Name(Story story) {
  switch (story) {
    case Story::kCalm: return "calm";
    case Story::kProcesses: return "processes";
    case Story::kLossy: return "lossy";
    case Story::kTakeover: return "takeover";
    case Story::kServerLost: return "server-lost";
    case Story::kPowerCuts: return "power-cuts";
    case Story::kReplicas: return "replicas";
  }
  return "unknown";
}

std::string_view Name(Ambush ambush) {
  switch (ambush) {
    case Ambush::kNone: return "none";
    case Ambush::kTornSeal: return "torn seals";
    case Ambush::kPublisherDies: return "publishers die";
    case Ambush::kWorkerAndServer: return "a worker and a server die together";
    case Ambush::kQuickRestart: return "servers are back at once";
    case Ambush::kTwoSilences: return "two servers are silent";
    case Ambush::kReceiverDies: return "receivers die";
    case Ambush::kLateCommit: return "late commits";
  }
  return "unknown";
}

Scenario MakeScenario(uint64_t seed) {
  Random r(Mix64(seed ^ 0x5ce7a210));
  Scenario s;
  s.seed = seed;
  s.story = ChooseStory(r);
  ChooseAmbush(r, &s);
  JobSpec& job = s.job;
  job.name = "sim";
  job.mode = OneOf(r, {Mode::kSync, Mode::kSync, Mode::kSync, Mode::kSsp, Mode::kAsync});
  job.servers = static_cast<uint32_t>(r.Between(1, 4));
  job.chunk_bytes = static_cast<uint64_t>(OneOf<int>(r, {64, 128, 256}));
  job.timeout = milliseconds(OneOf<int>(r, {2000, 3000, 6000}));
  job.staleness = r.Below(5);
  job.staleness_power = OneOf(r, {0.5, 1.0, 0.0});
  s.workers = static_cast<size_t>(r.Between(1, 5));
  job.min_workers = static_cast<uint32_t>(r.Between(1, static_cast<int64_t>(s.workers)));
  job.max_workers = 64;
  if (job.mode == Mode::kSync && r.Chance(0.3)) {
    job.quorum = OneOf(r, {0.5, 0.75});
    job.grace = milliseconds(r.Between(0, 60));
  }
  if (s.story == Story::kLossy || s.story == Story::kTakeover) job.servers = static_cast<uint32_t>(r.Between(2, 4));
  job.replication = 1;
  if (s.story == Story::kReplicas) {
    job.servers = static_cast<uint32_t>(r.Between(2, 4));
    job.replication = r.Chance(0.2) && job.servers >= 3 ? 3 : 0;
    job.verify_replicas = r.Below(4);
  }
  s.spec = MakeSpec(r);
  ChooseOptimizer(r, &job);
  ChooseLength(r, &s);
  s.network.latency = microseconds(OneOf<int>(r, {50, 200, 2000}));
  s.network.jitter = microseconds(OneOf<int>(r, {20, 300, 5000}));
  s.compute_min = microseconds(500);
  s.compute_max = milliseconds(r.Between(2, 40));
  s.server_work = microseconds(r.Between(10, 5000));
  s.record_latency = milliseconds(r.Between(1, 20));
  if (s.story == Story::kCalm) {
    job.min_workers = static_cast<uint32_t>(s.workers);
    job.mode = Mode::kSync;
    job.quorum = 1;
    s.compute_max = std::min<Duration>(s.compute_max, milliseconds(20));
    s.fault_phase = Duration{0};
    return s;
  }
  ChooseFaults(r, &s);
  if (s.ambush != Ambush::kNone) MakeRoomForAmbush(r, &s);
  if (s.story == Story::kPowerCuts) ChoosePowerCuts(r, &s);
  if (s.story == Story::kLossy || (s.story == Story::kReplicas && s.ambush != Ambush::kTwoSilences && r.Chance(0.3))) {
    s.lossy = true;
    s.network.drop = OneOf(r, {0.0, 0.002, 0.02});
    s.network.duplicate = OneOf(r, {0.01, 0.05, 0.1});
    s.network.reorder = OneOf(r, {0.0, 0.02, 0.2});
    if (r.Chance(0.3)) s.poison = 0.03;
  }
  return s;
}

std::string Describe(const Scenario& s) {
  const JobSpec& job = s.job;
  std::string text = std::string(Name(s.story)) + ": " + std::string(Name(job.mode)) + ", " +
                     std::to_string(job.servers) + " servers, replication " + std::to_string(job.replication) + ", " +
                     std::to_string(s.workers) + " workers (at least " + std::to_string(job.min_workers) + "), " +
                     std::to_string(s.dataset_size) + " samples, batch " + std::to_string(job.batch) + ", epochs " +
                     std::to_string(job.epochs) + ", max-steps " + std::to_string(job.max_steps) + ", timeout " +
                     std::to_string(static_cast<int>(Milliseconds(job.timeout))) + " ms, model of " +
                     std::to_string(s.spec.bytes()) + " bytes in chunks of " + std::to_string(job.chunk_bytes);
  if (s.checkpoint_every > 0) text += ", a checkpoint every " + std::to_string(s.checkpoint_every) + " steps";
  if (s.ambush != Ambush::kNone) text += ", " + std::string(Name(s.ambush));
  if (job.quorum < 1) text += ", quorum " + std::to_string(job.quorum);
  if (job.mode != Mode::kSync) text += ", staleness " + std::to_string(job.staleness);
  return text;
}

}  // namespace everstep::sim
