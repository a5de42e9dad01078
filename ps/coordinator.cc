#include "ps/coordinator.h"

#include <algorithm>

#include "base/limits.h"
#include "base/log.h"
#include "base/plant.h"
#include "base/random.h"

namespace everstep {

std::string_view Name(Coordinator::State state) {
  switch (state) {
    case Coordinator::State::kGathering: return "gathering";
    case Coordinator::State::kElecting: return "electing";
    case Coordinator::State::kRecovering: return "recovering";
    case Coordinator::State::kOpen: return "open";
    case Coordinator::State::kMoving: return "moving";
    case Coordinator::State::kSealed: return "sealed";
    case Coordinator::State::kFinished: return "finished";
    case Coordinator::State::kFailed: return "failed";
    case Coordinator::State::kDeposed: return "deposed";
  }
  return "unknown";
}

Coordinator::Coordinator(Time now, Options options)
    : options_(std::move(options)),
      gathering_since_(now),
      next_beat_(now),
      next_retransmit_(now),
      members_(options_.spec) {
  last_tick_ = now;
  // Grants and leases of different lives of the coordinator must not be mixed up.
  next_lease_ = (Mix64(options_.holder.value) << 24) | 1;
  if (options_.found) {
    const Configuration& found = *options_.found;
    restarted_ = true;
    rebalance_ = true;
    ballot_ = found.ballot;
    next_grant_ = ((ballot_.value + 1) << 32) + 1;
    map_ = found.map;
    parameters_ = found.spec;
    dataset_size_ = found.dataset_size;
    layout_ = ChunkLayout::Make(found.spec, found.map.chunk_bytes);
    for (const ServerEntry& s : found.map.servers) {
      servers_.push_back(
          {s.id, s.incarnation, "ps" + ToString(s.id), s.address, {}, now, now, {}, false, false, true, false});
    }
    ledger_.emplace(dataset_size_, options_.spec.epochs);
    NewBallot(now, "this server takes office");
  } else if (options_.resume) {
    BeginResume();
  }
  Reschedule();
}

// ---- Dispatch ----

void Coordinator::OnMessage(Time now, PeerId from, const Envelope& envelope) {
  if (state_ == State::kDeposed) return;
  if (EVERSTEP_PLANTED("messages-put-off-ticks")) next_beat_ = now + options_.spec.heartbeat() / 2;
  if (const auto* hello = std::get_if<Hello>(&envelope.body)) {
    Handle(now, from, envelope, *hello);
    return Reschedule();
  }
  if (const auto* m = std::get_if<ControlRequest>(&envelope.body)) {
    Handle(now, from, *m);
    Advance(now);
    return Reschedule();
  }
  if (envelope.job != options_.job) {
    return Send(from, Refused{Code::kWrongJob, "this is job " + options_.spec.name + " of another life; join it anew"});
  }
  if (Server* server = FindServerByPeer(from)) server->last_seen = now;
  if (const auto* m = std::get_if<Ready>(&envelope.body)) Handle(now, from, *m);
  if (const auto* m = std::get_if<Heartbeat>(&envelope.body)) Handle(now, from, *m, envelope.ballot);
  if (const auto* m = std::get_if<Report>(&envelope.body)) Handle(now, from, *m);
  if (const auto* m = std::get_if<Leave>(&envelope.body)) Handle(now, from, *m);
  if (const auto* m = std::get_if<Promised>(&envelope.body)) Handle(now, from, *m, envelope.ballot);
  if (const auto* m = std::get_if<Staged>(&envelope.body)) Handle(now, from, *m, envelope.ballot);
  if (const auto* m = std::get_if<Prepared>(&envelope.body)) Handle(now, from, *m);
  if (const auto* m = std::get_if<NonFinite>(&envelope.body)) Handle(now, from, *m);
  if (const auto* m = std::get_if<Applied>(&envelope.body)) Handle(now, from, *m);
  if (const auto* m = std::get_if<Copied>(&envelope.body)) Handle(now, from, *m);
  if (const auto* m = std::get_if<StaleBallot>(&envelope.body)) Handle(now, from, *m);
  if (const auto* m = std::get_if<SnapshotDone>(&envelope.body)) Handle(now, from, *m);
  Advance(now);
  Reschedule();
}

void Coordinator::OnClosed(Time now, PeerId peer) {
  if (state_ == State::kDeposed) return;
  if (Server* server = FindServerByPeer(peer)) {
    ServerDown(now, *server);
  }
  if (Member* member = members_.FindByPeer(peer)) RemoveMember(now, member->id, "worker-lost", "its link closed");
  Advance(now);
  Reschedule();
}

void Coordinator::OnTick(Time now) {
  if (state_ == State::kDeposed) return;
  if (now - last_tick_ > options_.spec.lease() / 2) {
    // This process itself stood still: what the others said meanwhile has yet to be read.
    for (Server& server : servers_) server.last_seen = now;
    found_by_ = now + options_.spec.timeout;
  }
  last_tick_ = now;
  if (now >= loss_at_) loss_at_ = Time::Never();
  ExpireGathering(now);
  ExpireServers(now);
  ExpireMove(now);
  ExpireMembers(now);
  CheckSaving(now);
  if (now >= settle_at_) Settle(now);
  if (now >= next_retransmit_) {
    Retransmit();
    next_retransmit_ = now + options_.spec.retransmit();
  }
  next_beat_ = now + options_.spec.heartbeat() / 2;
  Advance(now);
  Reschedule();
}

// Messages never put the beat off, however many come: silence and retransmission are found by it alone.
void Coordinator::Reschedule() {
  next_tick_ = std::min({next_beat_, recheck_, settle_at_, loss_at_});
  if (state_ == State::kDeposed) next_tick_ = Time::Never();
}

// Everything that was said and not answered is said again (rule R18); every handler is idempotent.
void Coordinator::Retransmit() {
  if (EVERSTEP_PLANTED("never-retransmit")) return;
  if (state_ == State::kRecovering) {
    for (Server& server : servers_) {
      if (!server.promise && InMap(server)) AskPromise(server);
    }
  }
  if (state_ == State::kMoving) SendMove();
  if (confirming_) {
    for (ServerId id : confirming_->waiting) {
      if (Server* server = FindServer(id)) Send(server->peer, confirming_->commit);
    }
  }
  if (saving_) {
    for (const auto& [id, part] : saving_->parts) {
      Server* const server = FindServer(id);
      if (!part && server != nullptr) Send(server->peer, saving_->snapshot);
    }
  }
  if (sealed_) {
    for (Server& server : servers_) {
      if (!sealed_->prepared.contains(server.id) && InMap(server))
        Send(server.peer, SealStep{sealed_->seal, sealed_->collapsed});
    }
  }
}

// ---- Small things ----

void Coordinator::Send(PeerId to, Body body) {
  if (to != PeerId{}) outbox_.push_back({to, {options_.job, ballot_, std::move(body)}, {}});
}

void Coordinator::SendToServers(const Body& body) {
  for (const Server& server : servers_) Send(server.peer, body);
}

void Coordinator::SendToReplicas(const Body& body) {
  for (const Server& server : servers_) {
    if (InMap(server)) Send(server.peer, body);
  }
}

void Coordinator::SendToMembers(const Body& body) {
  for (const Member* member : members_.All()) Send(member->peer, body);
}

void Coordinator::Note(Time now, std::string kind, std::string target, std::string detail) {
  events_.push_back({now, std::move(kind), std::move(target), std::move(detail)});
}

Coordinator::Server* Coordinator::FindServer(ServerId id) {
  for (Server& server : servers_) {
    if (server.id == id) return &server;
  }
  return nullptr;
}

Coordinator::Server* Coordinator::FindServerByPeer(PeerId peer) {
  for (Server& server : servers_) {
    if (peer != PeerId{} && server.peer == peer) return &server;
  }
  return nullptr;
}

bool Coordinator::InMap(const Server& server) const {
  const ServerEntry* entry = map_ ? map_->Find(server.id) : nullptr;
  return entry != nullptr && entry->incarnation == server.incarnation;
}

bool Coordinator::Holds(const Server& server) const {
  if (InMap(server) || EVERSTEP_PLANTED("forget-the-receiver")) return InMap(server);
  const ServerEntry* entry = proposing_ ? asked_.next.map.Find(server.id) : nullptr;
  return entry != nullptr && entry->incarnation == server.incarnation;
}

std::set<ServerId> Coordinator::MapServers() const {
  std::set<ServerId> ids;
  for (const ServerEntry& server : map_->servers) ids.insert(server.id);
  return ids;
}

void Coordinator::Fail(Time now, Status why) {
  if (state_ == State::kFailed || state_ == State::kFinished || state_ == State::kDeposed) return;
  state_ = State::kFailed;
  ended_at_ = now;
  Note(now, "failed", options_.spec.name, why.ToString());
  SendToMembers(JobFailed{why.code(), why.message()});
  SendToServers(JobFailed{why.code(), why.message()});
  failure_ = std::move(why);
}

uint64_t Coordinator::job_steps() const {
  const JobSpec& job = options_.spec;
  uint64_t steps = 0;
  if (dataset_size_ > 0 && job.epochs > 0) steps = job.epochs * ((dataset_size_ + job.batch - 1) / job.batch);
  if (job.max_steps > 0 && (steps == 0 || job.max_steps < steps)) steps = job.max_steps;
  return steps;
}

std::vector<Coordinator::ServerInfo> Coordinator::Servers() const {
  std::vector<ServerInfo> infos;
  for (const Server& server : servers_) {
    ServerInfo info{server.id, server.name, server.address, server.peer != PeerId{}, 0, 0, server.draining};
    if (map_ && layout_ && InMap(server)) {
      for (ChunkId chunk : map_->HeldChunks(server.id)) {
        ++info.chunks;
        info.bytes += layout_->chunk(chunk).bytes;
      }
    }
    infos.push_back(std::move(info));
  }
  return infos;
}

bool Coordinator::Done(Time now) const {
  if (state_ == State::kDeposed) return true;
  if (state_ != State::kFinished && state_ != State::kFailed) return false;
  if (saving_) return false;  // its own deadline ends it
  // Latecomers get a clear answer for a while; members may take as long as they need to fetch the result and evaluate.
  const Duration since = now - ended_at_;
  if (members_.size() == 0) return since >= std::min<Duration>(options_.spec.linger(), std::chrono::seconds(2));
  return since >= (state_ == State::kFailed ? options_.spec.linger() : options_.spec.progress_deadline());
}

}  // namespace everstep
