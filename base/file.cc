#include "base/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace everstep {
namespace {

Status Failure(const std::string& what, const std::string& path) {
  const int error = errno;
  const Code code = error == ENOENT ? Code::kNotFound : error == ENOSPC ? Code::kResourceExhausted : Code::kUnavailable;
  return {code, what + " " + path + ": " + std::strerror(error)};
}

// Closes a descriptor at the end of a scope.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

Status WriteAll(int fd, std::string_view contents, const std::string& path) {
  while (!contents.empty()) {
    const ssize_t n = write(fd, contents.data(), contents.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failure("cannot write", path);
    contents.remove_prefix(static_cast<size_t>(n));
  }
  return Status::Ok();
}

}  // namespace

Result<std::string> ReadFile(const std::string& path) {
  Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) return Failure("cannot open", path);
  std::string contents;
  char block[1 << 16];
  while (true) {
    const ssize_t n = read(file.fd, block, sizeof block);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failure("cannot read", path);
    if (n == 0) return contents;
    contents.append(block, static_cast<size_t>(n));
  }
}

Status WriteFileDurably(const std::string& path, std::string_view contents) {
  const std::string temporary = path + ".tmp." + std::to_string(getpid());
  {
    Descriptor file{open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)};
    if (file.fd < 0) return Failure("cannot create", temporary);
    Status written = WriteAll(file.fd, contents, temporary);
    if (written.ok() && fsync(file.fd) != 0) written = Failure("cannot sync", temporary);
    if (!written.ok()) {
      unlink(temporary.c_str());
      return written;
    }
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    const Status failed = Failure("cannot rename to", path);
    unlink(temporary.c_str());
    return failed;
  }
  std::string folder = std::filesystem::path(path).parent_path().string();
  if (folder.empty()) folder = ".";
  Descriptor directory{open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (directory.fd < 0 || fsync(directory.fd) != 0) return Failure("cannot sync the folder", folder);
  return Status::Ok();
}

Status CreateFolders(const std::string& path) {
  std::error_code error;
  const bool existed = std::filesystem::exists(path, error);
  std::filesystem::create_directories(path, error);
  if (error) return {Code::kUnavailable, "cannot create the folder " + path + ": " + error.message()};
  if (!existed) std::filesystem::permissions(path, std::filesystem::perms::owner_all, error);
  return Status::Ok();
}

bool FileExists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

Result<FileLock> FileLock::Acquire(const std::string& path, bool wait) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return Failure("cannot open the lock", path);
  while (flock(fd, wait ? LOCK_EX : LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    Status failed = errno == EWOULDBLOCK ? Status(Code::kUnavailable, "another process holds the lock " + path)
                                         : Failure("cannot lock", path);
    close(fd);
    return failed;
  }
  return FileLock(fd);
}

FileLock::~FileLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace everstep
