// A coordinator process: reads the record, builds a Coordinator from it, and is its driver. One object is one life of
// the process; a restart is another object at the same address.
#pragma once

#include <optional>

#include "ps/coordinator.h"
#include "tests/sim/checkers.h"
#include "tests/sim/record_store.h"
#include "tests/sim/world.h"

namespace everstep::sim {

class CoordinatorNode : public Node {
 public:
  CoordinatorNode(World& world, std::string name, const Scenario& scenario, RecordStore& record, Checkers& checkers,
                  Folder& folder, JobUid job)
      : Node(world, std::move(name)),
        scenario_(scenario),
        record_(record),
        checkers_(checkers),
        folder_(folder),
        job_(job) {}

  // Null before the record was read.
  Coordinator* core() { return core_ ? &*core_ : nullptr; }
  // How it ended, if the job ended under it.
  bool finished() const { return finished_; }
  const std::optional<Status>& failure() const { return failure_; }
  bool deposed() const { return deposed_; }
  // It is the one that the record names; before there is a record, whoever says so.
  bool InOffice() const { return !record_.record() || record_.record()->holder == holder_; }

  bool Listening() const override { return running() && core_.has_value(); }
  bool Anchored() const override { return true; }
  std::string Describe() const override;

 private:
  void OnStart() override;
  void OnStop() override {}
  void OnMessage(PeerId from, const Envelope& envelope, Buffer payload) override;
  void OnClosed(PeerId peer) override;
  void OnTick() override;
  Time NextDeadline() const override { return core_ ? core_->NextDeadline() : Time::Never(); }
  void Drain() override;
  void Propose(Coordinator::Proposal proposal);
  std::optional<ResumePoint> FindResumePoint(const Configuration& recorded);
  void Complete(CheckpointWork work);
  void Observe();

  const Scenario& scenario_;
  RecordStore& record_;
  Checkers& checkers_;
  Folder& folder_;
  const JobUid job_;
  const Incarnation holder_{Mix64(scenario_.seed ^ std::hash<std::string>()(name())) | 1};
  std::optional<Coordinator> core_;
  Coordinator::State last_state_ = Coordinator::State::kGathering;
  Ballot recovered_;
  bool finished_ = false;
  bool deposed_ = false;
  std::optional<Status> failure_;
};

}  // namespace everstep::sim
