#include "worker/tasks/text.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/limits.h"
#include "worker/tasks/data_file.h"

namespace everstep {
namespace {

namespace fs = std::filesystem;

constexpr char kLicences[] = "/usr/share/common-licenses";

Result<std::vector<std::string>> FilesBelow(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const bool hidden = it->path().filename().string().starts_with(".");
    if (it->is_symlink(error)) continue;
    if (hidden && it->is_directory(error)) it.disable_recursion_pending();
    if (!hidden && it->is_regular_file(error)) files.push_back(it->path().string());
    if (files.size() > limits::kMaxDataFiles) {
      return Status(Code::kResourceExhausted, folder + " holds more than " + std::to_string(limits::kMaxDataFiles) +
                                                  " files; join them, or name a smaller folder");
    }
  }
  if (error) return Status(Code::kUnavailable, "cannot list " + folder + ": " + error.message());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

Result<Text> LoadText(const std::string& path) {
  const std::string from = path.empty() ? kLicences : path;
  std::error_code error;
  const fs::file_status status = fs::status(from, error);
  if (!fs::exists(status)) {
    return Status(Code::kNotFound, from + " does not exist; name a text file or a folder of them with --data");
  }
  std::vector<std::string> files = {from};
  if (fs::is_directory(status)) {
    EVERSTEP_ASSIGN(files, FilesBelow(from));
  }
  Text text;
  for (const std::string& file : files) {
    EVERSTEP_ASSIGN(const std::string contents, ReadDataFile(file));
    const size_t train = contents.size() - contents.size() / 10;
    text.train.append(contents, 0, train);
    text.held_out.append(contents, train);
    if (text.train.size() > limits::kMaxDataFileBytes) {
      return Status(Code::kResourceExhausted,
                    from + " holds more than " + std::to_string(limits::kMaxDataFileBytes) + " bytes of text");
    }
  }
  return text;
}

}  // namespace everstep
