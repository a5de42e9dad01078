// All checkers of a run behind one door. Nodes report here; the messages come by themselves. A broken promise goes to
// World::Violate, which ends the run.
#pragma once

#include "tests/sim/chain_checker.h"
#include "tests/sim/member_checker.h"

namespace everstep::sim {

class Checkers : public Tap {
 public:
  Checkers(World& world, const Scenario& scenario) : chain_(world, scenario), members_(world, scenario, chain_) {}

  ChainChecker& chain() { return chain_; }
  const ChainChecker& chain() const { return chain_; }
  MemberChecker& members() { return members_; }

  void OnSent(Node& from, Node* to, const Envelope& envelope) override {
    if (from.Stranger()) return;
    if (const auto* m = std::get_if<SealStep>(&envelope.body)) chain_.SawSeal(m->seal);
    if (const auto* m = std::get_if<Prepared>(&envelope.body)) chain_.SawPrepared(m->incarnation, m->digest);
    if (const auto* m = std::get_if<Promised>(&envelope.body)) {
      if (m->prepared) chain_.SawPrepared(m->incarnation, m->prepared->digest);
    }
    members_.OnSent(from, to, envelope);
  }
  void OnDelivered(Node& from, Node& to, const Envelope& envelope) override {
    if (!from.Stranger() && !to.Stranger()) members_.OnDelivered(from, to, envelope);
  }

 private:
  ChainChecker chain_;
  MemberChecker members_;
};

}  // namespace everstep::sim
