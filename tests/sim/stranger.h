// Somebody who does not belong: connects to a server or the coordinator and says what real peers said before, changed
// or not, and what nobody should say. It has no link that the job knows, so none of it may have an effect; servers and
// coordinator answer or ignore it, and stay.
#pragma once

#include <deque>

#include "tests/sim/scenarios.h"
#include "tests/sim/world.h"

namespace everstep::sim {

class StrangerNode : public Node, public Tap {
 public:
  StrangerNode(World& world, const Scenario& scenario)
      : Node(world, "stranger"), random_(Mix64(scenario.seed ^ 0x57a)) {
    world.AddTap(this);
  }

  // One visit. REQUIRES: running().
  void Visit(const std::string& address, bool coordinator);
  uint64_t answers() const { return answers_; }

  bool Listening() const override { return false; }
  bool Stranger() const override { return true; }
  std::string Describe() const override { return name(); }
  void OnSent(Node& from, Node* to, const Envelope& envelope) override;
  void OnDelivered(Node&, Node&, const Envelope&) override {}

 private:
  void OnStart() override {}
  void OnStop() override {}
  void OnMessage(PeerId, const Envelope&, Buffer) override { ++answers_; }
  void OnClosed(PeerId) override {}
  void OnTick() override {}
  Time NextDeadline() const override { return Time::Never(); }
  void Drain() override {}

  std::pair<Envelope, Buffer> ForServer();
  std::pair<Envelope, Buffer> ForCoordinator();
  std::pair<Envelope, Buffer> BadPush(Envelope push);
  void Outrun(const std::string& address, Envelope push);
  Envelope Overheard(std::initializer_list<std::string_view> names);

  Random random_;
  std::deque<Envelope> heard_;
  std::optional<Envelope> newest_push_;
  uint64_t passed_ = 0;
  uint64_t answers_ = 0;
};

}  // namespace everstep::sim
