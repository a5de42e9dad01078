// A server process without the coordinator: a Replica and its driver. Sums and updates are the real kernels'; they take
// a random while. It keeps a link to the coordinator: connects again when the link ends or falls silent.
#pragma once

#include <memory>

#include "ps/kernels/shard_math.h"
#include "ps/replica.h"
#include "tests/sim/checkers.h"
#include "tests/sim/world.h"

namespace everstep::sim {

class ServerNode : public Node {
 public:
  ServerNode(World& world, std::string name, const Scenario& scenario, Checkers& checkers, Folder& folder)
      : Node(world, std::move(name)), scenario_(scenario), checkers_(checkers), folder_(folder) {}

  const Replica* core() const { return core_ ? &*core_ : nullptr; }
  PeerId coordinator_link() const { return coordinator_; }
  bool Anchored() const override { return true; }
  std::string Describe() const override;
  // It wants to leave: everything on it goes to the others first.
  void AskToLeave();
  bool left() const { return left_; }

 private:
  void OnStart() override;
  void OnStop() override;
  void OnMessage(PeerId from, const Envelope& envelope, Buffer payload) override;
  void OnClosed(PeerId peer) override;
  void OnTick() override;
  Time NextDeadline() const override;
  void Drain() override;
  void ConnectToCoordinator();
  void LinkLost();
  void RunSum(SumWork work);
  void RunApply(ApplyWork work);
  void RunExport(ExportWork work);
  void RunImport(ImportWork work);
  void RunSnapshot(SnapshotWork work);
  void RunRestore(RestoreWork work);
  RestoreResult Load(const RestoreWork& work);
  kernels::ShardMath& Math();
  Duration WorkTime() { return Duration(world_.random().Between(0, scenario_.server_work.count())); }
  void CheckPublished();

  const Scenario& scenario_;
  Checkers& checkers_;
  Folder& folder_;
  std::optional<Replica> core_;
  std::unique_ptr<kernels::ShardMath> math_;
  PeerId coordinator_;
  Time heard_at_;
  Duration backoff_{0};
  Version published_;
  uint64_t drains_ = 0;
  bool leaving_ = false;
  bool left_ = false;
};

}  // namespace everstep::sim
