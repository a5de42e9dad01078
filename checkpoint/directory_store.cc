// The directory store. A file is written as ".tmp-<random>-NAME" under an flock that dies with its process, so that a
// leftover can be told from a file at work, also by another process on the folder.
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/file.h"
#include "base/limits.h"
#include "base/random.h"
#include "checkpoint/store.h"

namespace everstep {
namespace {

constexpr std::string_view kTemporary = ".tmp-";
constexpr size_t kTagBytes = 17;  // sixteen hex digits and a dash
// Write-out begins while the writer still works, so that the sync at the end has little left to do.
constexpr uint64_t kWriteOutBytes = 8u << 20;

Status Failure(const std::string& what, const std::string& path) {
  const int error = errno;
  const Code code = error == ENOENT                      ? Code::kNotFound
                    : error == ENOSPC || error == EDQUOT ? Code::kResourceExhausted
                                                         : Code::kUnavailable;
  return {code, what + " " + path + ": " + std::strerror(error)};
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { Close(); }
  int fd() const { return fd_; }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

Status SyncFolder(const std::string& folder) {
  const Descriptor directory(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.fd() < 0 || fsync(directory.fd()) != 0) return Failure("cannot sync the folder", folder);
  return Status::Ok();
}

class FileWriter : public StoreWriter {
 public:
  FileWriter(int fd, std::string temporary, std::string folder, std::string path)
      : file_(fd), temporary_(std::move(temporary)), folder_(std::move(folder)), path_(std::move(path)) {}
  ~FileWriter() override {
    if (!temporary_.empty()) unlink(temporary_.c_str());
  }

  Status Append(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t n = write(file_.fd(), bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return Failure("cannot write", temporary_);
      bytes = bytes.subspan(static_cast<size_t>(n));
      written_ += static_cast<uint64_t>(n);
    }
    if (written_ - started_ >= kWriteOutBytes) {
      // Only a hint: what goes wrong here shows in the sync.
      (void)sync_file_range(file_.fd(), static_cast<off_t>(started_), static_cast<off_t>(written_ - started_),
                            SYNC_FILE_RANGE_WRITE);
      started_ = written_;
    }
    return Status::Ok();
  }

  Status Commit() override {
    EVERSTEP_CHECK(!temporary_.empty(), "a file is committed once");
    if (fsync(file_.fd()) != 0) return Failure("cannot sync", temporary_);
    if (rename(temporary_.c_str(), path_.c_str()) != 0) return Failure("cannot rename to", path_);
    temporary_.clear();
    file_.Close();
    return SyncFolder(folder_);
  }

 private:
  Descriptor file_;
  std::string temporary_;
  const std::string folder_;
  const std::string path_;
  uint64_t written_ = 0;
  uint64_t started_ = 0;  // write-out was begun up to here
};

class FileReader : public StoreReader {
 public:
  FileReader(int fd, uint64_t size, std::string path) : file_(fd), size_(size), path_(std::move(path)) {}

  uint64_t size() const override { return size_; }

  Status Read(uint64_t offset, std::span<std::byte> out) override {
    while (!out.empty()) {
      const ssize_t n = pread(file_.fd(), out.data(), out.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return Failure("cannot read", path_);
      if (n == 0) return {Code::kCorrupt, path_ + " ends at byte " + std::to_string(offset) + ", more was expected"};
      offset += static_cast<uint64_t>(n);
      out = out.subspan(static_cast<size_t>(n));
    }
    return Status::Ok();
  }

 private:
  Descriptor file_;
  const uint64_t size_;
  const std::string path_;
};

class DirectoryStore : public Store {
 public:
  explicit DirectoryStore(std::string folder) : folder_(std::move(folder)) {}

  const std::string& place() const override { return folder_; }

  Result<std::unique_ptr<StoreWriter>> Create(const std::string& name) override {
    EVERSTEP_RETURN_IF_ERROR(CheckName(name));
    char tag[24];
    std::snprintf(tag, sizeof tag, "%016llx-", static_cast<unsigned long long>(EntropyU64()));
    std::string temporary = Path(std::string(kTemporary) + tag + name);
    const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return Failure("cannot create", temporary);
    // Nobody else knows the name yet, or only as a leftover that is about to go: then there is nothing to lock.
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
      const Status failed = Failure("cannot lock", temporary);
      close(fd);
      return failed;
    }
    return std::unique_ptr<StoreWriter>(std::make_unique<FileWriter>(fd, std::move(temporary), folder_, Path(name)));
  }

  Result<std::unique_ptr<StoreReader>> Open(const std::string& name) override {
    EVERSTEP_RETURN_IF_ERROR(CheckName(name));
    const std::string path = Path(name);
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return Failure("cannot open", path);
    struct stat info = {};
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
      close(fd);
      return Status(Code::kCorrupt, path + " is no file");
    }
    return std::unique_ptr<StoreReader>(std::make_unique<FileReader>(fd, static_cast<uint64_t>(info.st_size), path));
  }

  Result<std::vector<std::string>> List() override {
    EVERSTEP_ASSIGN(std::vector<std::string> names, Entries());
    std::erase_if(names, [](const std::string& name) { return !IsStoreName(name); });
    return names;
  }

  Result<std::vector<std::string>> Unfinished() override {
    EVERSTEP_ASSIGN(const std::vector<std::string> entries, Entries());
    std::vector<std::string> names;
    for (const std::string& entry : entries) {
      if (IsTemporary(entry)) names.push_back(entry.substr(kTemporary.size() + kTagBytes));
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  Status Delete(const std::string& name) override {
    EVERSTEP_RETURN_IF_ERROR(CheckName(name));
    if (unlink(Path(name).c_str()) != 0) {
      if (errno == ENOENT) return Status::Ok();
      return Failure("cannot delete", Path(name));
    }
    return SyncFolder(folder_);
  }

  Result<size_t> RemoveLeftovers() override {
    EVERSTEP_ASSIGN(const std::vector<std::string> entries, Entries());
    size_t removed = 0;
    for (const std::string& entry : entries) {
      if (!IsTemporary(entry)) continue;
      const Descriptor file(open(Path(entry).c_str(), O_RDONLY | O_CLOEXEC));
      if (file.fd() < 0 || flock(file.fd(), LOCK_EX | LOCK_NB) != 0) continue;  // gone meanwhile, or at work
      removed += unlink(Path(entry).c_str()) == 0;
    }
    return removed;
  }

 private:
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  static bool IsTemporary(const std::string& entry) {
    return entry.starts_with(kTemporary) && entry.size() > kTemporary.size() + kTagBytes &&
           IsStoreName(entry.substr(kTemporary.size() + kTagBytes));
  }

  Status CheckName(const std::string& name) const {
    if (IsStoreName(name)) return Status::Ok();
    return {Code::kInvalidArgument, "\"" + name + "\" cannot be the name of a file in " + folder_};
  }

  Result<std::vector<std::string>> Entries() const {
    DIR* const directory = opendir(folder_.c_str());
    if (directory == nullptr) return Failure("cannot list the folder", folder_);
    std::vector<std::string> names;
    errno = 0;
    for (const dirent* entry = readdir(directory); entry != nullptr; entry = readdir(directory)) {
      if (names.size() >= limits::kMaxCheckpointFiles) break;
      names.emplace_back(entry->d_name);
    }
    const int error = errno;
    closedir(directory);
    errno = error;
    if (error != 0) return Failure("cannot list the folder", folder_);
    if (names.size() >= limits::kMaxCheckpointFiles) {
      return Status(Code::kResourceExhausted, "the folder " + folder_ + " holds more files than any job makes");
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  const std::string folder_;
};

}  // namespace

bool IsStoreName(const std::string& name) {
  if (name.empty() || name.size() > 200 || name.front() == '.') return false;
  return std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  });
}

Result<std::unique_ptr<Store>> MakeDirectoryStore(const std::string& folder, bool create) {
  if (create) EVERSTEP_RETURN_IF_ERROR(CreateFolders(folder));
  struct stat info = {};
  if (stat(folder.c_str(), &info) != 0) return Failure("cannot open the checkpoint folder", folder);
  if (!S_ISDIR(info.st_mode)) {
    return Status(Code::kInvalidArgument, folder + " is a file; checkpoints need a folder");
  }
  return std::unique_ptr<Store>(std::make_unique<DirectoryStore>(folder));
}

Result<std::string> ReadFromStore(Store& store, const std::string& name, size_t most_bytes) {
  EVERSTEP_ASSIGN(const std::unique_ptr<StoreReader> reader, store.Open(name));
  if (reader->size() > most_bytes) return Status(Code::kCorrupt, name + " is larger than it can be");
  std::string contents(reader->size(), '\0');
  EVERSTEP_RETURN_IF_ERROR(reader->Read(0, std::as_writable_bytes(std::span(contents.data(), contents.size()))));
  return contents;
}

Status WriteToStore(Store& store, const std::string& name, std::string_view contents) {
  EVERSTEP_ASSIGN(const std::unique_ptr<StoreWriter> writer, store.Create(name));
  EVERSTEP_RETURN_IF_ERROR(writer->Append(std::as_bytes(std::span(contents.data(), contents.size()))));
  return writer->Commit();
}

}  // namespace everstep
