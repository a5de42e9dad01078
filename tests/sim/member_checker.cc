#include "tests/sim/member_checker.h"

#include <algorithm>
#include <cmath>

namespace everstep::sim {

MemberChecker::MemberChecker(World& world, const Scenario& scenario, const ChainChecker& chain)
    : world_(world), scenario_(scenario), chain_(chain) {}

bool MemberChecker::Check(bool condition, const char* promise, const std::string& what) {
  if (!condition) world_.Violate(promise, what);
  return condition;
}

bool MemberChecker::Undisturbed(const Node& node) const {
  return node.running() && !node.paused() && world_.now() > node.disturbed_until() && world_.now() > disturbed_until_;
}

void MemberChecker::WorkerIs(Node& node, WorkerId life, bool leaving) {
  const auto known = current_.find(&node);
  if (known != current_.end() && known->second != life) {
    const Life& old = lives_[known->second];
    Check(old.process != node.life() || !Undisturbed(node), "P3",
          node.name() + " had to join again, although nothing had happened to it");
  }
  current_[&node] = life;
  lives_[life] = {&node, node.life(), leaving};
}

// ---- The coordinator's members ----

bool MemberChecker::Whole(const Key& key) const {
  const auto it = arrived_.find(key);
  return it != arrived_.end() && it->second.whole_at != Time::Never();
}

void MemberChecker::CoordinatorIs(Node& node, Seen seen) {
  Office& office = offices_[&node];
  for (WorkerId worker : office.seen.members) {
    if (!seen.members.contains(worker)) CheckRemoved(node, office, worker);
  }
  if (seen.ballot != office.seen.ballot) {
    // What was given out ahead of a seal that was dropped is taken back.
    for (auto& [version, grants] : office.granted) {
      if (version > seen.version) grants.clear();
    }
    office.at_once.erase(office.at_once.upper_bound(seen.version), office.at_once.end());
  }
  office.seen = std::move(seen);
}

void MemberChecker::CheckRemoved(Node& coordinator, Office& office, WorkerId worker) {
  std::set<Key>& whole = office.removed[worker];
  for (const auto& [key, part] : arrived_) {
    if (std::get<WorkerId>(key) == worker && part.whole_at != Time::Never()) whole.insert(key);
  }
  const auto life = lives_.find(worker);
  if (life == lives_.end()) return;
  const Life& it = life->second;
  const bool same_process =
      it.node->running() && it.node->life() == it.process && current_[it.node] == worker && !it.leaving;
  Check(!same_process || !Undisturbed(*it.node), "P3",
        coordinator.name() + " excluded " + it.node->name() + " (" + Short(worker) +
            "), although nothing had happened to it");
}

// ---- Seals ----

void MemberChecker::CheckNewSeal(Node& coordinator, Office& office, const Seal& seal) {
  const std::string step = "step " + ToString(seal.id.step) + " of " + coordinator.name();
  for (const Contribution& c : seal.contributors) {
    const auto removed = office.removed.find(c.worker);
    if (removed == office.removed.end()) continue;
    if (!Check(removed->second.contains(ChainChecker::KeyOf(c)), "P6",
               step + " holds a contribution of " + Short(c.worker) + ", which was excluded before it was whole")) {
      return;
    }
  }
  for (const Contribution& c : seal.contributors) {
    if (!Check(Whole(ChainChecker::KeyOf(c)), "P1",
               step + " names a contribution of " + Short(c.worker) + " that is not whole"))
      return;
  }
  if (seal.id.step.value == 0) return;
  if (scenario_.job.mode == Mode::kSync) CheckAllIn(coordinator, office, seal);
}

// sync: everybody who was given work for the step and still is a member is in it; with a quorum, enough of them.
void MemberChecker::CheckAllIn(const Node& coordinator, const Office& office, const Seal& seal) {
  const JobSpec& job = scenario_.job;
  const std::string step = "step " + ToString(seal.id.step) + " of " + coordinator.name();
  const auto at_once = office.at_once.find(seal.id.step);
  const size_t given = at_once == office.at_once.end() ? 0 : at_once->second;
  const auto refused = office.refused.find(seal.id.step);
  const size_t count = seal.contributors.size() + (refused == office.refused.end() ? 0 : refused->second.size());
  const bool samples_for_more = scenario_.dataset_size == 0 || chain_.LeftBy(seal) > 0;
  if (!Check(!samples_for_more || count >= std::min<size_t>(job.min_workers, given), "minimum",
             step + " is made of " + std::to_string(count) + " contributions; at least " +
                 std::to_string(job.min_workers) + " are wanted and " + std::to_string(given) +
                 " workers were given work")) {
    return;
  }
  size_t missing_count = 0;
  std::string missing;
  const auto grants = office.granted.find(seal.id.step);
  if (grants != office.granted.end()) {
    for (const auto& [worker, lease] : grants->second) {
      if (!office.seen.members.contains(worker) || office.void_leases.contains({worker, lease})) continue;
      const bool in =
          std::any_of(seal.contributors.begin(), seal.contributors.end(),
                      [&, &w = worker, &l = lease](const Contribution& c) { return c.worker == w && c.lease.id == l; });
      if (in) continue;
      ++missing_count;
      missing = Short(worker);
    }
  }
  if (missing_count == 0) return;
  if (!Check(job.quorum < 1, "P5",
             step + " was sealed without " + missing + ", a live member that was given work for it"))
    return;
  Time first = Time::Never();
  for (const Contribution& c : seal.contributors) first = std::min(first, arrived_.at(ChainChecker::KeyOf(c)).whole_at);
  Check(count >= std::ceil(job.quorum * static_cast<double>(count + missing_count) - 1e-9) &&
            world_.now() >= first + job.grace,
        "P5", step + " was sealed before its quorum and grace");
}

void MemberChecker::CheckGrant(const Node& coordinator, Office& office, const Grant& grant) {
  if (!Check(office.ready.contains(grant.worker), "P3",
             coordinator.name() + " gives work to " + Short(grant.worker) + ", which never said that it is ready")) {
    return;
  }
  auto& grants = office.granted[grant.version];
  grants[grant.worker] = grant.lease.id;
  size_t now = 0;
  for (const auto& [worker, lease] : grants) {
    now += office.seen.members.contains(worker) && !office.void_leases.contains({worker, lease});
  }
  size_t& most = office.at_once[grant.version];
  most = std::max(most, now);
}

// ---- Messages ----

void MemberChecker::OnSent(Node& from, Node*, const Envelope& envelope) {
  if (const auto* m = std::get_if<SealStep>(&envelope.body)) {
    Office& office = offices_[&from];
    if (office.seals.insert(m->seal.id).second) CheckNewSeal(from, office, m->seal);
  }
  if (const auto* m = std::get_if<Grant>(&envelope.body)) CheckGrant(from, offices_[&from], *m);
  if (const auto* m = std::get_if<PushRefused>(&envelope.body)) {
    const auto office = offices_.find(&from);
    if (office == offices_.end()) return;  // a server's word
    office->second.void_leases.insert({m->contribution.worker, m->contribution.lease.id});
    office->second.refused[m->version].insert(m->contribution.worker);
  }
}

void MemberChecker::OnDelivered(Node& from, Node& to, const Envelope& envelope) {
  if (const auto* m = std::get_if<Push>(&envelope.body)) {
    Part& part = arrived_[ChainChecker::KeyOf(m->contribution)];
    part.chunks.insert(m->chunk);
    if (part.chunks.size() == chain_.layout()->size()) part.whole_at = std::min(part.whole_at, world_.now());
  }
  if (const auto* m = std::get_if<Ready>(&envelope.body)) {
    Office& office = offices_[&to];
    office.ready.insert(m->worker);
    if (m->void_lease.value != 0) office.void_leases.insert({m->worker, m->void_lease});
  }
  if (const auto* m = std::get_if<NonFinite>(&envelope.body)) {
    offices_[&to].refused[m->seal.step].insert(m->workers.begin(), m->workers.end());
  }
  if (const auto* m = std::get_if<Hello>(&envelope.body)) {
    if (m->role == PeerRole::kWorker && m->version.value > 0) offices_[&to].ready.insert(m->worker);
  }
  (void)from;
}

}  // namespace everstep::sim
