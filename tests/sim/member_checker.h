// Checks who takes part, who is kept out, and whom a fault of others must not touch (promises P3, P6, P7 and the
// minimum of members). Listens to the messages and looks at each coordinator's members after each of its events; what a
// coordinator thinks is whole or staged is not asked, but followed from the pushes that reached the servers.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "schema/messages.h"
#include "tests/sim/chain_checker.h"
#include "tests/sim/scenarios.h"
#include "tests/sim/world.h"

namespace everstep::sim {

class MemberChecker {
 public:
  using Key = ChainChecker::Key;

  MemberChecker(World& world, const Scenario& scenario, const ChainChecker& chain);

  // What a worker process says about itself after each of its events.
  void WorkerIs(Node& node, WorkerId life, bool leaving);
  // Trouble that touches everybody (the coordinator's) explains what follows until then.
  void DisturbAll(Time until) { disturbed_until_ = std::max(disturbed_until_, until); }
  void CalmFrom(Time when) { disturbed_until_ = when; }
  bool Undisturbed(const Node& node) const;

  // A coordinator after one of its events, before what it sent leaves.
  struct Seen {
    std::set<WorkerId> members;
    size_t ready = 0;
    Ballot ballot;
    Version version;
  };
  void CoordinatorIs(Node& node, Seen seen);

  bool Coordinates(const Node& node) const { return offices_.contains(&node); }
  void OnSent(Node& from, Node* to, const Envelope& envelope);
  void OnDelivered(Node& from, Node& to, const Envelope& envelope);

 private:
  struct Life {
    Node* node = nullptr;
    uint64_t process = 0;
    bool leaving = false;
  };
  struct Part {
    std::set<ChunkId> chunks;
    Time whole_at = Time::Never();
  };
  // One life of a coordinator.
  struct Office {
    Seen seen;
    std::set<WorkerId> ready;
    std::map<Version, std::map<WorkerId, LeaseId>> granted;
    std::map<Version, size_t> at_once;  // most workers that were given work for the step at one time
    std::set<std::pair<WorkerId, LeaseId>> void_leases;
    std::map<Version, std::set<WorkerId>> refused;
    std::map<WorkerId, std::set<Key>> removed;  // and what of it was whole then
    std::set<SealId> seals;
  };

  bool Check(bool condition, const char* promise, const std::string& what);
  bool Whole(const Key& key) const;
  void CheckRemoved(Node& coordinator, Office& office, WorkerId worker);
  void CheckNewSeal(Node& coordinator, Office& office, const Seal& seal);
  void CheckAllIn(const Node& coordinator, const Office& office, const Seal& seal);
  void CheckGrant(const Node& coordinator, Office& office, const Grant& grant);

  World& world_;
  const Scenario& scenario_;
  const ChainChecker& chain_;
  Time disturbed_until_;
  std::map<WorkerId, Life> lives_;
  std::map<const Node*, WorkerId> current_;
  std::map<Key, Part> arrived_;
  std::map<const Node*, Office> offices_;
};

}  // namespace everstep::sim
