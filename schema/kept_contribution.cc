#include "schema/kept_contribution.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/checksum.h"

namespace everstep {
namespace {

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

Status Failure(const char* what, const std::string& path) {
  return {errno == ENOENT ? Code::kNotFound : Code::kUnavailable,
          std::string(what) + " " + path + ": " + std::strerror(errno)};
}

}  // namespace

std::string KeptName(WorkerId worker, Version base, LeaseId lease) {
  char text[80];
  std::snprintf(text, sizeof text, "%016llx-%llu-%016llx.contribution", static_cast<unsigned long long>(worker.value),
                static_cast<unsigned long long>(base.value), static_cast<unsigned long long>(lease.value));
  return text;
}

Status WriteKept(const std::string& path, std::span<const std::byte> tensors) {
  File file(std::fopen(path.c_str(), "we"), &std::fclose);
  if (!file) return Failure("cannot create", path);
  const uint64_t checksum = Checksum64(tensors);
  const bool written = std::fwrite(tensors.data(), 1, tensors.size(), file.get()) == tensors.size() &&
                       std::fwrite(&checksum, sizeof checksum, 1, file.get()) == 1 && std::fflush(file.get()) == 0;
  return written ? Status::Ok() : Failure("cannot write", path);
}

Result<Buffer> ReadKept(const std::string& path, uint64_t bytes) {
  File file(std::fopen(path.c_str(), "re"), &std::fclose);
  if (!file) return Failure("cannot open", path);
  MutableBuffer tensors(bytes);
  uint64_t checksum = 0;
  const bool whole = std::fread(tensors.data(), 1, bytes, file.get()) == bytes &&
                     std::fread(&checksum, sizeof checksum, 1, file.get()) == 1 && std::fgetc(file.get()) == EOF;
  if (!whole)
    return Status(Code::kCorrupt,
                  path + " is not " + std::to_string(bytes + sizeof checksum) + " bytes long, as this model's are");
  Buffer read = std::move(tensors).Freeze();
  if (Checksum64(read.span()) != checksum) return Status(Code::kCorrupt, path + " is damaged: its checksum differs");
  return read;
}

}  // namespace everstep
