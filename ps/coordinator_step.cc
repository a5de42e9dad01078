// Coordinator: the step. Work is granted, contributions come in, a seal says what the step is made of, and its commit
// moves version and ledger (rules R7, R8, R10, R14, R15).
#include <algorithm>

#include "base/limits.h"
#include "base/log.h"
#include "base/plant.h"
#include "ps/clip.h"
#include "ps/coordinator.h"
#include "ps/schedule.h"

namespace everstep {
namespace {

// How often samples at one place of the data may come back as NaN or Inf before the job stops and says where.
constexpr uint32_t kMaxRefusalsAtOnePlace = 3;

bool Equal(const std::optional<Work>& work, const Contribution& c) { return work && work->lease.id == c.lease.id; }

}  // namespace

// ---- Going on ----

// Does whatever the present state allows. Called after every event.
void Coordinator::Advance(Time now) {
  recheck_ = Time::Never();
  if (state_ == State::kGathering) return MaybeFormMap(now);
  if (state_ != State::kOpen || settle_at_ != Time::Never()) return;
  if (LastStepDone()) return MaybeFinish(now);
  if (version_.value == 0) {
    GrantInitialisation(now);
  } else {
    UpdatePaused(now);
    if (!paused_) GrantStep(now);
  }
  if (WantsMove(now)) return;
  MaybeSeal(now);
}

void Coordinator::UpdatePaused(Time now) {
  const bool enough = members_.ready_count() + DepartedWhole() >= options_.spec.min_workers;
  if (enough != paused_) return;
  paused_ = !enough;
  const std::string counts = std::to_string(members_.ready_count()) + " of at least " +
                             std::to_string(options_.spec.min_workers) + " workers are ready";
  if (paused_) {
    paused_at_ = now;
    Note(now, "paused", options_.spec.name, counts);
    return;
  }
  counters_.paused += now - paused_at_;
  Note(now, "resumed", options_.spec.name, counts);
  // The step goes on where it stopped; whoever came meanwhile takes part in it.
  bool begun = DepartedWhole() > 0;
  for (const Member* member : members_.All()) begun |= member->work.has_value();
  if (options_.spec.mode == Mode::kSync && begun) {
    GrantIdle(now, SamplesEach());
  }
}

size_t Coordinator::DepartedWhole() const {
  size_t count = 0;
  for (const StagedEntry& entry : staged_) count += entry.whole && departed_.contains(entry.contribution.lease.id);
  return count;
}

// ---- Granting work ----

void Coordinator::GrantInitialisation(Time now) {
  for (const Member* member : members_.All()) {
    if (member->work) return;  // somebody is at it
  }
  for (Member* member : members_.ReadyMembers()) {
    member->work = Work{next_grant_++, {0}, {{next_lease_++}, 0, {}}};
    granted_at_ = now;
    granted_count_ = 1;
    return Send(member->peer, everstep::Grant{member->id, member->work->number, {0}, member->work->lease});
  }
}

void Coordinator::GrantStep(Time now) {
  if (options_.spec.mode != Mode::kSync) return GrantIdle(now, options_.spec.batch);
  const std::vector<Member*> ready = members_.ReadyMembers();
  // The step has its members; whoever is ready now joins at the next boundary.
  const bool begun = DepartedWhole() > 0 ||
                     std::any_of(ready.begin(), ready.end(), [](const Member* m) { return m->work.has_value(); });
  if (begun) return FillStep(now);
  const uint64_t total = std::min(options_.spec.batch, ledger_->Free());
  granted_count_ = 0;
  for (size_t i = 0; i < ready.size(); ++i) {
    if (GrantTo(now, *ready[i], Share(total, ready.size(), i), false)) ++granted_count_;
  }
}

// A step that lost so many of its members that it would be made of fewer than the minimum gets others.
void Coordinator::FillStep(Time now) {
  const size_t able = Candidates().size() + refused_.size();
  if (able >= std::min<size_t>(granted_count_, options_.spec.min_workers)) return;
  granted_count_ = able;
  GrantIdle(now, SamplesEach());
}

uint64_t Coordinator::SamplesEach() const {
  return std::max<uint64_t>(1, options_.spec.batch / std::max<size_t>(1, members_.ready_count()));
}

void Coordinator::GrantIdle(Time now, uint64_t samples_each) {
  uint64_t slowest = UINT64_MAX;
  for (const Member* member : members_.ReadyMembers()) slowest = std::min(slowest, member->clock);
  for (Member* member : members_.ReadyMembers()) {
    if (member->work || !MayRunAhead(options_.spec, member->clock, slowest)) continue;
    if (GrantTo(now, *member, samples_each, false)) ++granted_count_;
  }
}

bool Coordinator::GrantTo(Time now, Member& member, uint64_t samples, bool ahead) {
  if (samples == 0) return false;
  Lease lease = ledger_->Lend({next_lease_++}, samples);
  if (dataset_size_ > 0 && lease.ranges.empty()) return false;
  const Version step = ahead ? Next(version_) : version_;
  Work work{next_grant_++, step, std::move(lease)};
  Send(member.peer, everstep::Grant{member.id, work.number, step, work.lease});
  member.progress_at = now;
  (ahead ? member.next : member.work) = std::move(work);
  (ahead ? next_granted_at_ : granted_at_) = now;
  return true;
}

void Coordinator::ReturnWork(std::optional<Work>* work) {
  if (*work && ledger_) ledger_->Return((*work)->lease);
  work->reset();
}

// ---- Contributions coming in ----

void Coordinator::Handle(Time now, PeerId from, const Staged& m, Ballot ballot) {
  const Server* server = FindServerByPeer(from);
  // Rule R7: a contribution counts only as announced at this ballot.
  if (server == nullptr || server->id != m.server || !InMap(*server)) return;
  if (ballot != ballot_ && !EVERSTEP_PLANTED("staged-at-any-ballot")) return;
  if (state_ == State::kOpen || state_ == State::kSealed || state_ == State::kMoving)
    return Stage(now, m.server, m.contribution);
  // A worker that has the new map from the first server that promised is faster than the last one's promise. Nobody
  // would announce again what it pushes, before the next heartbeat.
  if (state_ != State::kRecovering || staged_early_.size() >= limits::kMaxSlots) return;
  if (EVERSTEP_PLANTED("early-staged-is-lost")) return;
  const std::pair<ServerId, Contribution> early{m.server, m.contribution};
  if (std::find(staged_early_.begin(), staged_early_.end(), early) == staged_early_.end())
    staged_early_.push_back(early);
}

void Coordinator::Stage(Time now, ServerId server, const Contribution& contribution) {
  if (contribution.base > version_ || !map_ || done_.contains({contribution.worker, contribution.lease.id})) return;
  const uint64_t age = version_.value - contribution.base.value;
  if (age > (options_.spec.mode == Mode::kSync ? 0 : options_.spec.staleness) && !EVERSTEP_PLANTED("accept-stale"))
    return RefuseOld(contribution);
  auto it = std::find_if(staged_.begin(), staged_.end(),
                         [&](const StagedEntry& e) { return e.contribution == contribution; });
  if (it == staged_.end()) {
    if (staged_.size() >= limits::kMaxSlots) return;
    it = staged_.insert(staged_.end(), StagedEntry{contribution, {}, false, {}});
  }
  it->servers.insert(server);
  if (it->whole) return;
  const bool whole = std::all_of(map_->servers.begin(), map_->servers.end(), [&](const ServerEntry& s) {
    return it->servers.contains(s.id) || map_->PrimaryChunks(s.id).empty();
  });
  if (!whole && !EVERSTEP_PLANTED("whole-on-first-shard") && !EVERSTEP_PLANTED("sum-what-is-here")) return;
  it->whole = true;
  it->whole_at = now;
}

// Its server took it at the version before and drops it with the next one: nobody else would tell the worker.
void Coordinator::RefuseOld(const Contribution& c) {
  Member* member = members_.Find(c.worker);
  if (member == nullptr || !Equal(member->work, c)) return;
  ReturnWork(&member->work);
  Send(member->peer, PushRefused{c, {}, Code::kStale, version_, "it waited too long; the version moved on"});
}

std::vector<Candidate> Coordinator::Candidates() {
  std::vector<Candidate> candidates;
  std::set<WorkerId> seen;
  for (const StagedEntry& entry : staged_) {
    const Contribution& c = entry.contribution;
    if (refused_.contains({c.worker, c.lease.id})) continue;
    const Member* member = members_.Find(c.worker);
    const bool current = member != nullptr && Equal(member->work, c);
    if (!current && !departed_.contains(c.lease.id) && !(entry.whole && EVERSTEP_PLANTED("seal-the-fenced"))) continue;
    if (current) seen.insert(c.worker);
    candidates.push_back({c, entry.whole, current, entry.whole_at});
  }
  for (const Member* member : members_.All()) {
    if (!member->work || seen.contains(member->id)) continue;
    candidates.push_back({{member->id, member->work->version, {}, member->work->lease}, false, true, Time::Never()});
  }
  return candidates;
}

// ---- Sealing ----

bool Coordinator::MaybeSeal(Time now) {
  SealView view{now, version_, members_.ready_count(), granted_count_, refused_.size(), Candidates()};
  const SealDecision decision = DecideSeal(options_.spec, view);
  recheck_ = decision.recheck;
  if (decision.chosen.empty()) return false;
  std::vector<Contribution> contributors;
  for (size_t i : decision.chosen) contributors.push_back(view.candidates[i].contribution);
  if (!EVERSTEP_PLANTED("arrival-order")) SortContributors(&contributors);
  if (version_.value > 0) contributors = DropVoid(now, std::move(contributors));
  if (contributors.empty()) return false;
  SealWith(now, std::move(contributors));
  return true;
}

// Rule R15: what makes a sample count once is this check, not the granting.
std::vector<Contribution> Coordinator::DropVoid(Time now, std::vector<Contribution> contributors) {
  std::vector<Contribution> good;
  for (Contribution& c : contributors) {
    std::vector<const Lease*> leases;
    for (const Contribution& g : good) leases.push_back(&g.lease);
    leases.push_back(&c.lease);
    const Status fine = ledger_->Check(leases);
    if (fine.ok()) {
      good.push_back(std::move(c));
      continue;
    }
    ++counters_.void_leases;
    ledger_->Return(c.lease);  // what of it is not consumed must be lent again, or the epoch never ends
    RefuseContribution(now, c, fine.code(), fine.message());
  }
  return good;
}

// The contribution will not be in the step. Its worker learns it and gets other work with the next grant.
void Coordinator::RefuseContribution(Time now, const Contribution& c, Code code, std::string why) {
  refused_.insert({c.worker, c.lease.id});
  departed_.erase(c.lease.id);
  Member* member = members_.Find(c.worker);
  Note(now, "contribution-refused", member != nullptr ? member->name : Short(c.worker), why);
  if (member == nullptr) return;
  if (Equal(member->work, c)) member->work.reset();
  Send(member->peer, PushRefused{c, {}, code, version_, std::move(why)});
}

void Coordinator::SealWith(Time now, std::vector<Contribution> contributors) {
  const JobSpec& job = options_.spec;
  Seal seal;
  seal.id = {ballot_, version_};
  seal.weights = SealWeights(job, version_, contributors);
  seal.learning_rate = version_.value == 0 ? 0 : LearningRate(job.optimizer, job.schedule, version_.value, job_steps());
  seal.clip_norm = job.clip_norm;
  std::vector<const Lease*> leases;
  for (const Contribution& c : contributors) leases.push_back(&c.lease);
  seal.ledger_after = version_.value == 0 ? ledger_->committed() : ledger_->After(leases);
  seal.previous = digest_;
  seal.contributors = std::move(contributors);
  seal.digest = SealDigest(seal);
  // Only while a single server holds everything do the phases collapse: the flip is local.
  const bool degraded = std::any_of(map_->replicas.begin(), map_->replicas.end(),
                                    [](const auto& holders) { return holders.size() == 1; });
  const bool collapsed = map_->single() || (degraded && EVERSTEP_PLANTED("collapse-degraded"));
  sealed_ = Sealed{seal, collapsed, now, {}, {}};
  state_ = State::kSealed;
  SendToReplicas(SealStep{seal, sealed_->collapsed});
  next_retransmit_ = now + job.retransmit();
  GrantAhead(now, seal);
}

bool Coordinator::LastStepDone() const {
  const JobSpec& job = options_.spec;
  if (version_.value == 0) return false;
  return (job.max_steps > 0 && version_.value > job.max_steps) || ledger_->Complete();
}

bool Coordinator::LastStepSealed() const {
  const JobSpec& job = options_.spec;
  return (job.max_steps > 0 && version_.value >= job.max_steps) || ledger_->Complete();
}

// The seal is out: as far as its members are concerned the next step begins. They get their samples now, so that they
// can load them while the servers commit.
void Coordinator::GrantAhead(Time now, const Seal& seal) {
  ledger_->Preview(seal.ledger_after);
  const JobSpec& job = options_.spec;
  const auto in_seal = [&](const Member* m) {
    return std::any_of(seal.contributors.begin(), seal.contributors.end(),
                       [&](const Contribution& c) { return c.worker == m->id; });
  };
  next_granted_count_ = 0;
  if (job.mode == Mode::kSync && version_.value > 0) {
    // What stragglers were lent goes back; their late pushes are refused as stale.
    for (Member* member : members_.All()) {
      if (!member->work || in_seal(member)) continue;
      member->late = member->work;
      ReturnWork(&member->work);
    }
  }
  if (LastStepSealed() || members_.ready_count() < job.min_workers) return;
  const std::vector<Member*> ready = members_.ReadyMembers();
  if (job.mode == Mode::kSync) {
    const uint64_t total = std::min(job.batch, ledger_->Free());
    for (size_t i = 0; i < ready.size(); ++i) {
      if (GrantTo(now, *ready[i], Share(total, ready.size(), i), true)) ++next_granted_count_;
    }
    return;
  }
  uint64_t slowest = UINT64_MAX;
  for (const Member* member : ready) slowest = std::min(slowest, member->clock + (in_seal(member) ? 1 : 0));
  for (Member* member : ready) {
    if (!in_seal(member) || !MayRunAhead(job, member->clock + 1, slowest)) continue;
    if (GrantTo(now, *member, job.batch, true)) ++next_granted_count_;
  }
}

// ---- Prepared, refused, applied ----

void Coordinator::Handle(Time now, PeerId from, const Prepared& m) {
  const Server* server = FindServerByPeer(from);
  if (!sealed_ || state_ != State::kSealed || server == nullptr || server->id != m.server || !InMap(*server)) return;
  // Rule R10: of this very seal, from this life of the server.
  const bool same = m.seal == sealed_->seal.id && m.digest == sealed_->seal.digest;
  if ((!same && !EVERSTEP_PLANTED("prepared-any-seal")) || m.incarnation != server->incarnation) return;
  for (const ChunkNorm& norm : m.norms) sealed_->norms[norm.chunk] = norm.squared;
  sealed_->prepared[m.server] = m;
  if (sealed_->prepared.size() < map_->servers.size() && !EVERSTEP_PLANTED("commit-on-first-prepared")) return;
  Decide(now, ClipScale(sealed_->seal.clip_norm, sealed_->norms));
}

void Coordinator::Decide(Time now, double scale) {
  const Seal seal = sealed_->seal;
  ConfirmOn(seal, scale, MapServers());
  Committed(now, seal, scale);
}

void Coordinator::Handle(Time now, PeerId from, const NonFinite& m) {
  const Server* server = FindServerByPeer(from);
  if (!sealed_ || state_ != State::kSealed || server == nullptr || m.seal != sealed_->seal.id) return;
  const Seal seal = sealed_->seal;
  const std::string step = ToString(seal.id.step);
  if (seal.id.step.value == 0) {
    return Fail(now, {Code::kNonFinite, "the initial parameters hold NaN or Inf; look at the model's initialisation"});
  }
  size_t refused = 0;
  for (const Contribution& c : seal.contributors) {
    if (std::find(m.workers.begin(), m.workers.end(), c.worker) == m.workers.end()) continue;
    ++refused;
    ++counters_.refused_contributions;
    ++nonfinite_in_a_row_;
    ledger_->Return(c.lease);
    RefuseContribution(now, c, Code::kNonFinite,
                       "NaN or Inf in its contribution to step " + step + "; the step goes on without it");
    const uint64_t place = c.lease.ranges.empty() ? 0 : c.lease.ranges.front().begin;
    if (!c.lease.ranges.empty() && ++refusals_at_[place] >= kMaxRefusalsAtOnePlace) {
      return Fail(
          now,
          {Code::kNonFinite,
           "the samples at position " + std::to_string(place) + " of epoch " + std::to_string(c.lease.epoch) +
               " gave NaN or Inf " + std::to_string(kMaxRefusalsAtOnePlace) +
               " times, on whatever worker; look at the data there. The parameters are intact at version " + step});
    }
  }
  if (refused == 0) return;
  const bool everybody = options_.spec.mode == Mode::kSync
                             ? refused == seal.contributors.size()
                             : nonfinite_in_a_row_ >= std::max<uint64_t>(3, members_.ready_count());
  if (everybody) {
    return Fail(now, {Code::kNonFinite, "every contribution to step " + step +
                                            " holds NaN or Inf; lower the learning rate or look at the "
                                            "data. The parameters are intact at version " +
                                            step});
  }
  NewBallot(now, "step " + step + " is sealed anew without " + std::to_string(refused) + " non-finite contribution(s)");
}

void Coordinator::Handle(Time now, PeerId from, const Applied& m) {
  const Server* server = FindServerByPeer(from);
  if (server == nullptr || server->id != m.server || server->incarnation != m.incarnation) return;
  if (m.digest == digest_) CompareCopies(now, *server, m);
  if (sealed_ && sealed_->collapsed && m.seal == sealed_->seal.id && m.digest == sealed_->seal.digest) {
    const Seal seal = sealed_->seal;
    return Committed(now, seal, m.scale);
  }
  if (confirming_ && m.seal == confirming_->commit.seal) {
    confirming_->waiting.erase(m.server);
    if (confirming_->waiting.empty()) confirming_.reset();
  }
}

// ---- After the commit ----

CommitRecord Coordinator::Record(Time now, const Seal& seal, double scale) {
  CommitRecord record{seal, scale, granted_at_, sealed_ ? sealed_->at : now, now, members_.ready_count(), {}, {}};
  std::map<std::string, double> weight;
  for (const Contribution& c : seal.contributors) {
    const Member* member = members_.Find(c.worker);
    record.names.push_back(member != nullptr ? member->name : "");
    const auto report = reports_.find({c.worker, c.lease.id});
    if (report == reports_.end()) continue;
    const double samples = dataset_size_ > 0 ? static_cast<double>(c.lease.samples()) : 1;
    for (const Metric& metric : report->second.metrics) {
      record.metrics[metric.name] += metric.value * samples;
      weight[metric.name] += samples;
    }
  }
  for (auto& [name, value] : record.metrics) value /= weight[name];
  return record;
}

void Coordinator::Committed(Time now, const Seal& seal, double scale) {
  EVERSTEP_CHECK(seal.id.step == version_ && seal.previous == digest_, "commits follow one another");
  commits_.push_back(Record(now, seal, scale));
  version_ = Next(seal.id.step);
  digest_ = seal.digest;
  if (seal.ledger_after.epoch != ledger_->committed().epoch) refusals_at_.clear();
  if (seal.id.step.value > 0) ledger_->Commit(seal.ledger_after);
  nonfinite_in_a_row_ = 0;
  CommitWork(seal);
  sealed_.reset();
  checks_.clear();
  RememberDone(seal);
  std::erase_if(staged_, [&](const StagedEntry& e) {
    return std::find(seal.contributors.begin(), seal.contributors.end(), e.contribution) != seal.contributors.end();
  });
  DropOldStaged();
  if (options_.spec.mode == Mode::kSync || seal.id.step.value == 0) refused_.clear();
  state_ = State::kOpen;
  MaybeCheckpoint(now, seal, scale);
}

// A server that has yet to apply the seal still announces what is in it.
void Coordinator::RememberDone(const Seal& seal) {
  std::erase_if(done_,
                [&](const auto& entry) { return entry.second.value + options_.spec.staleness < seal.id.step.value; });
  for (const Contribution& c : seal.contributors) done_[{c.worker, c.lease.id}] = c.base;
}

// What is too old for the step that begins now: the servers drop those slots, so the samples go back.
void Coordinator::DropOldStaged() {
  const uint64_t allowed = options_.spec.mode == Mode::kSync ? 0 : options_.spec.staleness;
  std::set<LeaseId> kept;
  std::vector<StagedEntry> old;
  for (StagedEntry& entry : std::exchange(staged_, {})) {
    const bool current = entry.contribution.base.value + allowed >= version_.value;
    if (current) kept.insert(entry.contribution.lease.id);
    (current ? staged_ : old).push_back(std::move(entry));
  }
  for (const StagedEntry& entry : old) RefuseOld(entry.contribution);
  for (auto it = departed_.begin(); it != departed_.end();) {
    if (kept.contains(it->first)) {
      ++it;
      continue;
    }
    ledger_->Return(it->second);
    it = departed_.erase(it);
  }
  std::erase_if(reports_, [&](const auto& r) { return r.second.base.value + allowed < version_.value; });
  std::erase_if(refused_, [&](const auto& r) { return !kept.contains(r.second); });
}

// Moves the members' work on: what the seal held is done, what was given ahead is current now.
void Coordinator::CommitWork(const Seal& seal) {
  for (const Contribution& c : seal.contributors) {
    departed_.erase(c.lease.id);
    reports_.erase({c.worker, c.lease.id});
    Member* member = members_.Find(c.worker);
    if (member == nullptr) continue;
    if (seal.id.step.value > 0) ++member->clock;  // initial values put nobody ahead
    member->samples += c.lease.samples();
    members_.Contributed(member->name);
    if (Equal(member->work, c)) member->work.reset();
  }
  const bool sync = options_.spec.mode == Mode::kSync || seal.id.step.value == 0;
  for (Member* member : members_.All()) {
    if (sync) ReturnWork(&member->work);
    member->late.reset();
    if (member->next) member->work = std::exchange(member->next, {});
  }
  if (sync) {
    granted_count_ = next_granted_count_;
    granted_at_ = next_granted_at_;
  }
}

void Coordinator::MaybeFinish(Time now) {
  if (confirming_) return;  // a reader must find the last version everywhere
  state_ = State::kFinished;
  const bool again = std::exchange(ended_at_, now) != Time::Never();
  if (paused_) counters_.paused += now - paused_at_;
  paused_ = false;
  if (!again) Note(now, "finished", options_.spec.name, "at version " + ToString(version_));
  AskEvaluation();
  for (const Member* member : members_.All()) {
    if (evaluator_ != member->id) Send(member->peer, Finish{version_, false});
  }
  SendToServers(Finish{version_, false});
}

void Coordinator::AskEvaluation() {
  if (state_ != State::kFinished) return;
  for (const Member* member : members_.ReadyMembers()) {
    evaluator_ = member->id;
    return Send(member->peer, Finish{version_, true});
  }
}

}  // namespace everstep
