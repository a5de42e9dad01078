#include "tests/sim/faults.h"

#include <algorithm>
#include <cmath>

namespace everstep::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kMostWorkers = 8;
constexpr size_t kMostServers = 7;

}  // namespace

Faults::Faults(Cluster& cluster)
    : cluster_(cluster),
      world_(cluster.world()),
      random_(Mix64(cluster.scenario().seed ^ 0xfa0175)),
      stranger_(world_, cluster.scenario()),
      ambusher_(cluster, *this) {
  world_.AddTap(this);
}

void Faults::Start() {
  if (cluster_.scenario().lossy) cluster_.checkers().members().DisturbAll(Time::Never());
  if (cluster_.scenario().faults.every > Duration{0}) ScheduleNext();
}

void Faults::ScheduleNext() {
  const double mean = static_cast<double>(cluster_.scenario().faults.every.count());
  const auto wait = Duration(static_cast<int64_t>(-std::log(1 - random_.Uniform()) * mean));
  world_.After(wait, [this] {
    if (healed_) return;
    StrikeOnce();
    ScheduleNext();
  });
}

void Faults::StrikeOnce() {
  const FaultMix& mix = cluster_.scenario().faults;
  struct Choice {
    int weight;
    std::function<void()> strike;
  };
  const Choice choices[] = {
      {mix.crash_worker,
       [this] {
         if (WorkerNode* w = AnyWorker()) CrashWorker(*w, random_.Chance(0.2));
       }},
      {mix.crash_in_the_act, [this] { CrashInTheAct(); }},
      {mix.leave, [this] { Leave(); }},
      {mix.join, [this] { Join(); }},
      {mix.flapper, [this] { Flap(); }},
      {mix.freeze_worker, [this] { FreezeWorker(); }},
      {mix.freeze_server, [this] { FreezeServer(); }},
      {mix.freeze_coordinator, [this] { FreezeCoordinator(); }},
      {mix.break_control, [this] { BreakControl(); }},
      {mix.break_bulk, [this] { BreakBulk(); }},
      {mix.break_server, [this] { BreakServer(); }},
      {mix.cut_worker, [this] { CutWorker(); }},
      {mix.cut_server, [this] { CutServer(); }},
      {mix.crash_coordinator, [this] { CrashCoordinator(cluster_.coordinator(), random_.Chance(0.2)); }},
      {mix.takeover, [this] { TakeOver(); }},
      {mix.crash_server, [this] { CrashServer(); }},
      {mix.join_server, [this] { JoinServer(); }},
      {mix.drain_server, [this] { DrainServer(); }},
      {mix.cut_power, [this] { CutPower(); }},
      {mix.record_outage, [this] { RecordOutage(); }},
      {mix.stranger, [this] { StrangerComes(); }},
  };
  int total = 0;
  for (const Choice& choice : choices) total += choice.weight;
  if (total == 0) return;
  auto dice = static_cast<int>(random_.Below(static_cast<uint64_t>(total)));
  for (const Choice& choice : choices) {
    if (dice < choice.weight) return choice.strike();
    dice -= choice.weight;
  }
}

void Faults::Heal() {
  healed_ = true;
  trigger_.reset();
  Scenario& scenario = cluster_.scenario();
  scenario.poison = scenario.abandon = 0;
  Network& network = world_.network();
  network.drop = network.duplicate = network.reorder = network.spike = network.garble = 0;
  network.held.clear();
  const std::vector<Node*> all = cluster_.AllNodes();
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      if (world_.Cut(*all[i], *all[k])) world_.SetCut(*all[i], *all[k], false);
    }
  }
  world_.Bind("coordinator", &cluster_.coordinator());
  for (auto& node : cluster_.coordinators()) {
    if (node.get() != &cluster_.coordinator()) node->Crash(false);
  }
  for (Node* node : all) node->Resume();
  cluster_.record().Calm();
  cluster_.folder().disk->DontCut();
  cluster_.folder().disk->SetFailing(0);
  cluster_.KeepEnoughWorkers();
  if (scenario.lossy) cluster_.checkers().members().CalmFrom(world_.now() + cluster_.job().timeout);
}

// ---- Workers ----

WorkerNode* Faults::AnyWorker() {
  std::vector<WorkerNode*> running;
  for (auto& worker : cluster_.workers()) {
    if (worker->running() && !worker->paused()) running.push_back(worker.get());
  }
  return running.empty() ? nullptr : running[random_.Below(running.size())];
}

void Faults::CrashWorker(WorkerNode& worker, bool silent) {
  Count(silent ? "worker hosts lost" : "workers killed");
  worker.Crash(silent);
  const Time back = world_.now() + UpTo(random_.Chance(0.5) ? milliseconds(30) : cluster_.job().lease() * 3);
  // What its last life said may arrive after what the next one says.
  worker.Disturb(back + cluster_.job().lease() * 3);
  cluster_.WorkerComesAt(worker, back);
}

// Dies between one message and the next: a push that reached some servers, a commit that reached one of them.
void Faults::CrashInTheAct() {
  const bool coordinator = cluster_.scenario().faults.crash_coordinator > 0 && random_.Chance(0.5);
  if (coordinator) {
    static constexpr std::string_view kMessages[] = {"Grant",  "SealStep", "Commit", "Commit",
                                                     "Commit", "Promise",  "Finish", "Welcome"};
    Node& node = cluster_.coordinator();
    const int count = random_.Chance(0.4) ? 1 : static_cast<int>(random_.Between(1, 6));
    trigger_ = Trigger{&node, node.life(), kMessages[random_.Below(std::size(kMessages))], count};
  } else if (WorkerNode* worker = AnyWorker()) {
    static constexpr std::string_view kMessages[] = {"Push", "Push", "Push", "Pull", "Ready", "Report"};
    trigger_ = Trigger{worker, worker->life(), kMessages[random_.Below(std::size(kMessages))],
                       static_cast<int>(random_.Between(1, 6))};
  }
}

void Faults::OnSent(Node& from, Node* to, const Envelope& envelope) {
  if (!healed_ && to != nullptr && std::holds_alternative<Snapshot>(envelope.body)) LoseSnapshot(from, *to);
  if (healed_ || !trigger_ || trigger_->node != &from || trigger_->life != from.life()) return;
  if (Name(envelope.body) != trigger_->message || --trigger_->count > 0) return;
  trigger_.reset();
  Count("deaths in the act");
  from.Doom();
  world_.After(Duration{0}, [this, &from, life = from.life()] {
    if (from.life() != life || !from.running()) return;
    if (auto* worker = dynamic_cast<WorkerNode*>(&from)) CrashWorker(*worker, false);
    if (auto* coordinator = dynamic_cast<CoordinatorNode*>(&from)) CrashCoordinator(*coordinator, false);
  });
}

void Faults::Leave() {
  if (WorkerNode* worker = AnyWorker()) {
    Count("workers left");
    worker->AskToLeave();
  }
}

void Faults::Join() {
  if (cluster_.workers().size() >= kMostWorkers) return;
  Count("workers joined");
  cluster_.AddWorker();
}

// A worker that dies soon after each start.
void Faults::Flap() {
  if (cluster_.workers().size() >= kMostWorkers) return;
  Count("flappers");
  FlapOnce(cluster_.AddWorker("flap" + std::to_string(cluster_.workers().size() + 1)), 8);
}

void Faults::FlapOnce(WorkerNode& worker, int times) {
  world_.After(UpTo(milliseconds(60)), [this, &worker, times] {
    if (healed_) return;
    worker.Crash(false);
    worker.Disturb(world_.now() + cluster_.job().lease() * 3);
    world_.After(UpTo(milliseconds(40)), [this, &worker, times] {
      if (healed_) return;
      if (!worker.running()) worker.Start();
      if (times > 0) FlapOnce(worker, times - 1);
    });
  });
}

void Faults::FreezeWorker() {
  WorkerNode* worker = AnyWorker();
  if (worker == nullptr) return;
  Count("workers frozen");
  const Duration time = UpTo(cluster_.job().lease() * (random_.Chance(0.2) ? 8 : 2));
  worker->Pause();
  worker->Disturb(world_.now() + time + cluster_.job().lease() * 3);
  world_.After(time, [worker] { worker->Resume(); });
}

void Faults::BreakControl() {
  WorkerNode* worker = AnyWorker();
  if (worker == nullptr) return;
  for (const auto& link : world_.LinksBetween(*worker, cluster_.coordinator())) {
    Count("control links broken");
    const Duration notice = UpTo(random_.Chance(0.5) ? milliseconds(20) : cluster_.job().lease());
    world_.Break(link, notice);
    worker->Disturb(world_.now() + notice + cluster_.job().lease() * 3);
  }
}

void Faults::BreakBulk() {
  WorkerNode* worker = AnyWorker();
  ServerNode* server = AnyServer();
  if (worker == nullptr || server == nullptr) return;
  for (const auto& link : world_.LinksBetween(*worker, *server)) {
    Count("bulk links broken");
    world_.Break(link, UpTo(random_.Chance(0.5) ? milliseconds(20) : cluster_.job().lease() * 2));
  }
}

void Faults::CutWorker() {
  WorkerNode* worker = AnyWorker();
  if (worker == nullptr) return;
  Count("partitions of workers");
  std::vector<Node*> others;
  const uint64_t kind = random_.Below(3);
  if (kind != 1) others.push_back(&cluster_.coordinator());
  if (kind == 1) others.push_back(AnyServer());
  if (kind == 2) {
    for (auto& server : cluster_.servers()) others.push_back(server.get());
  }
  const Duration time = UpTo(cluster_.job().lease() * (random_.Chance(0.2) ? 6 : 2));
  for (Node* other : others) {
    if (other == nullptr) continue;
    world_.SetCut(*worker, *other, true);
    world_.After(time, [this, worker, other] { world_.SetCut(*worker, *other, false); });
  }
  // Connections that are tried meanwhile give up later.
  worker->Disturb(world_.now() + time + seconds(3) + cluster_.job().lease() * 3);
}

// ---- Servers ----

ServerNode* Faults::AnyServer() {
  std::vector<ServerNode*> running;
  for (auto& server : cluster_.servers()) {
    if (server->running() && !server->paused()) running.push_back(server.get());
  }
  return running.empty() ? nullptr : running[random_.Below(running.size())];
}

void Faults::FreezeServer() {
  ServerNode* server = AnyServer();
  if (server == nullptr || server_trouble_[server] > world_.now()) return;
  Count("servers frozen");
  FreezeServer(*server, UpTo(cluster_.job().lease() * 2));
}

void Faults::FreezeServer(ServerNode& server, Duration time) {
  server_trouble_[&server] = world_.now() + time + cluster_.job().lease() * 2;
  server.Pause();
  world_.After(time, [&server] { server.Resume(); });
}

void Faults::BreakServer() {
  ServerNode* server = AnyServer();
  if (server == nullptr || server_trouble_[server] > world_.now()) return;
  for (const auto& link : world_.LinksBetween(*server, cluster_.coordinator())) {
    Count("server links broken");
    world_.Break(link, cluster_.job().lease() / 4);
    server_trouble_[server] = world_.now() + cluster_.job().lease() * 2;
  }
}

void Faults::CutServer() {
  ServerNode* server = AnyServer();
  // Both at once can keep them apart for longer than anybody has to wait.
  if (server == nullptr || server_trouble_[server] > world_.now() || coordinator_trouble_ > world_.now()) return;
  Count("partitions of servers");
  Node& coordinator = cluster_.coordinator();
  const Duration time = UpTo(cluster_.job().lease() / 2);
  server_trouble_[server] = world_.now() + time + cluster_.job().lease() * 2;
  world_.SetCut(*server, coordinator, true);
  world_.After(time, [this, server, &coordinator] { world_.SetCut(*server, coordinator, false); });
}

// No server is in trouble, so that the one that is lost next is the only one.
bool Faults::ServersCalm() const {
  return std::all_of(server_trouble_.begin(), server_trouble_.end(),
                     [&](const auto& entry) { return entry.second <= world_.now(); });
}

void Faults::JoinServer() {
  if (cluster_.servers().size() >= kMostServers || !cluster_.record().record()) return;
  Count("servers joined");
  cluster_.AddServer();
}

void Faults::DrainServer() {
  ServerNode* server = AnyServer();
  if (server == nullptr || !ServersCalm() || cluster_.servers().size() < 3 || !cluster_.record().record()) return;
  Count("servers drained");
  server->AskToLeave();
}

// Not while the map is being changed: it may be about to give up the only other copy.
bool Faults::Steady() {
  Coordinator* core = cluster_.coordinator().core();
  const bool map =
      core != nullptr && core->map() && cluster_.record().record() && *core->map() == cluster_.record().record()->map;
  const bool open = map && (core->state() == Coordinator::State::kOpen || core->state() == Coordinator::State::kSealed);
  return open && ServersCalm();
}

void Faults::KillServer(ServerNode& server, bool silent) {
  const Duration lease = cluster_.job().lease();
  server_trouble_[&server] = world_.now() + lease * (silent ? 4 : 1);
  cluster_.ServerComesAt(server, world_.now() + UpTo(random_.Chance(0.5) ? milliseconds(50) : lease * 3));
  server.Crash(silent);
}

void Faults::CrashServer() {
  ServerNode* server = AnyServer();
  if (cluster_.scenario().story == Story::kReplicas) {
    if (server == nullptr || !Steady() || !cluster_.CanLose(*server)) return;
    Count("servers killed");
    return KillServer(*server, random_.Chance(0.2));
  }
  if (server == nullptr || server_lost_ || !cluster_.record().record()) return;
  Count("servers killed");
  server_lost_ = true;
  server->Crash(random_.Chance(0.3));
  // What comes back is empty, another incarnation, and must not be taken for the old one.
  if (random_.Chance(0.5)) {
    world_.After(UpTo(cluster_.job().lease()), [server] {
      if (!server->running()) server->Start();
    });
  }
}

// ---- The coordinator ----

void Faults::FreezeCoordinator() {
  CoordinatorNode& node = cluster_.coordinator();
  if (!node.running() || node.paused() || coordinator_trouble_ > world_.now() || !ServersCalm()) return;
  Count("coordinators frozen");
  const Duration time = UpTo(cluster_.job().lease() * 3);
  coordinator_trouble_ = world_.now() + time + cluster_.job().lease() * 3;
  cluster_.checkers().members().DisturbAll(world_.now() + time + cluster_.job().timeout);
  node.Pause();
  world_.After(time, [&node] { node.Resume(); });
}

void Faults::CrashCoordinator(CoordinatorNode& node, bool silent) {
  if (!node.running() || &node != &cluster_.coordinator()) return;
  Count(silent ? "coordinator hosts lost" : "coordinators killed");
  const Time back = world_.now() + UpTo(random_.Chance(0.5) ? milliseconds(50) : cluster_.job().lease() * 2);
  cluster_.checkers().members().DisturbAll(back + cluster_.job().timeout);
  cluster_.CoordinatorComesAt(back);
  node.Crash(silent);
}

// A second coordinator takes office while the first is frozen. The first one wakes up and believes that nothing has
// happened; for a while its address may even lead back to it.
void Faults::TakeOver() {
  CoordinatorNode& old = cluster_.coordinator();
  if (old.core() == nullptr || !old.running() || old.paused() || !cluster_.record().record() ||
      coordinator_trouble_ > world_.now())
    return;
  Count("takeovers");
  const Duration lease = cluster_.job().lease();
  const Duration asleep = random_.Chance(0.7) ? lease / 4 + UpTo(lease) : UpTo(lease * 3);
  coordinator_trouble_ = world_.now() + asleep + lease * 8;
  cluster_.checkers().members().DisturbAll(world_.now() + asleep + lease * 8 + cluster_.job().timeout);
  old.Pause();
  for (const auto& link : world_.LinksOf(old)) {
    world_.After(UpTo(lease / 4), [this, link] { world_.Break(link, milliseconds(10)); });
  }
  cluster_.StartCoordinator();
  const bool misroute = random_.Chance(0.6);
  world_.After(asleep, [this, &old, misroute] {
    old.Resume();
    if (misroute) Misroute(old);
  });
  world_.After(asleep + UpTo(lease * 4), [&old] { old.Crash(false); });
}

void Faults::Misroute(CoordinatorNode& old) {
  if (healed_ || !old.running()) return;
  CoordinatorNode& current = cluster_.coordinator();
  for (auto& server : cluster_.servers()) {
    if (server->paused() || server_trouble_[server.get()] > world_.now()) return;
  }
  Count("misroutings");
  for (auto& server : cluster_.servers()) {
    server_trouble_[server.get()] = world_.now() + cluster_.job().lease() * 3;
    for (const auto& link : world_.LinksBetween(*server, current)) world_.Break(link, milliseconds(2));
  }
  world_.Bind("coordinator", &old);
  world_.After(cluster_.job().lease() / 3 + UpTo(cluster_.job().lease() / 3), [this, &old] {
    world_.Bind("coordinator", &cluster_.coordinator());
    for (const auto& link : world_.LinksOf(old)) world_.Break(link, milliseconds(2));
  });
}

void Faults::StrangerComes() {
  if (!cluster_.record().record()) return;  // who says hello first makes the job
  if (!stranger_.running()) stranger_.Start();
  Count("visits of strangers");
  const bool coordinator = random_.Chance(0.5);
  const auto& servers = cluster_.servers();
  stranger_.Visit(coordinator ? "coordinator" : servers[random_.Below(servers.size())]->name(), coordinator);
}

// At once, or in the middle of what is written next.
void Faults::CutPower() {
  if (!cluster_.checkers().disk().anything() || cluster_.folder().memory_lost || coordinator_trouble_ > world_.now() ||
      cluster_.Ended() != nullptr)
    return;
  const Duration lease = cluster_.job().lease();
  coordinator_trouble_ = world_.now() + lease * 5;
  const auto cut = [this, lease] {
    if (healed_ || cluster_.Ended() != nullptr) return;
    Count("power cuts");
    const Time back = world_.now() + UpTo(lease);
    coordinator_trouble_ = back + lease * 4;
    cluster_.checkers().members().DisturbAll(back + cluster_.job().timeout + lease * 4);
    if (random_.Chance(cluster_.scenario().disk_damage)) DamageDisk();
    cluster_.CutPower(back);
  };
  if (random_.Chance(0.3)) return cut();
  cluster_.folder().disk->CutAfter(random_.Below(14), [this, cut] { world_.After(Duration{0}, cut); });
}

// Of the newest checkpoint, as long as another one is whole.
void Faults::DamageDisk() {
  Disk& disk = *cluster_.folder().disk;
  const auto entries = ListCheckpoints(disk);
  std::vector<const CheckpointEntry*> whole;
  for (const CheckpointEntry& entry : *entries) {
    const bool damaged = std::any_of(entry.files.begin(), entry.files.end(),
                                     [&](const std::string& name) { return disk.damaged().contains(name); });
    if (entry.has_manifest && !damaged) whole.push_back(&entry);
  }
  if (whole.size() < 2) return;
  Count("checkpoints damaged");
  const auto& files = whole.front()->files;
  disk.Damage(files[random_.Below(files.size())]);
}

// The word to save a version gets lost with its link: when it is said again, the server has gone on.
void Faults::LoseSnapshot(Node& coordinator, Node& server) {
  if (cluster_.scenario().story != Story::kPowerCuts || !random_.Chance(0.1) || !ServersCalm()) return;
  world_.After(Duration{0}, [this, &coordinator, &server] {
    for (const auto& link : world_.LinksBetween(coordinator, server)) {
      Count("links broken while a checkpoint is taken");
      world_.Break(link, milliseconds(5));
      server_trouble_[&server] = world_.now() + cluster_.job().lease() * 2;
    }
  });
}

void Faults::RecordOutage() {
  Count("record outages");
  cluster_.record().OutageUntil(world_.now() + UpTo(cluster_.job().lease() * 2));
}

}  // namespace everstep::sim
