// Coordinator: the workers of the job. Hello, heartbeats and their absence, leaving, fencing.
#include "base/limits.h"
#include "base/log.h"
#include "base/plant.h"
#include "ps/coordinator.h"
#include "ps/schedule.h"

namespace everstep {
namespace {

std::string Label(const Member& member) { return member.name; }

// Whether a worker that gave this lease back had it after the work. Leases of one coordinator's life are numbered; the
// life is in the upper bits. Work without a number was found on the servers and never given out by this coordinator:
// its worker knows only the newest of its leases.
bool WentOn(LeaseId given_back, const Work& work) {
  const LeaseId lease = work.lease.id;
  if (given_back == LeaseId{} || given_back == lease) return false;
  return work.number == 0 || (given_back.value > lease.value && given_back.value >> 24 == lease.value >> 24);
}

std::string Hex(uint64_t value) {
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

}  // namespace

// ---- Hello ----

void Coordinator::Handle(Time now, PeerId from, const Envelope& envelope, const Hello& m) {
  const JobUid job = envelope.job;
  const JobSpec& spec = options_.spec;
  if (!m.job_name.empty() && m.job_name != spec.name) {
    return Refuse(now, from, m,
                  {Code::kWrongJob, "this is job \"" + spec.name + "\", you asked for job \"" + m.job_name +
                                        "\"; check --servers and --job"});
  }
  if (job != JobUid{} && job != options_.job) {
    return Refuse(now, from, m,
                  {Code::kWrongJob,
                   "job \"" + spec.name + "\" was started anew; what you hold belongs to an earlier life of it"});
  }
  if (state_ == State::kFailed) return Refuse(now, from, m, failure_->With("the job has failed"));
  switch (m.role) {
    case PeerRole::kServer: return JoinServer(now, from, m, envelope.ballot);
    case PeerRole::kWorker: return JoinWorker(now, from, m);
    case PeerRole::kObserver: return Send(from, Welcome{spec, {}, version_, map_});  // never a member
  }
}

void Coordinator::Refuse(Time now, PeerId to, const Hello& hello, Status why) {
  ++counters_.refusals;
  Note(now, hello.role == PeerRole::kServer ? "server-refused" : "worker-refused", hello.name, why.ToString());
  Send(to, Refused{why.code(), why.message()});
  closings_.push_back(to);
}

Status Coordinator::CheckModel(const Hello& m) {
  if (!parameters_) {
    EVERSTEP_RETURN_IF_ERROR(Validate(m.spec, options_.spec.chunk_bytes));
    if (m.dataset_size == 0 && options_.spec.max_steps == 0) {
      return {Code::kInvalidArgument, "a job without a dataset needs max-steps, or it never ends"};
    }
    EVERSTEP_RETURN_IF_ERROR(CheckInitialFile(m.spec));
    dataset_size_ = m.dataset_size;
    // Only now the job's length is known, and with it whether the schedule has an end.
    EVERSTEP_RETURN_IF_ERROR(Validate(options_.spec.schedule, job_steps()));
    parameters_ = m.spec;
    layout_ = ChunkLayout::Make(m.spec, options_.spec.chunk_bytes);
    ledger_.emplace(dataset_size_, options_.spec.epochs);
    RestoreInitialFile();
    return Status::Ok();
  }
  if (m.spec.hash() != parameters_->hash()) {
    return {Code::kWrongSpec, "another model: its parameter spec has hash " + Hex(m.spec.hash()) + ", the job's has " +
                                  Hex(parameters_->hash()) + "; " + FirstDifference(m.spec, *parameters_)};
  }
  if (m.dataset_size != dataset_size_) {
    return {Code::kWrongSpec, "another dataset: it has " + std::to_string(m.dataset_size) + " samples, the job's has " +
                                  std::to_string(dataset_size_)};
  }
  return Status::Ok();
}

void Coordinator::JoinWorker(Time now, PeerId from, const Hello& m) {
  if (state_ == State::kFinished) return Refuse(now, from, m, {Code::kFinished, "the job is complete"});
  if (Member* known = members_.Find(m.worker)) {
    // The same life on another link, or a hello that was sent twice.
    known->peer = from;
    known->last_seen = now;
    return Send(from, Welcome{options_.spec, {}, version_, map_});
  }
  if (members_.IsFenced(m.worker) || IsOfALostLife(m)) return TellExcluded(from, m.worker);
  Status fine = members_.MayJoin(now, m);
  if (fine.ok()) fine = CheckModel(m);
  if (!fine.ok()) return Refuse(now, from, m, std::move(fine));
  if (!m.name.empty()) {
    // A process that came back before its old lease ran out: the new life is in at once, the old one is fenced.
    if (Member* old = members_.FindByName(m.name))
      FenceMember(now, old->id, "a new life of " + m.name + " has joined", true);
  }
  if (members_.size() == 0) gathering_since_ = now;
  if (EVERSTEP_PLANTED("fence-on-join")) {
    for (const Member* other : members_.All()) FenceMember(now, other->id, "everybody starts again with the new one");
  }
  Member& member = members_.Add(now, m, from);
  if (member.name.empty()) member.name = "worker-" + Short(member.id);
  ++counters_.joins;
  if (options_.spec.mode == Mode::kSsp) {
    // A joiner starts beside the slowest, or everybody would have to wait for it.
    uint64_t slowest = UINT64_MAX;
    for (const Member* other : members_.ReadyMembers()) slowest = std::min(slowest, other->clock);
    member.clock = slowest == UINT64_MAX ? 0 : slowest;
  }
  if (m.version.value > 0) {
    // It was a member of an earlier life of the coordinator and holds parameters and perhaps work.
    member.ready = true;
    if (m.lease) member.claimed = Work{0, m.version, *m.lease};
    TakeBackDeparted(&member);
    if (!restarted_ && map_ && state_ == State::kOpen) {
      AdoptClaim(member);
      granted_count_ += member.work.has_value();
    }
  }
  Note(now, "worker-joined", Label(member), Short(member.id));
  Send(from, Welcome{options_.spec, {}, version_, map_});
  MaybeFormMap(now);
  MaybeSettle(now);
  Advance(now);
}

// A recovered coordinator has counted its contribution already, as one whose worker is gone.
void Coordinator::TakeBackDeparted(Member* member) {
  for (const StagedEntry& entry : staged_) {
    const Contribution& c = entry.contribution;
    if (c.worker == member->id && departed_.erase(c.lease.id) > 0) member->work = Work{0, c.base, c.lease};
  }
}

// ---- Life signs ----

Member* Coordinator::Speaker(PeerId from, WorkerId id) {
  Member* member = members_.Find(id);
  return member != nullptr && member->peer == from ? member : nullptr;
}

void Coordinator::TellExcluded(PeerId to, WorkerId id) {
  if (members_.IsReplaced(id)) return Send(to, Fenced{id, "a new life of the same name has joined", true});
  Send(to, Fenced{id, members_.IsFenced(id) ? "this life of the worker was excluded; join as a new one"
                                            : "it is not a member"});
}

void Coordinator::Handle(Time now, PeerId from, const Ready& m) {
  if (members_.Find(m.worker) == nullptr) return TellExcluded(from, m.worker);
  Member* member = Speaker(from, m.worker);
  if (member == nullptr) return;
  member->last_seen = now;
  for (std::optional<Work>* work : {&member->work, &member->next}) {
    if (m.void_lease != LeaseId{} && *work && (*work)->lease.id == m.void_lease) ReturnWork(work);
  }
  // It wants other work than a lease that it was given after the one it is believed to work on, by a seal that was
  // dropped or by an earlier coordinator: it has gone on since, and what a lost server had of the older contribution it
  // cannot push again.
  if (member->work && WentOn(m.void_lease, *member->work) && !IsWhole(member->id, member->work->lease.id)) {
    ReturnWork(&member->work);
  }
  if (member->ready) return;
  member->ready = true;
  member->progress_at = now;
  Note(now, "worker-ready", Label(*member), "has version " + ToString(m.version));
}

void Coordinator::Handle(Time now, PeerId from, const Heartbeat& m, Ballot map) {
  if (m.worker == WorkerId{}) {
    // A hello that was under way for long can make an older link of the server's the last one that was heard of.
    Server* server = FindServerByPeer(from);
    if (server == nullptr) return closings_.push_back(from);
    rebalance_ |= !std::exchange(server->beats, true);
    if (state_ == State::kFinished) Send(from, Finish{version_, false});
    if (state_ == State::kFailed) Send(from, JobFailed{failure_->code(), failure_->message()});
    return Send(from, HeartbeatAck{});
  }
  if (members_.Find(m.worker) == nullptr) return TellExcluded(from, m.worker);
  Member* member = Speaker(from, m.worker);
  if (member == nullptr) return;
  member->last_seen = now;
  if (m.progress != member->progress || m.phase != member->phase) member->progress_at = now;
  member->progress = m.progress;
  member->phase = m.phase;
  RepeatWhatWasLost(*member, m.grant, map);
  Send(from, HeartbeatAck{});
}

// Links do not lose messages while they live, but a worker may have changed links: what it must know is said again.
void Coordinator::RepeatWhatWasLost(const Member& member, uint64_t seen_grant, Ballot seen_map) {
  if (state_ == State::kFailed) return Send(member.peer, JobFailed{failure_->code(), failure_->message()});
  if (state_ == State::kFinished) return Send(member.peer, Finish{version_, evaluator_ == member.id});
  const bool settled = state_ == State::kOpen || state_ == State::kSealed || state_ == State::kMoving;
  if (seen_map < ballot_ && settled) Send(member.peer, MapUpdate{*map_});
  const std::optional<Work>& newest = member.next ? member.next : member.work;
  if (newest && newest->number > seen_grant) {
    Send(member.peer, everstep::Grant{member.id, newest->number, newest->version, newest->lease});
  }
}

void Coordinator::Handle(Time now, PeerId from, const Report& m) {
  Member* member = Speaker(from, m.worker);
  if (member == nullptr) return;
  member->last_seen = now;
  if (m.evaluation) {
    for (const Metric& metric : m.metrics) evaluation_[metric.name] = metric.value;
    return;
  }
  if (m.base > Next(version_)) return;
  if (reports_.size() < limits::kMaxSlots) reports_[{m.worker, m.lease}] = {m.base, m.metrics};
}

void Coordinator::Handle(Time now, PeerId from, const Leave& m) {
  const bool member = members_.Find(m.worker) != nullptr;
  if (member && Speaker(from, m.worker) == nullptr) return;
  Send(from, LeaveAck{});
  if (!member) return;
  ++counters_.leaves;
  RemoveMember(now, m.worker, "worker-left", m.message);
}

// ---- Going ----

void Coordinator::RemoveMember(Time now, WorkerId id, std::string kind, std::string detail, bool replaced) {
  if (kind == "worker-lost" || kind == "worker-fenced") ++counters_.losses;
  Member member = members_.Remove(id, replaced);
  Note(now, std::move(kind), Label(member), std::move(detail));
  if (member.work) {
    // A contribution that is whole stays: it is in the step on every shard or on none, whatever becomes of its worker.
    const bool whole = IsWhole(id, member.work->lease.id);
    const bool sealed = sealed_ && std::any_of(sealed_->seal.contributors.begin(), sealed_->seal.contributors.end(),
                                               [&](const Contribution& c) { return c.worker == id; });
    if (whole || sealed) {
      departed_[member.work->lease.id] = member.work->lease;
    } else {
      ReturnWork(&member.work);
    }
  }
  ReturnWork(&member.next);
  if (evaluator_ == id && evaluation_.empty()) {
    evaluator_.reset();
    AskEvaluation();
  }
}

bool Coordinator::IsWhole(WorkerId worker, LeaseId lease) const {
  return std::any_of(staged_.begin(), staged_.end(), [&](const StagedEntry& entry) {
    return entry.whole && entry.contribution.worker == worker && entry.contribution.lease.id == lease;
  });
}

void Coordinator::FenceMember(Time now, WorkerId id, std::string why, bool replaced) {
  const PeerId peer = members_.Find(id)->peer;
  Send(peer, Fenced{id, why, replaced});
  RemoveMember(now, id, "worker-fenced", std::move(why), replaced);
}

void Coordinator::ExpireMembers(Time now) {
  const JobSpec& job = options_.spec;
  for (Member* member : members_.All()) {
    if (now - member->last_seen > job.lease()) {
      FenceMember(now, member->id,
                  "nothing was heard of it for " + std::to_string(static_cast<int>(Milliseconds(job.lease()))) + " ms");
      continue;
    }
    // A process that lives and does not move holds up everybody else; a slow one says that it moves, and one whose
    // contribution is whole waits like the others.
    const bool holds_up = state_ == State::kOpen && member->work && !IsWhole(member->id, member->work->lease.id);
    if (holds_up && now - member->progress_at > job.progress_deadline() &&
        now - granted_at_ > job.progress_deadline()) {
      FenceMember(
          now, member->id,
          "it made no progress for " + std::to_string(static_cast<int>(Seconds(job.progress_deadline()))) + " s");
    }
  }
}

}  // namespace everstep
