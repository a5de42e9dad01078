// A worker process: a Session, its driver, and a user whose training loop takes time, sometimes gives a step up, and
// sometimes contributes NaN.
#pragma once

#include <optional>

#include "tests/sim/checkers.h"
#include "tests/sim/model.h"
#include "tests/sim/world.h"
#include "worker/session.h"

namespace everstep::sim {

class WorkerNode : public Node {
 public:
  WorkerNode(World& world, std::string name, const Scenario& scenario, Checkers& checkers, bool slow)
      : Node(world, std::move(name)), scenario_(scenario), checkers_(checkers), slow_(slow) {}

  const Session* core() const { return core_ ? &*core_ : nullptr; }
  // Asks for an orderly end, as SIGTERM does.
  void AskToLeave();
  // How the last life of the process ended; nullopt while it runs or when it was killed.
  enum class End : uint8_t { kFinished, kLeft, kFailed };
  const std::optional<End>& end() const { return end_; }
  const std::optional<Status>& failure() const { return failure_; }
  // The job is complete as far as this worker is concerned: it has the result, or was told so.
  bool done() const { return done_; }
  uint64_t steps() const { return steps_; }
  std::string Describe() const override;

 private:
  void OnStart() override;
  void OnStop() override { core_.reset(); }
  void OnMessage(PeerId from, const Envelope& envelope, Buffer payload) override;
  void OnClosed(PeerId peer) override;
  void OnTick() override;
  Time NextDeadline() const override { return core_ ? core_->NextDeadline() : Time::Never(); }
  void Drain() override;
  void Exit(End end);

  void TakeStep();
  void Contribute(uint64_t serial, const Contribution& contribution, bool initialise);
  void PushNext(uint64_t serial, Chunks chunks, uint32_t next);
  void TakeResult();
  Duration ComputeTime();

  const Scenario& scenario_;
  Checkers& checkers_;
  const bool slow_;
  std::optional<Session> core_;
  WorkerId known_;        // its life, as last seen
  uint64_t history_ = 0;  // in which that life began
  Chunks model_;
  Version model_version_;
  bool busy_ = false;  // the user computes
  bool result_taken_ = false;
  std::optional<End> end_;
  std::optional<Status> failure_;
  bool done_ = false;
  uint64_t steps_ = 0;
};

}  // namespace everstep::sim
