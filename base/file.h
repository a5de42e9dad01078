// Files: small, whole and durable. Errors name the path.
#pragma once

#include <string>

#include "base/status.h"

namespace everstep {

Result<std::string> ReadFile(const std::string& path);

// Replaces `path` so that after a crash either the old or the new contents are there, never a mixture:
// temporary name, write, fsync, rename, fsync of the folder.
Status WriteFileDurably(const std::string& path, std::string_view contents);

// Creates the folder and those above it, with mode 0700 for what is new.
Status CreateFolders(const std::string& path);

bool FileExists(const std::string& path);

// An advisory lock (flock) on a file that is created when missing; held while the object lives. Ends with the process.
class FileLock {
 public:
  // kUnavailable when another process holds it and `wait` is false.
  static Result<FileLock> Acquire(const std::string& path, bool wait);

  FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileLock& operator=(FileLock&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock();

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace everstep
