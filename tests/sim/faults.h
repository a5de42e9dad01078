// What goes wrong, and when: faults drawn from the scenario's mix at random times, and one that strikes in the very
// moment something is said. Each fault tells the checkers whom it disturbs, so that trouble of anybody else is a bug.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "tests/sim/ambush.h"
#include "tests/sim/cluster.h"
#include "tests/sim/stranger.h"

namespace everstep::sim {

class Faults : public Tap {
 public:
  explicit Faults(Cluster& cluster);

  void Start();
  // The end of all trouble: everybody runs, everybody hears everybody.
  void Heal();
  const std::map<std::string, uint64_t>& counts() const { return counts_; }
  bool server_lost() const { return server_lost_; }
  bool healed() const { return healed_; }
  void Count(const char* what) { ++counts_[what]; }

  // ---- For whoever waits for a moment (ambush.h) ----
  // Everybody who matters is well: what strikes now strikes alone.
  bool Steady();
  bool ServersCalm() const;
  void KillServer(ServerNode& server, bool silent);
  void KillCoordinator() { CrashCoordinator(cluster_.coordinator(), false); }
  void CrashWorker(WorkerNode& worker, bool silent);
  void FreezeServer(ServerNode& server, Duration time);
  void JoinServer();

  void OnSent(Node& from, Node* to, const Envelope& envelope) override;
  void OnDelivered(Node&, Node&, const Envelope&) override {}

 private:
  void ScheduleNext();
  void StrikeOnce();
  Duration UpTo(Duration longest) { return Duration(random_.Between(1, std::max<int64_t>(1, longest.count()))); }
  WorkerNode* AnyWorker();
  ServerNode* AnyServer();

  void CrashInTheAct();
  void Leave();
  void Join();
  void Flap();
  void FlapOnce(WorkerNode& worker, int times);
  void FreezeWorker();
  void FreezeServer();
  void FreezeCoordinator();
  void BreakControl();
  void BreakBulk();
  void BreakServer();
  void CutWorker();
  void CutServer();
  void CrashCoordinator(CoordinatorNode& node, bool silent);
  void TakeOver();
  void Misroute(CoordinatorNode& old);
  void CrashServer();
  void DrainServer();
  void RecordOutage();
  void CutPower();
  void DamageDisk();
  void LoseSnapshot(Node& coordinator, Node& server);
  void StrangerComes();

  Cluster& cluster_;
  World& world_;
  Random random_;
  bool healed_ = false;
  bool server_lost_ = false;
  std::map<const Node*, Time> server_trouble_;  // one trouble of a server's at a time
  Time coordinator_trouble_;
  // Strikes when the node has sent so many messages of a kind.
  struct Trigger {
    Node* node = nullptr;
    uint64_t life = 0;
    std::string_view message;
    int count = 0;
  };
  std::optional<Trigger> trigger_;
  StrangerNode stranger_;
  Ambusher ambusher_;
  std::map<std::string, uint64_t> counts_;
};

}  // namespace everstep::sim
