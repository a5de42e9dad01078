#include "tests/sim/disk.h"

#include <cstring>
#include <utility>

#include "base/plant.h"

namespace everstep::sim {
namespace {

class DiskReader : public StoreReader {
 public:
  explicit DiskReader(std::string bytes) : bytes_(std::move(bytes)) {}
  uint64_t size() const override { return bytes_.size(); }
  Status Read(uint64_t offset, std::span<std::byte> out) override {
    if (offset > bytes_.size() || out.size() > bytes_.size() - offset) return {Code::kCorrupt, "the file ends early"};
    if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
    return Status::Ok();
  }

 private:
  const std::string bytes_;
};

}  // namespace

class DiskWriter : public StoreWriter {
 public:
  DiskWriter(Disk& disk, uint64_t temporary, std::string name)
      : disk_(disk), temporary_(temporary), name_(std::move(name)) {}

  Status Append(std::span<const std::byte> bytes) override {
    EVERSTEP_RETURN_IF_ERROR(disk_.Step());
    file_.bytes.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return Status::Ok();
  }
  Status Commit() override {
    if (!EVERSTEP_PLANTED("file-not-synced")) {
      EVERSTEP_RETURN_IF_ERROR(disk_.Step());
      file_.contents_synced = true;
    }
    EVERSTEP_RETURN_IF_ERROR(disk_.Step());
    disk_.at_work_.erase(temporary_);
    disk_.files_[name_] = std::move(file_);
    if (EVERSTEP_PLANTED("folder-not-synced")) return Status::Ok();
    return disk_.SyncFolder();
  }

 private:
  Disk& disk_;
  const uint64_t temporary_;
  const std::string name_;
  Disk::File file_;
};

Status Disk::Step() {
  if (dead_) return {Code::kUnavailable, "the power is gone"};
  if (cut_ && steps_left_-- == 0) {
    dead_ = true;
    std::exchange(cut_, nullptr)();
    return {Code::kUnavailable, "the power is gone"};
  }
  if (failing_ > 0 && random_.Chance(failing_)) return {Code::kResourceExhausted, "the disk is full"};
  return Status::Ok();
}

Status Disk::SyncFolder() {
  EVERSTEP_RETURN_IF_ERROR(Step());
  for (auto& [name, file] : files_) file.name_synced = true;
  deleted_.clear();
  return Status::Ok();
}

Result<std::unique_ptr<StoreWriter>> Disk::Create(const std::string& name) {
  EVERSTEP_RETURN_IF_ERROR(Step());
  at_work_[next_temporary_] = name;
  return std::unique_ptr<StoreWriter>(std::make_unique<DiskWriter>(*this, next_temporary_++, name));
}

Result<std::unique_ptr<StoreReader>> Disk::Open(const std::string& name) {
  const auto it = files_.find(name);
  if (it == files_.end()) return Status(Code::kNotFound, "there is no file " + name);
  return std::unique_ptr<StoreReader>(std::make_unique<DiskReader>(it->second.bytes));
}

Result<std::vector<std::string>> Disk::List() {
  std::vector<std::string> names;
  for (const auto& [name, file] : files_) names.push_back(name);
  return names;
}

Result<std::vector<std::string>> Disk::Unfinished() {
  std::vector<std::string> names;
  for (const auto& [number, name] : at_work_) names.push_back(name);
  return names;
}

Status Disk::Delete(const std::string& name) {
  EVERSTEP_RETURN_IF_ERROR(Step());
  const auto it = files_.find(name);
  if (it == files_.end()) return Status::Ok();
  if (it->second.name_synced) deleted_[name] = std::move(it->second);
  files_.erase(it);
  return SyncFolder();
}

Result<size_t> Disk::RemoveLeftovers() {
  // Whose writers live cannot be told apart here: they stay until the power goes.
  return size_t{0};
}

void Disk::CutAfter(uint64_t steps, std::function<void()> cut) {
  steps_left_ = steps;
  cut_ = std::move(cut);
}

void Disk::PowerCut() {
  dead_ = false;
  cut_ = nullptr;
  at_work_.clear();
  for (auto& [name, file] : std::exchange(deleted_, {})) {
    if (random_.Chance(0.5)) files_[name] = std::move(file);
  }
  for (auto it = files_.begin(); it != files_.end();) {
    File& file = it->second;
    if (!file.name_synced && random_.Chance(0.5)) {
      it = files_.erase(it);
      continue;
    }
    if (!file.contents_synced && !file.bytes.empty()) {
      const uint64_t whole = random_.Below(file.bytes.size() + 1);
      if (random_.Chance(0.5)) {
        file.bytes.resize(whole);
      } else if (random_.Chance(0.7)) {
        std::fill(file.bytes.begin() + static_cast<long>(whole), file.bytes.end(), char{0});
      }
    }
    file.contents_synced = file.name_synced = true;
    ++it;
  }
}

bool Disk::Damage(const std::string& name) {
  const auto it = files_.find(name);
  if (it == files_.end() || it->second.bytes.empty()) return false;
  char& byte = it->second.bytes[random_.Below(it->second.bytes.size())];
  byte = static_cast<char>(byte ^ (1 << random_.Below(8)));
  damaged_.insert(name);
  return true;
}

}  // namespace everstep::sim
