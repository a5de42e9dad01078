#include "worker/session.h"

#include <algorithm>

#include "base/log.h"
#include "base/plant.h"

namespace everstep {
namespace {

// After a refusal that holds for a moment only.
constexpr Duration kPullAgain = std::chrono::milliseconds(10);

}  // namespace

Session::Session(Time now, Options options)
    : options_(std::move(options)), random_(options_.seed), started_(now), next_tick_(now) {
  id_ = {random_.Next() | 1};
  coordinator_.down_since = now;
  coordinator_.retry_at = now;
}

// ---- Sending ----

void Session::Send(PeerId to, Body body, Buffer payload) {
  if (to == PeerId{}) return;
  outbox_.push_back({to, {job_uid_, map_ ? map_->ballot : Ballot{}, std::move(body)}, std::move(payload)});
}

void Session::Fail(Status why) {
  if (!failure_) failure_ = std::move(why);
}

// ---- Joining ----

void Session::SendHello(Time now) {
  Hello hello;
  hello.role = PeerRole::kWorker;
  hello.name = options_.name;
  hello.job_name = options_.job_name;
  hello.worker = id_;
  hello.spec = options_.spec;
  hello.dataset_size = options_.dataset_size;
  if (ready_ && held_.value > 0) {
    hello.version = held_;
    // Of an older version it is of no use any more, and whoever claims a lease is waited for.
    if (flight_ && flight_->contribution.base == held_) hello.lease = flight_->contribution.lease;
  }
  hello_at_ = now;
  Send(coordinator_.peer, std::move(hello));
}

void Session::Handle(Time now, const Envelope& envelope, const Welcome& m) {
  if (welcomed_) return;
  welcomed_ = true;
  coordinator_.backoff = Duration{0};
  lost_.clear();
  tried_.clear();
  hint_.clear();
  if (job_uid_ != JobUid{} && job_uid_ != envelope.job) {
    return Fail({Code::kWrongJob, "the coordinator now runs another job than the one that was joined"});
  }
  job_uid_ = envelope.job;
  job_ = m.job;
  join_version_ = m.version;
  // What was under way from servers that lost their memory is of no version that they have now.
  const bool ahead = std::any_of(incoming_.begin(), incoming_.end(),
                                 [&](const auto& entry) { return entry.second.version > m.version; });
  if (!ready_ && (m.version < held_ || m.version < pulling_ || ahead)) ForgetModel(m.version < held_);
  next_heartbeat_ = now;
  if (m.map) AdoptMap(now, *m.map);
  if (ready_) SendReady();  // this coordinator may be another one
}

// What is being pulled, and what is held if that is of no use either.
void Session::ForgetModel(bool all) {
  incoming_.clear();
  exact_ = false;
  if (all) {
    held_ = {};
    held_digest_ = {};
    arrived_.clear();
    fresh_ = false;
  }
  pulling_ = held_;
}

void Session::Handle(Time, const Refused& m) {
  if (m.code == Code::kFinished && finish_) return;
  Fail({m.code, m.message});
}

void Session::AdoptMap(Time now, const ShardMap& map) {
  if (map_ && map.ballot < map_->ballot) return;
  if (Status valid = Validate(options_.spec, map.chunk_bytes); !valid.ok()) return Fail(std::move(valid));
  auto layout = layout_ ? layout_ : ChunkLayout::Make(options_.spec, map.chunk_bytes);
  if (map.spec_hash != layout->spec().hash() || !Validate(map, *layout).ok()) {
    return Fail({Code::kWrongSpec, "the servers' map is of another model than this worker's"});
  }
  layout_ = std::move(layout);
  const std::optional<ShardMap> before = std::exchange(map_, map);
  std::set<ServerId> named;
  for (const ServerEntry& server : map.servers) {
    if (map.PrimaryChunks(server.id).empty()) continue;  // nothing to say to it
    named.insert(server.id);
    Link& link = servers_[server.id];
    if (link.address == server.address && link.incarnation == server.incarnation) continue;
    if (link.peer != PeerId{}) closings_.push_back(link.peer);
    link = Link{};
    link.address = server.address;
    link.incarnation = server.incarnation;
    link.down_since = link.retry_at = now;
  }
  for (auto it = servers_.begin(); it != servers_.end();) {
    if (named.contains(it->first)) {
      ++it;
      continue;
    }
    if (it->second.peer != PeerId{}) closings_.push_back(it->second.peer);
    it = servers_.erase(it);
  }
  if (before && !(before->replicas == map.replicas && before->servers == map.servers)) FollowChunks(now, *before);
}

// Other servers are primary of some chunks now: they have nothing of the contribution in flight and know of no pull.
void Session::FollowChunks(Time now, const ShardMap& before) {
  OpenWhatIsDown(now);
  if (Over()) return;
  bool moved = false;
  for (uint32_t i = 0; i < map_->replicas.size(); ++i) {
    const ServerEntry& was = before.primary({i});
    const ServerEntry& is = map_->primary({i});
    if (was.id == is.id && was.incarnation == is.incarnation) continue;
    moved = true;
    if (!flight_ || !flight_->chunks.contains({i})) continue;
    if (flight_->last == ChunkId{i} && !flight_->committed) continue;  // it waits for the user's word
    ++stats_.repushed_chunks;
    SendChunk({i});
  }
  if (moved && (pulling_ > held_ || (flight_ && flight_->committed))) PullAll(now);
}

void Session::Handle(Time now, const Fenced& m) {
  if (m.worker != id_) return;
  if (leaving_) {
    left_ = true;
    return;
  }
  if (m.replaced) {
    return Fail({Code::kFenced, "excluded: " + m.message +
                                    " and has taken this one's place; if both shall work, give them different names"});
  }
  Rejoin(now, m.message);
}

// This life is over for the others; a new one begins. What it held in flight is void. So is the version it holds: the
// servers may have gone back to a checkpoint, and then another one has that number.
void Session::Rejoin(Time now, std::string why) {
  log::Warning("excluded (" + why + "); joining again");
  ++stats_.lives;
  id_ = {random_.Next() | 1};
  DropContribution();
  ForgetModel(true);
  grant_.reset();
  used_grant_ = 0;
  voided_ = {};
  ready_ = false;
  welcomed_ = false;
  if (coordinator_.peer != PeerId{}) SendHello(now);
}

// ---- Messages ----

void Session::OnMessage(Time now, PeerId from, const Envelope& envelope, Buffer payload) {
  if (Over()) return;
  if (from == coordinator_.peer) {
    coordinator_.heard_at = now;
    if (const auto* m = std::get_if<Welcome>(&envelope.body)) Handle(now, envelope, *m);
    if (const auto* m = std::get_if<NotCoordinator>(&envelope.body)) Handle(now, *m);
    if (const auto* m = std::get_if<Refused>(&envelope.body)) Handle(now, *m);
    if (const auto* m = std::get_if<Fenced>(&envelope.body)) Handle(now, *m);
    if (const auto* m = std::get_if<MapUpdate>(&envelope.body)) AdoptMap(now, m->map);
    if (const auto* m = std::get_if<everstep::Grant>(&envelope.body)) Handle(now, *m);
    if (const auto* m = std::get_if<PushRefused>(&envelope.body)) Handle(now, *m);
    if (const auto* m = std::get_if<Finish>(&envelope.body)) finish_ = *m;
    if (const auto* m = std::get_if<JobFailed>(&envelope.body))
      Fail(Status(m->code, m->message).With("the job has failed"));
    if (std::holds_alternative<LeaveAck>(envelope.body) && leave_sent_) left_ = true;
    return Advance(now);
  }
  for (auto& [id, link] : servers_) {
    if (link.peer != from) continue;
    link.heard_at = now;
    link.backoff = Duration{0};
    if (const auto* m = std::get_if<ChunkData>(&envelope.body)) Handle(now, *m, std::move(payload));
    if (const auto* m = std::get_if<PushRefused>(&envelope.body)) {
      // The next pull says that the contribution is there, and the answer is what it lacks.
      if (RecoveryFor(m->code) == Recovery::kRetry || m->code == Code::kWrongShard) PullAgainSoon(now, link);
      Handle(now, *m);
    }
    if (const auto* m = std::get_if<Missing>(&envelope.body)) Handle(now, *m);
    if (const auto* m = std::get_if<PullRefused>(&envelope.body)) Handle(now, id, link, *m);
    if (const auto* m = std::get_if<WrongShard>(&envelope.body)) {
      const Ballot known = map_ ? map_->ballot : Ballot{};
      // It has not heard of the map that this worker has from another server.
      if (m->map.ballot < known) PullAgainSoon(now, link);
      // By now it has; the pull that was there before that is dropped, and nobody else makes this worker ask again.
      if (m->map.ballot == known && pulling_ > held_ && !EVERSTEP_PLANTED("dropped-pull-is-lost"))
        PullFrom(now, id, link);
      AdoptMap(now, m->map);
    }
    return Advance(now);
  }
}

void Session::Handle(Time, const everstep::Grant& m) {
  if (m.worker != id_ || (grant_ && m.number <= grant_->number)) return;
  grant_ = m;
  voided_ = {};
  // The grant before may have been for a version that a dropped seal would have made; it need not come ever.
  if (pulling_ > held_ && m.version < pulling_ && !exact_) pulling_ = held_;
  // Newer work means that the old is decided: sealed, or given to somebody else. What was contributed is kept until the
  // next version is here all the same, because a seal may still be dropped (rule R14).
  // Work for the same version means that the old contribution is void.
  if (flight_ && (!flight_->committed || m.version <= flight_->contribution.base)) DropContribution();
}

void Session::Handle(Time, const PushRefused& m) {
  if (!flight_ || flight_->contribution != m.contribution) return;
  switch (m.code) {
    case Code::kUnavailable:
    case Code::kFuture:
    case Code::kResourceExhausted:
    case Code::kWrongShard: return;  // the pull that names it as pending brings it there later
    case Code::kWrongJob:
    case Code::kCorrupt: return Fail(Status(m.code, m.message).With("a server refused this worker's contribution"));
    default: break;
  }
  if (m.code == Code::kNonFinite) {
    ++stats_.nonfinite;
    log::Warning("contribution refused: " + m.message);
  }
  // The server is at this very version and says that it is another: of a history that was lost with the servers'
  // memory.
  if (m.code == Code::kStale && m.version == m.contribution.base && held_ == m.version) ForgetModel(true);
  const LeaseId lease = flight_->contribution.lease.id;
  const bool newer = grant_ && grant_->number > used_grant_;
  ++stats_.dropped;
  DropContribution();
  if (!newer) GiveBack(lease);
}

void Session::Handle(Time, const Missing& m) {
  if (!flight_ || !flight_->committed || flight_->contribution != m.contribution) return;
  for (ChunkId chunk : m.chunks) {
    if (!flight_->chunks.contains(chunk)) continue;
    ++stats_.repushed_chunks;
    SendChunk(chunk);
  }
}

// ---- Pulling one version ----

Version Session::Wanted() const {
  Version wanted;
  if (!ready_) wanted = join_version_;
  if (grant_) wanted = std::max(wanted, grant_->version);
  if (finish_) wanted = std::max(wanted, finish_->version);
  // In step with the others the next version is the one to wait for; asynchronous workers wait for their next grant.
  if (flight_ && flight_->committed && job_->mode == Mode::kSync)
    wanted = std::max(wanted, Next(flight_->contribution.base));
  return wanted;
}

void Session::PullFrom(Time now, ServerId server, Link& link) {
  if (link.peer == PeerId{}) return;
  Pull pull{id_, pulling_, exact_, {}, {}};
  const std::vector<ChunkId> mine = map_->PrimaryChunks(server);
  if (mine.empty()) return;
  for (ChunkId chunk : mine) {
    const auto it = incoming_.find(chunk);
    if (pulling_ > held_ && (it == incoming_.end() || it->second.version < pulling_)) pull.chunks.push_back(chunk);
  }
  const bool waiting = flight_ && flight_->committed;
  if (pull.chunks.empty() && !waiting) return;
  if (pull.chunks.empty()) pull.chunks.push_back(mine.front());  // the question is what it lacks of ours
  if (waiting) pull.pending = flight_->contribution;
  if (pull.chunks.size() == mine.size()) pull.chunks.clear();  // "all" is shorter
  link.pulled_at = now;
  Send(link.peer, std::move(pull));
}

void Session::PullAll(Time now) {
  for (auto& [id, link] : servers_) PullFrom(now, id, link);
}

// What was refused for the moment is asked again before anybody would miss it: the step waits for it.
void Session::PullAgainSoon(Time now, Link& link) {
  link.ask_at = now + kPullAgain;
  next_tick_ = std::min(next_tick_, link.ask_at);
}

void Session::Handle(Time now, ServerId from, Link& link, const PullRefused& m) {
  if (m.code == Code::kWrongJob || m.code == Code::kCorrupt) {
    return Fail(Status(m.code, m.message).With("server " + ToString(from) + " refused to be read"));
  }
  if (m.code == Code::kStale && m.version > pulling_) {
    // The version that the others have is gone here: everybody takes the newer one.
    ++stats_.repulls;
    pulling_ = m.version;
    exact_ = false;
    return PullAll(now);
  }
  PullAgainSoon(now, link);
}

void Session::Handle(Time now, const ChunkData& m, Buffer payload) {
  if (!layout_ || m.chunk.value >= layout_->size() || payload.size() != layout_->chunk(m.chunk).bytes) {
    return Fail({Code::kCorrupt, "a server sent a chunk that the model does not have"});
  }
  if (m.version <= held_ || m.version < pulling_) return;  // a late double, of no use any more
  const auto it = incoming_.find(m.chunk);
  if (it != incoming_.end() && it->second.version >= m.version) return;
  incoming_[m.chunk] = {m.version, m.digest, std::move(payload)};
  CheckArrival(now);
}

void Session::CheckArrival(Time now) {
  if (incoming_.size() < layout_->size()) return;
  Version newest;
  for (const auto& [chunk, arrival] : incoming_) newest = std::max(newest, arrival.version);
  if (newest < pulling_) return;
  Digest digest;
  bool same = true;
  for (const auto& [chunk, arrival] : incoming_) {
    if (arrival.version == newest) digest = arrival.digest;
    same &= arrival.version == newest;
  }
  for (const auto& [chunk, arrival] : incoming_) same &= arrival.version != newest || arrival.digest == digest;
  if (!same && !EVERSTEP_PLANTED("mix-versions")) {
    // A commit came between: ask the shards that are behind for the version that the others named.
    ++stats_.repulls;
    std::erase_if(incoming_, [&](const auto& e) { return e.second.version < newest || e.second.digest != digest; });
    pulling_ = newest;
    exact_ = true;
    return PullAll(now);
  }
  held_ = newest;
  held_digest_ = digest;
  arrived_.clear();
  for (auto& [chunk, arrival] : incoming_) arrived_.emplace(chunk, std::move(arrival.bytes));
  incoming_.clear();
  exact_ = false;
  fresh_ = true;
}

// ---- Contributing ----

std::optional<Session::StepWork> Session::TakeStep(Time) {
  if (Over() || leaving_ || finish_ || !map_ || !grant_ || grant_->number <= used_grant_) return std::nullopt;
  if (held_ < grant_->version || (flight_ && held_ <= flight_->contribution.base)) return std::nullopt;
  if (flight_ && !flight_->committed) return std::nullopt;
  const bool initialise = grant_->version.value == 0;
  if (initialise && held_.value > 0) return std::nullopt;
  DropContribution();
  used_grant_ = grant_->number;
  StepWork work{next_serial_++, held_, grant_->lease, initialise, fresh_, {}};
  if (fresh_) work.parameters = std::exchange(arrived_, {});
  fresh_ = false;
  in_hand_ = work.serial;
  flight_ = InFlight{work.serial, {id_, held_, held_digest_, grant_->lease}, false, {}, {}, {}};
  NoteProgress(Phase::kComputing);
  return work;
}

void Session::PushChunk(Time, uint64_t serial, ChunkId chunk, Buffer bytes) {
  if (!flight_ || flight_->serial != serial || Over()) return;
  flight_->chunks[chunk] = std::move(bytes);
  NoteProgress(Phase::kPushing);
  // A contribution counts as soon as the servers have all of it, which is for the user to say.
  if (flight_->chunks.size() == layout_->size()) {
    flight_->last = chunk;
  } else {
    SendChunk(chunk);
  }
}

void Session::SendChunk(ChunkId chunk) {
  const Link* link = LinkOf(map_->primary(chunk).id);
  if (link != nullptr) Send(link->peer, Push{flight_->contribution, chunk}, flight_->chunks.at(chunk));
}

Status Session::CommitStep(Time now, uint64_t serial, std::vector<Metric> metrics) {
  if (failure_) return *failure_;
  if (in_hand_ == serial) in_hand_ = 0;
  if (!flight_ || flight_->serial != serial) {
    ++stats_.dropped;
    Advance(now);
    return {Code::kStale, "the step went on without this contribution; take the next one"};
  }
  EVERSTEP_CHECK(flight_->chunks.size() == layout_->size(), "a contribution has all chunks");
  if (flight_->contribution.base.value > 0) ++stats_.contributed;  // initial values are no work
  flight_->committed = true;
  NoteProgress(Phase::kWaiting);
  Send(coordinator_.peer,
       Report{id_, flight_->contribution.base, flight_->contribution.lease.id, false, std::move(metrics)});
  // After the report, so that the step's metrics are there when the contribution is whole.
  if (flight_->last) SendChunk(*flight_->last);
  if (job_->mode != Mode::kSync) PullAll(now);  // asks whether all of it arrived; the version comes with the grant
  Advance(now);
  return Status::Ok();
}

void Session::AbandonStep(Time now, uint64_t serial) {
  if (in_hand_ == serial) in_hand_ = 0;
  Advance(now);
  if (!flight_ || flight_->serial != serial || flight_->committed) return;
  const LeaseId lease = flight_->contribution.lease.id;
  DropContribution();
  if (!leaving_) GiveBack(lease);
}

void Session::DropContribution() { flight_.reset(); }

void Session::ReportEvaluation(std::vector<Metric> metrics) {
  Send(coordinator_.peer, Report{id_, held_, {}, true, std::move(metrics)});
}

// ---- Going on ----

void Session::SendReady() { Send(coordinator_.peer, Ready{id_, held_, voided_}); }

// The lease will not be used; said with every heartbeat until other work comes.
void Session::GiveBack(LeaseId lease) {
  voided_ = lease;
  SendReady();
}

void Session::SendHeartbeat(Time now) {
  Send(coordinator_.peer, Heartbeat{id_, phase_, progress_, grant_ ? grant_->number : 0});
  if (ready_ && (!grant_ || voided_ != LeaseId{})) SendReady();  // the first one may have been lost
  next_heartbeat_ = now + job_->heartbeat();
}

void Session::Advance(Time now) {
  if (Over()) return;
  OpenWhatIsDown(now);
  if (!job_ || !map_) {
    if (welcomed_ && !ready_ && in_hand_ == 0 && join_version_.value == 0) {
      ready_ = true;
      SendReady();
    }
    return;
  }
  // A contribution whose step is over need not be kept any more.
  if (flight_ && flight_->committed && held_ > flight_->contribution.base && grant_ && held_ >= grant_->version &&
      grant_->number > used_grant_) {
    DropContribution();
  }
  const Version wanted = Wanted();
  if (wanted > held_ && wanted > pulling_) {
    pulling_ = wanted;
    exact_ = false;
    PullAll(now);
  }
  // Not while the user still works on what an earlier life was given: it could not take more, and would hold up all.
  if (welcomed_ && !ready_ && in_hand_ == 0 && held_ >= join_version_) {
    ready_ = true;
    SendReady();
  }
  if (leaving_) TryLeave(now);
}

void Session::OnTick(Time now) {
  next_tick_ = Time::Never();
  if (Over()) return;
  next_tick_ = now + std::chrono::milliseconds(100);
  OpenWhatIsDown(now);
  if (Over()) return;
  const Duration again = job_ ? job_->retransmit() : std::chrono::milliseconds(500);
  const bool mute = coordinator_.peer != PeerId{} && !welcomed_;
  // A map may come before the welcome, when that one was lost.
  if (mute && job_ && map_ && map_->servers.size() > 1 && now - coordinator_.heard_at > job_->lease()) {
    // It takes connections and says nothing, like a process that is frozen: others may coordinate by now.
    last_problem_ = coordinator_.address + " does not answer";
    closings_.push_back(coordinator_.peer);
    const Time down_since = coordinator_.down_since;
    LinkDown(now, coordinator_);
    coordinator_.down_since = down_since;
  } else if (mute && now - hello_at_ > again) {
    if (now - coordinator_.opened_at > Timeout()) {
      return Fail({Code::kDeadlineExceeded, "connected to " + coordinator_.address +
                                                ", but no coordinator answered there within " +
                                                std::to_string(static_cast<int>(Seconds(Timeout()))) + " s"});
    }
    SendHello(now);
  }
  if (job_ && welcomed_) {
    if (now >= next_heartbeat_) SendHeartbeat(now);
    if (now - coordinator_.heard_at > job_->lease()) {
      // A link that carries nothing, although heartbeats are answered: it is dead, whatever the system says.
      last_problem_ = "it fell silent";
      closings_.push_back(coordinator_.peer);
      LinkDown(now, coordinator_);
      lost_ = coordinator_.address;
      tried_.clear();
      welcomed_ = false;
    }
    next_tick_ = std::min(next_tick_, next_heartbeat_);
  }
  // Ask again where nothing came for a while (rule R18): for what is missing, or whether our own chunks are missing.
  const bool waiting = map_ && (pulling_ > held_ || (flight_ && flight_->committed));
  for (auto& [id, link] : servers_) {
    const bool due = now >= link.ask_at || now - std::max(link.pulled_at, link.heard_at) > again;
    if (waiting && due) PullFrom(now, id, link);
    if (now >= link.ask_at) link.ask_at = Time::Never();
    next_tick_ = std::min(next_tick_, link.ask_at);
  }
  if (leaving_) TryLeave(now);
}

// ---- Leaving ----

void Session::Leave(Time now, std::string reason) {
  if (leaving_) return;
  leaving_ = true;
  leave_reason_ = std::move(reason);
  leave_at_ = now + (job_ ? job_->lease() : std::chrono::seconds(1));
  TryLeave(now);
}

void Session::TryLeave(Time now) {
  if (left_) return;
  if (coordinator_.peer == PeerId{} || !welcomed_) {
    left_ = true;  // nobody to say it to; the lease runs out by itself
    return;
  }
  // What was contributed shall count: wait until its step is over, at most a lease's time.
  const bool undecided = flight_ && flight_->committed && held_ <= flight_->contribution.base;
  if (undecided && now < leave_at_) return;
  if (leave_sent_ && now > leave_at_ + job_->lease()) {
    left_ = true;
    return;
  }
  if (!leave_sent_ || now - hello_at_ > job_->retransmit()) {
    leave_sent_ = true;
    hello_at_ = now;
    Send(coordinator_.peer, everstep::Leave{id_, leave_reason_});
  }
}

}  // namespace everstep
