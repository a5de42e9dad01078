// Checks what checkpoints are worth (promise P2): what was reported as complete is complete, whatever the power does; a
// job goes on from the newest complete one, and from exactly the state that its version had.
#pragma once

#include <map>
#include <string>

#include "checkpoint/loader.h"
#include "tests/sim/chain_checker.h"
#include "tests/sim/disk.h"
#include "tests/sim/world.h"

namespace everstep::sim {

class DiskChecker {
 public:
  DiskChecker(World& world, ChainChecker& chain) : world_(world), chain_(chain) {}

  // A coordinator says that the checkpoint is complete.
  void Reported(const std::string& label, Version version);
  bool anything() const { return !reported_.empty(); }
  // The power is back, and nobody has looked at the disk yet.
  void AfterPowerCut(const std::shared_ptr<Disk>& disk);
  // The job goes on from this one. Everything after its version never was.
  void Resumed(const std::string& who, const Manifest& manifest);

 private:
  bool Damaged(const CheckpointEntry& entry) const;

  World& world_;
  ChainChecker& chain_;
  std::shared_ptr<Disk> disk_;
  std::map<std::string, Version> reported_;
  Version at_least_;  // the newest that was reported, is not damaged and was not removed for a newer one
};

}  // namespace everstep::sim
