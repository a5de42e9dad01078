// Faults that wait for one moment of the protocol and strike then: what random times hit once in thousands of runs,
// these hit in most. Each is the beginning of one or more of the traces that break weaker protocols
// (docs/simulator.md); a correct job survives all of them.
#pragma once

#include <map>
#include <optional>
#include <set>

#include "tests/sim/cluster.h"

namespace everstep::sim {

class Faults;

class Ambusher : public Tap {
 public:
  Ambusher(Cluster& cluster, Faults& faults);

  void OnSent(Node& from, Node* to, const Envelope& envelope) override;
  void OnDelivered(Node&, Node&, const Envelope&) override {}

 private:
  bool Ready();
  void Rest();
  bool FromCoordinator(const Node& from) const;
  ServerNode* AnyHolder();
  std::vector<ServerNode*> Others(const ServerNode& server) const;
  void HoldSums(ServerNode& server, bool towards, Time until);

  void TearSeal(Node& from, Node* to, const Body& body);
  void LoseWhoLacks(ServerNode& server, int tries);
  void KillPublisher(Node& from, Node* to, const Body& body);
  void KillWorkerAndServer(Node& from, const Body& body);
  void RestartServer(const Body& body);
  void SilenceTwo(const Body& body);
  void KillReceiver(Node& from, const Body& body);
  void JoinBehind(Node& from, Node* to, const Body& body);

  Cluster& cluster_;
  Faults& faults_;
  World& world_;
  Random random_;
  Time next_at_;
  std::optional<SealId> seal_;  // that is being watched
  SealId seen_;                 // the newest one sent
  ServerNode* victim_ = nullptr;
  Time until_;         // what is held back comes then
  size_t wanted_ = 0;  // so many servers shall be prepared when the coordinator dies
  int rounds_ = 0;     // seals still to be torn, one after the other
  std::set<const Node*> prepared_;
  std::map<LeaseId, std::set<ChunkId>> pushed_;
};

}  // namespace everstep::sim
