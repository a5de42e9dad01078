// Coordinator: the servers of the job. They join before the start or while it runs, are lost, or are emptied on request
// (rules R1, R4, R16, R20).
#include <algorithm>

#include "base/limits.h"
#include "base/log.h"
#include "base/plant.h"
#include "ps/coordinator.h"

namespace everstep {
namespace {

// A closed link is a death, unless the server is back at once: a broken connection is not worth a copy of its chunks.
constexpr Duration kReconnectGrace = std::chrono::milliseconds(50);

}  // namespace

// ---- Joining ----

ServerId Coordinator::NewServerId() {
  ServerId id;
  // Until there is a map, ids count up from 0; later an id is not given twice, so that logs stay readable.
  if (map_) {
    for (const ServerEntry& entry : map_->servers) id.value = std::max(id.value, entry.id.value + 1);
    for (const Server& server : servers_) id.value = std::max(id.value, server.id.value + 1);
  }
  while (FindServer(id) != nullptr) ++id.value;
  return id;
}

void Coordinator::JoinServer(Time now, PeerId from, const Hello& m, Ballot promised) {
  for (Server& server : servers_) {
    if (server.incarnation != m.incarnation) continue;
    server.peer = from;
    server.last_seen = now;
    server.met = true;
    server.address = m.address;
    server.name = m.name.empty() ? server.name : m.name;
    server.may_coordinate = m.may_coordinate;
    Send(from, Welcome{options_.spec, server.id, version_, map_});
    if (state_ == State::kRecovering && !server.promise && InMap(server)) AskPromise(server);
    return;
  }
  // Rule R16: whoever was in a map and is in it no more starts again, empty, as a new life.
  if (removed_servers_.contains(m.incarnation) || (map_ && promised > Ballot{})) {
    return Refuse(now, from, m, {Code::kFenced, "this life of the server was taken out of the map; join as a new one"});
  }
  if (!map_) {
    // Until there is a map nobody relies on a server: one that went away may be replaced.
    std::erase_if(servers_, [](const Server& server) { return server.peer == PeerId{}; });
  }
  if (servers_.size() >= limits::kMaxServers) {
    return Refuse(now, from, m, {Code::kResourceExhausted, "the job has as many servers as there may be"});
  }
  const ServerId id = NewServerId();
  const std::string name = m.name.empty() ? "ps" + ToString(id) : m.name;
  servers_.push_back({id, m.incarnation, name, m.address, from, now, now, {}, true, false, false, m.may_coordinate});
  gathering_since_ = now;
  rebalance_ = true;
  Note(now, "server-joined", name, m.address);
  Send(from, Welcome{options_.spec, id, version_, map_});
  MaybeFormMap(now);
}

// Workers wait for servers of which nobody knows whether they will ever come; they wait no longer than the timeout.
void Coordinator::ExpireGathering(Time now) {
  const JobSpec& job = options_.spec;
  if (state_ != State::kGathering || servers_.size() >= job.servers || members_.size() == 0) return;
  if (now - gathering_since_ <= job.timeout) return;
  std::string came;
  for (const Server& server : servers_) came += (came.empty() ? "" : ", ") + server.name + " at " + server.address;
  Fail(now, {Code::kDeadlineExceeded, "only " + std::to_string(servers_.size()) + " of " + std::to_string(job.servers) +
                                          " servers came within " +
                                          std::to_string(static_cast<int>(Seconds(job.timeout))) + " s: " + came +
                                          "; start the others with --join, or set `servers` to what there is"});
}

// ---- Losing ----

void Coordinator::ServerDown(Time now, Server& server) {
  server.peer = {};
  server.down_since = now;
  loss_at_ = std::min(loss_at_, now + kReconnectGrace);
  if (Holds(server) || !map_) return Note(now, "server-lost", server.name, "its link closed");
  Note(now, server.draining ? "server-left" : "server-lost", server.name, "its link closed; it held nothing");
  ForgetIdle(now, server.id);
}

// A server that holds nothing is gone: whoever comes back is welcome as a new one.
void Coordinator::ForgetIdle(Time now, ServerId id) {
  CancelMoveTo(now, id);
  std::erase_if(servers_, [&](const Server& s) { return s.id == id; });
}

// Those of the map that count as dead. Right after this coordinator took office everybody has yet to find it.
std::set<ServerId> Coordinator::DeadServers(Time now) const {
  const Duration lease = options_.spec.lease();
  std::set<ServerId> dead;
  for (const Server& server : servers_) {
    if (!InMap(server)) continue;
    const bool linked = server.peer != PeerId{};
    const Duration patience = linked || !server.met ? lease : kReconnectGrace;
    if (now - (linked ? server.last_seen : server.down_since) >= patience) dead.insert(server.id);
  }
  return dead;
}

void Coordinator::ExpireServers(Time now) {
  if (!map_ || state_ == State::kGathering || state_ == State::kFailed || giving_up_ || proposing_) return;
  for (size_t i = servers_.size(); i-- > 0;) {
    const Server& server = servers_[i];
    if (Holds(server) || now - server.last_seen < options_.spec.lease()) continue;
    Note(now, "server-lost", server.name, "it fell silent; it held nothing");
    if (server.peer != PeerId{}) closings_.push_back(server.peer);
    ForgetIdle(now, ServerId(server.id));
  }
  if (state_ == State::kFinished && members_.size() == 0) return;
  const std::set<ServerId> dead = DeadServers(now);
  // Only when somebody who is here, not only believed to be, has a copy of each of their chunks.
  std::set<ServerId> absent = dead;
  for (const Server& server : servers_) {
    const bool here = server.peer != PeerId{} && now - server.last_seen <= options_.spec.retransmit();
    if (InMap(server) && !here && !EVERSTEP_PLANTED("believe-in-copies")) absent.insert(server.id);
  }
  if (!dead.empty() && WithoutServers(*map_, absent)) return RemoveServers(now, dead, "lost");
  if (state_ == State::kFinished) return;
  // It has asked already, and is still in office; who lost it while it stood still has time to find it.
  if (now < found_by_ && state_ == State::kRecovering) return;
  if (const Server* lost = LostServer(now); lost != nullptr) {
    // Only who holds the record may end the job for everybody; changing it finds out.
    giving_up_ = true;
    if (EVERSTEP_PLANTED("fail-out-of-office")) return GiveUp(now);
    NewBallot(now, "server " + lost->name + " is lost; before the job is given up");
  }
}

// Rule R20: in the middle of the step, for the others wait. Every chunk of the lost ones has a copy, which takes over.
void Coordinator::RemoveServers(Time now, const std::set<ServerId>& gone, std::string why) {
  std::string names;
  for (ServerId id : gone) {
    const Server* server = FindServer(id);
    names += (names.empty() ? "" : ", ") + server->name;
    ++counters_.server_losses;
    if (server->peer != PeerId{}) Note(now, "server-lost", server->name, why == "lost" ? "it fell silent" : why);
  }
  rebalance_ = true;
  NewBallot(now, names + " " + why + "; the copies of its chunks take over", WithoutServers(*map_, gone));
  if (EVERSTEP_PLANTED("map-without-record")) {
    proposal_.reset();
    OnConfigured(now, Status::Ok());
  }
}

// The new map is in force: who is in it no more.
void Coordinator::ForgetServers(Time now, const ShardMap& before) {
  std::vector<ServerId> forget;
  for (Server& server : servers_) {
    const ServerEntry* entry = before.Find(server.id);
    if (InMap(server) || entry == nullptr || entry->incarnation != server.incarnation) continue;
    removed_servers_.insert(server.incarnation);
    if (server.draining) {
      Note(now, "server-drained", server.name);
      Send(server.peer, Drained{});
      continue;
    }
    if (server.peer != PeerId{}) closings_.push_back(server.peer);
    forget.push_back(server.id);
  }
  for (ServerId id : forget) std::erase_if(servers_, [&](const Server& s) { return s.id == id; });
}

// A server that is only silent may be frozen and come back: without a copy of its chunks there is nothing better than
// to wait for it, as long as anybody waits for anything. One whose link is closed and that does not come back within a
// lease is gone, and its chunks with it. After the coordinator's own death everybody must first find the new one.
const Coordinator::Server* Coordinator::LostServer(Time now) const {
  for (const Server& server : servers_) {
    if (!InMap(server)) continue;
    const bool linked = server.peer != PeerId{};
    const Duration patience = linked || restarted_ ? options_.spec.timeout : options_.spec.lease();
    if (now - (linked ? server.last_seen : server.down_since) > patience) return &server;
  }
  return nullptr;
}

void Coordinator::GiveUp(Time now) {
  giving_up_ = false;
  const Server* lost = LostServer(now);
  if (lost == nullptr) return;  // it came back meanwhile
  // This process itself stood still: the servers look for another coordinator, and find the way back to it.
  if (now < found_by_) return;
  Fail(now, {Code::kFailed, "server " + lost->name + " at " + lost->address +
                                " is gone, and no server that is left has a copy of its part of the parameters; step " +
                                ToString(version_) + " was the last committed version"});
}

// ---- Draining ----

void Coordinator::Handle(Time now, PeerId from, const ControlRequest& m) {
  Server* server = nullptr;
  if (m.target.empty()) {
    server = FindServerByPeer(from);
  } else {
    for (Server& s : servers_) {
      if (s.name == m.target) server = &s;
    }
  }
  const Status outcome = DrainServer(now, server, m);
  Send(from, ControlReply{outcome.code(), outcome.message()});
}

Status Coordinator::DrainServer(Time now, Server* server, const ControlRequest& m) {
  if (m.command != "drain") return {Code::kInvalidArgument, "\"" + m.command + "\" is no command of this version"};
  std::string names;
  size_t others = 0;
  for (const Server& s : servers_) {
    names += (names.empty() ? "" : ", ") + s.name;
    others += &s != server && !s.draining && s.peer != PeerId{};
  }
  if (server == nullptr) return {Code::kNotFound, "no server is named \"" + m.target + "\"; there are " + names};
  if (state_ == State::kFailed) return failure_->With("the job has failed");
  if (server->draining && Holds(*server)) return Status::Ok();
  if (server->address == options_.address) {
    EVERSTEP_RETURN_IF_ERROR(MayHandOver(*server));
  }
  if (others == 0) {
    return {Code::kInvalidArgument, server->name +
                                        " is the last server; what it holds has nowhere to go. Start another " +
                                        "with everstep-ps --join first"};
  }
  if (!m.target.empty() && others < options_.spec.replication) {
    return {Code::kInvalidArgument, "the job keeps " + std::to_string(options_.spec.replication) +
                                        " copies of each chunk, and without " + server->name + " only " +
                                        std::to_string(others) +
                                        " server(s) would be left; start another with everstep-ps --join first"};
  }
  if (!server->draining) Note(now, "server-draining", server->name);
  server->draining = true;
  rebalance_ = true;
  next_move_at_ = now;
  if (!Holds(*server) || state_ == State::kFinished) {
    CancelMoveTo(now, server->id);
    Note(now, "server-drained", server->name);
    Send(server->peer, Drained{});
  }
  return Status::Ok();
}

// Its host can be emptied when somebody else can take office afterwards, which goes as after its death.
Status Coordinator::MayHandOver(const Server& host) const {
  const std::string name = host.name + " hosts the coordinator";
  if (!options_.lasting_record) {
    return {Code::kInvalidArgument, name +
                                        " and keeps the configuration record in memory, so that nobody could take "
                                        "office after it; start the job's servers with --state FOLDER (on one "
                                        "machine) or --etcd URL to be able to"};
  }
  if (version_.value == 0) return {Code::kInvalidArgument, name + ", and the job has not begun; stop it instead"};
  for (const Server& s : servers_) {
    if (s.id != host.id && s.may_coordinate && !s.draining && s.peer != PeerId{}) return Status::Ok();
  }
  return {Code::kInvalidArgument,
          name +
              ", and no other server could take office; start one with everstep-ps --join and the same --state or "
              "--etcd first"};
}

// ---- Verifying ----

// All copies of a chunk must be equal, bit for bit. When they are not, the primary's is what the workers compute with.
void Coordinator::CompareCopies(Time now, const Server& server, const Applied& m) {
  if (m.checks.empty() || !map_ || proposing_ || !InMap(server)) return;
  std::set<ServerId> diverged;
  for (const ChunkCheck& check : m.checks) {
    if (check.chunk.value >= map_->replicas.size()) continue;
    auto& known = checks_[check.chunk];
    known[server.id] = check.checksum;
    const auto primary = known.find(map_->primary(check.chunk).id);
    if (primary == known.end()) continue;
    for (const auto& [id, checksum] : known) {
      if (checksum != primary->second && map_->Holds(id, check.chunk)) diverged.insert(id);
    }
  }
  for (ServerId id : diverged) {
    Note(now, "replica-diverged", FindServer(id)->name,
         "its copy differs from the primary's at version " + ToString(version_));
  }
  if (diverged.empty()) return;
  if (WithoutServers(*map_, diverged)) RemoveServers(now, diverged, "diverged");
}

}  // namespace everstep
