#include "tests/sim/disk_checker.h"

#include <algorithm>

namespace everstep::sim {

void DiskChecker::Reported(const std::string& label, Version version) {
  world_.Trace(nullptr, [&] { return "==== checkpoint " + label + " is complete"; });
  reported_[label] = version;
}

bool DiskChecker::Damaged(const CheckpointEntry& entry) const {
  return std::any_of(entry.files.begin(), entry.files.end(),
                     [&](const std::string& name) { return disk_->damaged().contains(name); });
}

void DiskChecker::AfterPowerCut(const std::shared_ptr<Disk>& disk) {
  disk_ = disk;
  at_least_ = {};
  const auto entries = ListCheckpoints(*disk);
  if (!entries.ok()) return world_.Violate("P2", "the folder cannot be listed: " + entries.status().ToString());
  std::set<std::string> whole;
  for (const CheckpointEntry& entry : *entries) {
    // A manifest makes it complete: then all of it is there. Of what is half removed the manifest goes first.
    if (!entry.has_manifest || Damaged(entry)) continue;
    Result<Checkpoint> checkpoint = Checkpoint::Open(disk, entry.label);
    const Status fine = checkpoint.ok() ? checkpoint->Verify() : checkpoint.status();
    if (!fine.ok()) {
      return world_.Violate("P2", "checkpoint " + entry.label +
                                      " has a manifest and is not whole after the power cut: " + fine.ToString());
    }
    whole.insert(entry.label);
    at_least_ = std::max(at_least_, entry.version);
  }
  Version newest;
  for (const auto& [label, version] : reported_) newest = std::max(newest, version);
  for (const auto& [label, version] : reported_) {
    const bool damaged = std::any_of(disk->damaged().begin(), disk->damaged().end(),
                                     [&, &l = label](const std::string& name) { return name.starts_with(l); });
    if (version == newest && !damaged && !whole.contains(label))
      return world_.Violate("P2",
                            "checkpoint " + label + " was reported as complete and did not survive the power cut");
  }
}

void DiskChecker::Resumed(const std::string& who, const Manifest& manifest) {
  if (manifest.version < at_least_) {
    return world_.Violate("P2", who + " goes on from version " + ToString(manifest.version) + "; version " +
                                    ToString(at_least_) + " has a complete checkpoint");
  }
  std::erase_if(reported_, [&](const auto& entry) { return entry.second > manifest.version; });
  chain_.GoBackTo(who, manifest.version, manifest.seal);
}

}  // namespace everstep::sim
