// The configuration record as an oracle: a linearizable compare-and-swap that survives everybody, answers late, may be
// out of reach for a while, and may lose the answer to a change that it made. The same contract as ps/config_record.h.
#pragma once

#include <functional>
#include <optional>

#include "ps/config_record.h"
#include "tests/sim/scenarios.h"
#include "tests/sim/world.h"

namespace everstep::sim {

class RecordStore {
 public:
  RecordStore(World& world, const Scenario& scenario) : world_(world), scenario_(scenario) {}

  void Read(std::function<void(std::optional<Configuration>)> answer);
  void CompareAndSwap(Ballot expected, Configuration next, std::function<void(Status)> answer);
  void OutageUntil(Time until) { outage_until_ = std::max(outage_until_, until); }
  // No more trouble.
  void Calm() { calm_ = true; }
  void OnChange(std::function<void(const Configuration&)> changed) { changed_ = std::move(changed); }
  const std::optional<Configuration>& record() const { return record_; }

 private:
  Time AnswerAt();
  Status Change(Ballot expected, const Configuration& next);

  World& world_;
  const Scenario& scenario_;
  std::optional<Configuration> record_;
  std::function<void(const Configuration&)> changed_;
  Time outage_until_;
  bool calm_ = false;
};

}  // namespace everstep::sim
