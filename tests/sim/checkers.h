// All checkers of a run behind one door. Nodes report here; the messages come by themselves. A broken promise goes to
// World::Violate, which ends the run.
#pragma once

#include <map>
#include <utility>

#include "tests/sim/chain_checker.h"
#include "tests/sim/disk_checker.h"
#include "tests/sim/member_checker.h"

namespace everstep::sim {

// A server that has promised a ballot prepares nothing of a lower one (promise P6, rule R3).
class PromiseChecker {
 public:
  explicit PromiseChecker(World& world) : world_(world) {}

  void Promised(const Node& server, Ballot ballot) {
    Ballot& newest = promised_[{&server, server.life()}];
    newest = std::max(newest, ballot);
  }
  void Prepared(const Node& server, SealId seal) {
    const auto promised = promised_.find({&server, server.life()});
    if (promised == promised_.end() || seal.ballot >= promised->second) return;
    world_.Violate("P6", server.name() + " prepared step " + ToString(seal.step) + " of ballot " +
                             ToString(seal.ballot) + " after it had promised ballot " + ToString(promised->second));
  }

 private:
  World& world_;
  std::map<std::pair<const Node*, uint64_t>, Ballot> promised_;  // by process
};

class Checkers : public Tap {
 public:
  Checkers(World& world, const Scenario& scenario)
      : chain_(world, scenario), members_(world, scenario, chain_), promises_(world), disk_(world, chain_) {}

  ChainChecker& chain() { return chain_; }
  const ChainChecker& chain() const { return chain_; }
  MemberChecker& members() { return members_; }
  DiskChecker& disk() { return disk_; }

  void OnSent(Node& from, Node* to, const Envelope& envelope) override {
    if (from.Stranger()) return;
    if (const auto* m = std::get_if<SealStep>(&envelope.body)) chain_.SawSeal(m->seal);
    if (const auto* m = std::get_if<Prepared>(&envelope.body)) {
      chain_.SawPrepared(m->incarnation, m->digest);
      promises_.Prepared(from, m->seal);
    }
    if (const auto* m = std::get_if<Promised>(&envelope.body)) {
      promises_.Promised(from, envelope.ballot);
      if (m->prepared) chain_.SawPrepared(m->incarnation, m->prepared->digest);
    }
    if (const auto* m = std::get_if<PushRefused>(&envelope.body)) {
      // By a coordinator, for good. (A lease that is void may be so at this ballot only.)
      const bool final = m->code == Code::kStale || m->code == Code::kNonFinite;
      if (final && members_.Coordinates(from)) chain_.Voided(m->contribution);
    }
    members_.OnSent(from, to, envelope);
  }
  void OnDelivered(Node& from, Node& to, const Envelope& envelope) override {
    if (!from.Stranger() && !to.Stranger()) members_.OnDelivered(from, to, envelope);
  }

 private:
  ChainChecker chain_;
  MemberChecker members_;
  PromiseChecker promises_;
  DiskChecker disk_;
};

}  // namespace everstep::sim
