#include "worker/tasks/data_file.h"

#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace everstep {
namespace {

constexpr size_t kPiece = 1u << 20;

Status Problem(Code code, const std::string& path, const std::string& what) { return {code, path + ": " + what}; }

// Appends what the file unpacks to, one byte over `max_bytes` at most.
Status Unpack(gzFile file, const std::string& path, size_t max_bytes, std::string* contents) {
  while (contents->size() <= max_bytes) {
    const size_t before = contents->size();
    const size_t want = std::min(kPiece, max_bytes - before + 1);
    contents->resize(before + want);
    const int got = gzread(file, contents->data() + before, static_cast<unsigned>(want));
    contents->resize(before + static_cast<size_t>(std::max(got, 0)));
    int problem = Z_OK;
    const char* text = gzerror(file, &problem);
    if (problem == Z_BUF_ERROR) return Problem(Code::kCorrupt, path, "the file ends too early; fetch it again");
    if (got < 0) return Problem(Code::kCorrupt, path, std::string("cannot be read or unpacked: ") + text);
    if (static_cast<size_t>(got) < want) return Status::Ok();
  }
  return Problem(Code::kResourceExhausted, path, "holds more than " + std::to_string(max_bytes) + " bytes");
}

}  // namespace

Result<std::string> ReadDataFile(const std::string& path, size_t max_bytes) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    return Problem(errno == ENOENT ? Code::kNotFound : Code::kUnavailable, path, std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) return Problem(Code::kInvalidArgument, path, "is not a file");
  gzFile file = gzopen(path.c_str(), "rbe");
  if (file == nullptr) return Problem(Code::kUnavailable, path, errno != 0 ? std::strerror(errno) : "out of memory");
  std::string contents;
  Status status = Unpack(file, path, max_bytes, &contents);
  if (gzclose(file) != Z_OK && status.ok()) {
    status = Problem(Code::kCorrupt, path, "the file ends too early; fetch it again");
  }
  if (!status.ok()) return status;
  contents.shrink_to_fit();
  return contents;
}

}  // namespace everstep
