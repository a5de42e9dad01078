// Coordinator: ballots. The configuration record, the promises of the replicas, and the decision what becomes of a step
// that was in flight (rules R1-R5, R7, R14).
#include <algorithm>

#include "base/log.h"
#include "base/plant.h"
#include "ps/clip.h"
#include "ps/coordinator.h"

namespace everstep {

void Coordinator::MaybeFormMap(Time now) {
  if (state_ != State::kGathering || servers_.size() < options_.spec.servers || !parameters_) return;
  if (std::any_of(servers_.begin(), servers_.end(), [](const Server& s) { return s.peer == PeerId{}; })) return;
  std::vector<ServerEntry> entries;
  for (const Server& server : servers_) entries.push_back({server.id, server.incarnation, server.address});
  map_ =
      InitialMap({1}, *layout_, options_.spec.chunk_bytes, std::move(entries), options_.spec.Copies(servers_.size()));
  NewBallot(now, "the job starts");
}

// Every change, and every seal that must be replaced, goes through a new ballot: record first, then recovery. One path.
void Coordinator::NewBallot(Time now, std::string why, std::optional<ShardMap> next) {
  state_ = State::kElecting;
  moving_.reset();
  ++counters_.ballots;
  sealed_.reset();
  if (!EVERSTEP_PLANTED("staged-at-any-ballot")) staged_.clear();
  staged_early_.clear();
  Ballot ballot{ballot_.value + 1};
  if (options_.resume) ballot.value = std::max(ballot.value, options_.resume->above.value + 1);
  asked_ = {ballot_,
            {ballot, options_.job, options_.holder, options_.address, next ? std::move(*next) : *map_, *parameters_,
             dataset_size_}};
  asked_.next.map.ballot = ballot;
  proposal_ = asked_;
  proposing_ = true;
  // Work given ahead assumed that the dropped seal would commit. It is taken back softly: nobody is told (rule R14).
  if (ledger_) ledger_->DropPreview();
  for (Member* member : members_.All()) ReturnWork(&member->next);
  Note(now, "ballot", ToString(ballot), std::move(why));
}

void Coordinator::OnConfigured(Time now, const Status& outcome) {
  if (!proposing_) return;
  const bool stale = outcome.code() == Code::kStale;
  if (stale && !EVERSTEP_PLANTED("stay-in-office")) return Depose(outcome.message());
  if (!outcome.ok() && !stale) {
    // Unknown whether it was written: the same change again finds out.
    proposal_ = asked_;
    return;
  }
  proposing_ = false;
  ballot_ = asked_.next.ballot;
  const ShardMap before = std::exchange(*map_, asked_.next.map);
  ForgetServers(now, before);
  if (giving_up_) GiveUp(now);
  if (state_ != State::kElecting) return;  // the job has failed meanwhile
  state_ = State::kRecovering;
  for (Server& server : servers_) {
    server.promise.reset();
    if (InMap(server)) AskPromise(server);
  }
  Reschedule();
}

void Coordinator::Depose(std::string why) {
  state_ = State::kDeposed;
  next_tick_ = Time::Never();
  log::Warning("another coordinator holds the configuration record (" + why + "); this one stands down");
}

void Coordinator::AskPromise(Server& server) { Send(server.peer, Promise{*map_, *parameters_, restore_}); }

void Coordinator::Handle(Time now, PeerId from, const Promised& m, Ballot ballot) {
  Server* server = FindServer(m.server);
  if (state_ != State::kRecovering || server == nullptr || server->peer != from || ballot != ballot_ ||
      !InMap(*server)) {
    return;
  }
  if (server->incarnation != m.incarnation) return;
  server->promise = m;
  MaybeDecide(now);
}

// Rule R4: only when every replica of the map has promised. Rule R5: the three cases.
void Coordinator::MaybeDecide(Time now) {
  Version newest;
  for (const ServerEntry& entry : map_->servers) {
    const Server* server = FindServer(entry.id);
    const bool answered = server != nullptr && server->promise;
    if (!answered && !EVERSTEP_PLANTED("decide-early")) return;
    if (answered) newest = std::max(newest, server->promise->version);
  }
  std::set<ServerId> behind;
  const Promised* leader = nullptr;
  for (const Server& server : servers_) {
    if (!server.promise) continue;
    const Promised& p = *server.promise;
    if (p.version == newest && (leader == nullptr || !leader->applied)) leader = &p;
    if (p.version < newest) behind.insert(server.id);
  }
  if (leader == nullptr) return;
  if (restore_) Note(now, "restored", options_.spec.name, "version " + ToString(newest) + " is on every server");
  restore_.reset();
  confirming_.reset();  // the promises say who has applied what
  // (a) Somebody applied the seal that made the newest version: it is a fact, for everybody.
  if (leader->applied) {
    const Seal made = *leader->applied;
    if (restarted_ && !adopted_) {
      adopted_ = true;
      for (const Contribution& c : made.contributors) awaited_.insert(c.worker);
      ledger_->Restore(made.ledger_after);
      RememberDone(made);
      commits_.push_back(Record(now, made, leader->applied_scale));
    } else if (newest > version_) {
      Committed(now, made, leader->applied_scale);
    }
    if (!behind.empty()) ConfirmOn(made, leader->applied_scale, behind);
  }
  version_ = newest;
  digest_ = leader->digest;
  // (b) Everybody holds the same seal of this step, prepared: it may have been decided. Roll it forward as it is.
  const Seal* common = nullptr;
  std::map<ChunkId, double> norms;
  bool all_prepared = behind.empty();
  for (const Server& server : servers_) {
    if (!server.promise) continue;
    const auto& prepared = server.promise->prepared;
    if (!prepared && EVERSTEP_PLANTED("one-survivor-is-enough")) continue;
    const bool other = common != nullptr && prepared && prepared->id != common->id;
    if (!prepared || prepared->id.step != newest || (other && !EVERSTEP_PLANTED("any-record-counts"))) {
      all_prepared = false;
      break;
    }
    common = &*prepared;
    for (const ChunkNorm& norm : server.promise->norms) norms[norm.chunk] = norm.squared;
  }
  if (EVERSTEP_PLANTED("never-roll-forward")) all_prepared = false;
  if (all_prepared && common != nullptr) {
    Seal seal = *common;
    if (EVERSTEP_PLANTED("rolled-forward-anew")) {
      seal.id.ballot = ballot_;
      seal.digest = SealDigest(seal);
    }
    const double scale = ClipScale(seal.clip_norm, norms);
    if (restarted_) {
      for (const Contribution& c : seal.contributors) awaited_.insert(c.worker);
    }
    ConfirmOn(seal, scale, MapServers());
    Committed(now, seal, scale);
    return Open(now);
  }
  // (c) Nobody can have seen a version made from what is in flight: the step is sealed anew from what is held.
  if (EVERSTEP_PLANTED("drop-is-final")) {
    for (const Server& server : servers_) {
      if (!server.promise || !server.promise->prepared || server.promise->prepared->id.step != newest) continue;
      for (const Contribution& c : server.promise->prepared->contributors) {
        ledger_->Return(c.lease);
        RefuseContribution(now, c, Code::kStale, "the seal that held it was dropped");
      }
    }
  }
  Open(now);
}

void Coordinator::ConfirmOn(const Seal& seal, double scale, std::set<ServerId> servers) {
  confirming_ = Confirming{{seal.id, seal.digest, scale}, std::move(servers)};
  for (ServerId id : confirming_->waiting) {
    if (Server* server = FindServer(id)) Send(server->peer, confirming_->commit);
  }
}

void Coordinator::Open(Time now) {
  state_ = State::kOpen;
  Note(now, "recovered", ToString(ballot_), "at version " + ToString(version_));
  // Slots are announced anew at each ballot (rule R7), and what became whole after its server's promise is announced
  // by itself.
  for (const Server& server : servers_) {
    if (!server.promise) continue;
    for (const Contribution& c : server.promise->held) staged_early_.emplace_back(server.id, c);
  }
  for (const auto& [server, contribution] : std::exchange(staged_early_, {})) {
    Stage(now, server, contribution);
    if (restarted_) awaited_.insert(contribution.worker);
  }
  // What was whole on a server that is lost, or on the former primary of what moved, is whole no more; of a worker that
  // is gone nobody can push it again.
  for (auto it = departed_.begin(); it != departed_.end();) {
    const bool whole = std::any_of(staged_.begin(), staged_.end(), [&](const StagedEntry& entry) {
      return entry.whole && entry.contribution.lease.id == it->first;
    });
    if (!whole && EVERSTEP_PLANTED("keep-departed")) {
      ++it;
      continue;
    }
    if (!whole) ledger_->Return(it->second);
    it = whole ? std::next(it) : departed_.erase(it);
  }
  TakeInLate(now);
  if (restarted_ && version_.value > 0) {
    if (settle_at_ == Time::Never()) settle_at_ = now + options_.spec.lease();
  } else {
    restarted_ = false;
  }
  SendToMembers(MapUpdate{*map_});
  MaybeSettle(now);
  Advance(now);
}

// Who was too late for the seal that was dropped may be in time for the next one: with what is whole by now, or else
// with new work, for the worker has been told to go on to the next version and waits for that.
void Coordinator::TakeInLate(Time now) {
  for (Member* member : members_.All()) {
    const std::optional<Work> late = std::exchange(member->late, {});
    if (!late || member->work || late->version != version_) continue;
    if (IsWhole(member->id, late->lease.id) && ledger_->Adopt(late->lease).ok()) {
      member->work = late;
    } else if (!paused_) {
      GrantTo(now, *member, SamplesEach(), false);
    }
  }
}

// Everybody of whom it is known that they were members is back: there is nobody to wait for.
void Coordinator::MaybeSettle(Time now) {
  if (settle_at_ == Time::Never() || state_ != State::kOpen || awaited_.empty()) return;
  for (WorkerId id : awaited_) {
    if (members_.Find(id) == nullptr) return;
  }
  Settle(now);
}

void Coordinator::AdoptClaim(Member& member) {
  if (!member.claimed) return;
  const Work claimed = *member.claimed;
  member.claimed.reset();
  if (claimed.version == version_ && ledger_->Adopt(claimed.lease).ok()) member.work = claimed;
}

// A restarted coordinator knew nobody. When they are back, or after a lease's time, it takes stock: members that came
// back keep the work they claim, what else is whole keeps its samples, and only then new work is given out. Parts that
// nobody claims are left over from work that was given up.
void Coordinator::Settle(Time now) {
  settle_at_ = Time::Never();
  if (state_ != State::kOpen) {
    settle_at_ = now + options_.spec.lease();
    return;
  }
  restarted_ = false;
  awaited_.clear();
  for (Member* member : members_.All()) AdoptClaim(*member);
  for (const StagedEntry& entry : staged_) {
    const Contribution& c = entry.contribution;
    Member* member = members_.Find(c.worker);
    if (!entry.whole || (member != nullptr && member->work) || members_.IsFenced(c.worker)) continue;
    if (!ledger_->Adopt(c.lease).ok()) continue;
    if (member != nullptr) {
      member->work = Work{0, c.base, c.lease};
    } else {
      departed_[c.lease.id] = c.lease;
    }
  }
  granted_count_ = departed_.size();
  for (const Member* member : members_.All()) granted_count_ += member->work.has_value();
}

void Coordinator::Handle(Time, PeerId from, const StaleBallot& m) {
  // Ballots come from the record alone: whoever was promised a higher one than this coordinator ever won holds office
  // now.
  const Server* server = FindServerByPeer(from);
  if (server == nullptr || m.promised <= ballot_) return;
  Depose("server " + server->name + " has promised ballot " + ToString(m.promised) + ", this is " + ToString(ballot_));
}

}  // namespace everstep
