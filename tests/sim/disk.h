// The folder that all servers share for their checkpoints, on a disk that loses what was not synced when the power
// goes. A Store as checkpoint/store.h wants it, made of the steps that the directory store makes (write, sync the file,
// rename, sync the folder), each of which the power may cut. Contents and names are lost independently of one another.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "base/random.h"
#include "checkpoint/store.h"

namespace everstep::sim {

class Disk : public Store {
 public:
  explicit Disk(uint64_t seed) : random_(seed) {}

  // ---- The store ----
  Result<std::unique_ptr<StoreWriter>> Create(const std::string& name) override;
  Result<std::unique_ptr<StoreReader>> Open(const std::string& name) override;
  Result<std::vector<std::string>> List() override;
  Result<std::vector<std::string>> Unfinished() override;
  Status Delete(const std::string& name) override;
  Result<size_t> RemoveLeftovers() override;
  const std::string& place() const override { return place_; }

  // ---- Trouble ----
  // After so many steps from now nothing is done any more, and `cut` is called: the power goes in the middle of a
  // write.
  void CutAfter(uint64_t steps, std::function<void()> cut);
  // The power has gone and is back: what was not synced may be whole, torn, or not there.
  void PowerCut();
  void DontCut() { cut_ = nullptr; }
  // A write fails with this chance, as on a full disk.
  void SetFailing(double chance) { failing_ = chance; }
  // A bit of the file turns around; the disk says nothing. False: there is no such file.
  bool Damage(const std::string& name);
  // Names that were damaged.
  const std::set<std::string>& damaged() const { return damaged_; }

 private:
  friend class DiskWriter;
  struct File {
    std::string bytes;
    bool contents_synced = false;
    bool name_synced = false;
  };

  Status Step();
  Status SyncFolder();

  Random random_;
  const std::string place_ = "the simulated disk";
  std::map<std::string, File> files_;
  std::map<std::string, File> deleted_;      // their removal is not synced: they may come back
  std::map<uint64_t, std::string> at_work_;  // temporary files: their final names
  uint64_t next_temporary_ = 0;
  double failing_ = 0;
  bool dead_ = false;
  uint64_t steps_left_ = 0;
  std::function<void()> cut_;
  std::set<std::string> damaged_;
};

// What the servers share: the folder, and whether it is all that is left of the job.
struct Folder {
  std::shared_ptr<Disk> disk;
  bool memory_lost = false;  // until servers of a new map hold the job again
};

}  // namespace everstep::sim
