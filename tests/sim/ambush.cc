#include "tests/sim/ambush.h"

#include <algorithm>

#include "tests/sim/faults.h"

namespace everstep::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

}  // namespace

Ambusher::Ambusher(Cluster& cluster, Faults& faults)
    : cluster_(cluster),
      faults_(faults),
      world_(cluster.world()),
      random_(Mix64(cluster.scenario().seed ^ 0xa3b05)),
      next_at_(world_.now()) {
  world_.AddTap(this);
}

// One at a time, and none while anything else is being recovered from: each alone must be survived.
bool Ambusher::Ready() {
  return world_.now() >= next_at_ && faults_.Steady() &&
         cluster_.checkers().chain().training_steps() > 0;  // there is a model
}

void Ambusher::Rest() {
  next_at_ = world_.now() + cluster_.job().lease() * random_.Between(1, 4);
  seal_.reset();
  victim_ = nullptr;
  rounds_ = 0;
}

bool Ambusher::FromCoordinator(const Node& from) const { return &from == &cluster_.coordinator(); }

ServerNode* Ambusher::AnyHolder() {
  std::vector<ServerNode*> holders;
  for (auto& server : cluster_.servers()) {
    if (server->running() && !server->paused() && cluster_.InMap(*server)) holders.push_back(server.get());
  }
  return holders.empty() ? nullptr : holders[random_.Below(holders.size())];
}

std::vector<ServerNode*> Ambusher::Others(const ServerNode& server) const {
  std::vector<ServerNode*> others;
  for (auto& other : cluster_.servers()) {
    if (other.get() != &server && other->running()) others.push_back(other.get());
  }
  return others;
}

// The sums that come to a server, or that go out from it, are late.
void Ambusher::HoldSums(ServerNode& server, bool towards, Time until) {
  for (ServerNode* other : Others(server)) {
    if (towards) {
      world_.HoldBack(*other, server, until);
    } else {
      world_.HoldBack(server, *other, until);
    }
  }
}

void Ambusher::OnSent(Node& from, Node* to, const Envelope& envelope) {
  if (faults_.healed() || from.Stranger()) return;
  switch (cluster_.scenario().ambush) {
    case Ambush::kNone: return;
    case Ambush::kTornSeal: return TearSeal(from, to, envelope.body);
    case Ambush::kPublisherDies: return KillPublisher(from, to, envelope.body);
    case Ambush::kWorkerAndServer: return KillWorkerAndServer(from, envelope.body);
    case Ambush::kQuickRestart: return RestartServer(envelope.body);
    case Ambush::kTwoSilences: return SilenceTwo(envelope.body);
    case Ambush::kReceiverDies: return KillReceiver(from, envelope.body);
    case Ambush::kLateCommit: return JoinBehind(from, to, envelope.body);
  }
}

// A seal reaches, or its sums reach, only some of the servers; then the coordinator dies. The next one seals anew, and
// it may go the same way: records of several seals of one step lie about (traces T1, T2, T7, T9).
void Ambusher::TearSeal(Node& from, Node* to, const Body& body) {
  if (const auto* m = std::get_if<SealStep>(&body); m != nullptr && FromCoordinator(from)) {
    if (m->seal.id.step.value == 0) return;
    if (m->seal.id != seen_) {
      seen_ = m->seal.id;
      prepared_.clear();
      seal_.reset();
      if (rounds_ == 0 && !Ready()) return;
      if (rounds_ == 0) rounds_ = static_cast<int>(random_.Between(1, 3));
      victim_ = AnyHolder();
      if (victim_ == nullptr) return;
      seal_ = m->seal.id;
      until_ = world_.now() + cluster_.job().lease() / 4;
      wanted_ = 1 + random_.Below(std::max<size_t>(1, cluster_.servers().size() - 1));
      faults_.Count("seals torn");
      if (random_.Chance(0.5)) return HoldSums(*victim_, true, until_);
      world_.HoldBack(from, *victim_, until_);
    }
    return;
  }
  const auto* m = std::get_if<Prepared>(&body);
  if (m == nullptr || !seal_ || m->seal != *seal_ || &from == victim_) return;
  prepared_.insert(&from);
  if (prepared_.size() < wanted_) return;
  const int left = rounds_ - 1;
  seal_.reset();
  world_.After(Duration(random_.Between(0, 400'000)), [this] { faults_.KillCoordinator(); });
  if (random_.Chance(0.4)) LoseWhoLacks(*victim_, 20);
  if (left == 0) Rest();
  rounds_ = left;
  (void)to;
}

// ... and when the next coordinator has dropped the seal, the server that did not have it dies: all that are left do.
void Ambusher::LoseWhoLacks(ServerNode& server, int tries) {
  world_.After(cluster_.job().lease() / 20, [this, &server, life = server.life(), tries] {
    if (faults_.healed() || tries == 0 || !server.running() || server.life() != life) return;
    if (!faults_.Steady()) return LoseWhoLacks(server, tries - 1);
    if (cluster_.CanLose(server)) faults_.KillServer(server, false);
  });
}

// The first server that publishes a version dies when somebody has read it; the others have not heard of the commit,
// and what it had to tell them is lost with it (traces T5, T6, T8).
void Ambusher::KillPublisher(Node& from, Node* to, const Body& body) {
  if (const auto* m = std::get_if<SealStep>(&body); m != nullptr && FromCoordinator(from)) {
    if (m->seal.id.step.value == 0 || m->seal.id == seen_) return;
    seen_ = m->seal.id;
    if (seal_ || !Ready()) return;
    victim_ = AnyHolder();
    if (victim_ == nullptr || !cluster_.CanLose(*victim_)) return Rest();
    seal_ = m->seal.id;
    until_ = world_.now() + cluster_.job().lease() / 3;
    if (random_.Chance(0.6)) HoldSums(*victim_, false, until_);
    // It comes to nothing when the seal is dropped.
    world_.After(cluster_.job().lease(), [this, seal = m->seal.id] {
      if (seal_ == seal) Rest();
    });
    return;
  }
  if (!seal_) return;
  if (const auto* m = std::get_if<Commit>(&body); m != nullptr && m->seal == *seal_) {
    if (to != nullptr && to != victim_) world_.HoldBack(from, *to, world_.now() + cluster_.job().lease() / 3);
    return;
  }
  const auto* data = std::get_if<ChunkData>(&body);
  if (data == nullptr || &from != victim_ || data->version <= seal_->step) return;
  faults_.Count("publishers killed");
  const bool both = random_.Chance(0.3);
  world_.After(world_.network().latency + Duration(random_.Between(0, 2'000'000)),
               [this, server = victim_, life = victim_->life(), both] {
                 if (!server->running() || server->life() != life || !cluster_.CanLose(*server)) return;
                 faults_.KillServer(*server, true);
                 if (both) faults_.KillCoordinator();
               });
  Rest();
}

// A worker dies right after its contribution was whole, and a server that has a part of it in the same step (trace
// T11).
void Ambusher::KillWorkerAndServer(Node& from, const Body& body) {
  const auto* m = std::get_if<Push>(&body);
  if (m == nullptr || m->contribution.base.value == 0) return;
  std::set<ChunkId>& chunks = pushed_[m->contribution.lease.id];
  chunks.insert(m->chunk);
  if (chunks.size() < cluster_.checkers().chain().layout()->size()) return;
  pushed_.clear();
  auto* worker = dynamic_cast<WorkerNode*>(&from);
  if (worker == nullptr || !Ready()) return;
  Rest();
  const Duration soon = world_.network().latency + Duration(random_.Between(0, 3'000'000));
  world_.After(soon, [this, worker, life = worker->life()] {
    if (!worker->running() || worker->life() != life) return;
    faults_.Count("a worker and a server together");
    faults_.CrashWorker(*worker, false);
    world_.After(Duration(random_.Between(0, 3'000'000)), [this] {
      ServerNode* server = AnyHolder();
      if (server != nullptr && cluster_.CanLose(*server)) faults_.KillServer(*server, false);
    });
  });
}

// A server dies and is back, empty, before anybody counts it as dead (trace T8).
void Ambusher::RestartServer(const Body& body) {
  const bool moment = std::holds_alternative<SealStep>(body) || std::holds_alternative<Prepared>(body) ||
                      std::holds_alternative<Commit>(body);
  if (!moment || !random_.Chance(0.2) || !Ready()) return;
  ServerNode* server = AnyHolder();
  if (server == nullptr || !cluster_.CanLose(*server)) return;
  Rest();
  world_.After(Duration{0}, [this, server] {
    if (!server->running() || !cluster_.CanLose(*server)) return;
    faults_.Count("servers back at once");
    faults_.KillServer(*server, false);
    world_.After(Duration(random_.Between(100'000, 20'000'000)), [server] {
      if (!server->running()) server->Start();
    });
  });
}

// One server is frozen until it counts as dead; another dies, with its host, meanwhile, so early that its silence is
// noticed. What the frozen one is given up for must not be a copy on the one that nobody has heard of. (Who is frozen
// for a lease while the only other holder dies unnoticed is given up by mistake: nobody can tell.)
void Ambusher::SilenceTwo(const Body& body) {
  if (!std::holds_alternative<SealStep>(body) || !Ready()) return;
  ServerNode* frozen = AnyHolder();
  ServerNode* dying = AnyHolder();
  if (frozen == nullptr || frozen == dying || !cluster_.CanLose(*dying)) return;
  Rest();
  const Duration lease = cluster_.job().lease();
  world_.After(Duration{0}, [this, frozen, dying, lease] {
    if (faults_.healed() || !frozen->running() || !dying->running()) return;
    faults_.Count("two servers silent");
    faults_.FreezeServer(*frozen, lease + lease * random_.Between(15, 50) / 100);
    world_.After(lease * random_.Between(20, 40) / 100, [this, frozen, dying, life = frozen->life()] {
      if (!frozen->running() || frozen->life() != life || !dying->running() || faults_.healed()) return;
      faults_.KillServer(*dying, true);
    });
  });
}

// A server joins, is given chunks, and dies while the map with it is being written into the record.
void Ambusher::KillReceiver(Node& from, const Body& body) {
  if (std::holds_alternative<SealStep>(body) && Ready()) {
    Rest();
    return faults_.JoinServer();
  }
  if (!std::holds_alternative<Copied>(body)) return;
  auto* receiver = dynamic_cast<ServerNode*>(&from);
  if (receiver == nullptr || !faults_.ServersCalm() || cluster_.InMap(*receiver)) return;
  const Duration soon(random_.Between(0, cluster_.scenario().record_latency.count() * 2));
  world_.After(world_.network().latency + soon, [this, receiver, life = receiver->life()] {
    if (!receiver->running() || receiver->life() != life || cluster_.InMap(*receiver)) return;
    if (!faults_.ServersCalm()) return;  // the map that is being written may rely on it alone by now
    faults_.Count("receivers killed");
    faults_.KillServer(*receiver, false);
  });
}

// The commit reaches one holder late, and a server joins meanwhile: what it is given must be the version that is
// committed (trace T14).
void Ambusher::JoinBehind(Node& from, Node* to, const Body& body) {
  const auto* m = std::get_if<Commit>(&body);
  if (m == nullptr || to == nullptr || !FromCoordinator(from)) return;
  if (m->seal == seen_) {
    if (to == victim_ && world_.now() < until_) world_.HoldBack(from, *to, until_);
    return;
  }
  if (m->seal.step.value == 0 || !Ready()) return;
  seen_ = m->seal;
  Rest();
  victim_ = dynamic_cast<ServerNode*>(to);
  until_ = world_.now() + cluster_.job().lease() / 4;
  world_.HoldBack(from, *to, until_);
  faults_.Count("joins during a commit");
  world_.After(Duration(random_.Between(0, 2'000'000)), [this] { faults_.JoinServer(); });
}

}  // namespace everstep::sim
