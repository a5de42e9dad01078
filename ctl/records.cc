#include "ctl/records.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

namespace everstep::ctl {
namespace {

constexpr size_t kMaxLineBytes = 256u << 20;
constexpr size_t kBlockBytes = 1u << 16;
constexpr const char* kExtension = ".jsonl";

// What all files of one job have in common; other settings may change when it goes on from a checkpoint.
constexpr const char* kJobFacts[] = {"job", "uid", "mode", "seed"};
// What two coordinators must agree upon about a step. Times, names and metrics are each one's own.
constexpr const char* kFacts[] = {"ballot", "digest", "previous", "learning_rate", "scale", "clip_norm", "ledger"};
constexpr const char* kContributorFacts[] = {"worker", "base", "base_digest", "lease", "epoch", "ranges", "weight"};

Status Failure(const char* what, const std::string& path) {
  return {errno == ENOENT ? Code::kNotFound : Code::kUnavailable,
          std::string(what) + " " + path + ": " + std::strerror(errno)};
}

// Folders stand for the records in them.
Result<std::vector<std::string>> Expand(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::string> inside;
    for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
      if (entry.path().extension() == kExtension) inside.push_back(entry.path().string());
    }
    if (error) return Status(Code::kUnavailable, "cannot list " + path + ": " + error.message());
    if (inside.empty()) {
      return Status(Code::kNotFound, "no *" + std::string(kExtension) + " in the folder " + path +
                                         "; name the files that everstep-ps wrote by --records");
    }
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  // The same file twice, by whatever name, is one.
  std::vector<std::string> once;
  for (const std::string& file : files) {
    std::error_code ignored;
    const bool again = std::any_of(once.begin(), once.end(), [&](const std::string& other) {
      return other == file || std::filesystem::equivalent(other, file, ignored);
    });
    if (!again) once.push_back(file);
  }
  return once;
}

}  // namespace

bool IsCommit(const json& line) {
  const json& contributors = At(line, "contributors");
  return At(line, "step").is_number_unsigned() && contributors.is_array() && !contributors.empty();
}

Result<RecordReader> RecordReader::Open(const std::vector<std::string>& paths) {
  RecordReader reader;
  EVERSTEP_ASSIGN(const std::vector<std::string> files, Expand(paths));
  for (const std::string& path : files) {
    File file{path, {std::fopen(path.c_str(), "re"), &std::fclose}, {}, 0, 0, {}, 0, false, false, false};
    if (!file.stream) return Failure("cannot open", path);
    reader.files_.push_back(std::move(file));
  }
  for (File& file : reader.files_) {
    const auto line = reader.Line(file);
    if (!line) continue;  // what is missing will be missed
    reader.TakeJob(file, *line);
    reader.Advance(file);
  }
  if (!reader.status_.ok()) return reader.status_;
  return reader;
}

void RecordReader::Defect(const File& file, const std::string& what) {
  defects_.push_back(files_.size() > 1 ? file.path + ": " + what : what);
}

std::optional<std::string> RecordReader::Line(File& file) {
  while (status_.ok()) {
    const size_t end = file.pending.find('\n', file.consumed);
    if (end != std::string::npos) {
      std::string line = file.pending.substr(file.consumed, end - file.consumed);
      file.consumed = end + 1;
      ++file.line;
      return line;
    }
    if (file.ended) return std::nullopt;
    file.pending.erase(0, file.consumed);
    file.consumed = 0;
    const size_t had = file.pending.size();
    if (had > kMaxLineBytes) {
      status_ = {Code::kCorrupt, file.path + " has a line of over 256 MB; it is no commit-records file"};
      break;
    }
    file.pending.resize(had + kBlockBytes);
    errno = 0;
    const size_t n = std::fread(file.pending.data() + had, 1, kBlockBytes, file.stream.get());
    file.pending.resize(had + n);
    if (n > 0) continue;
    if (std::ferror(file.stream.get())) status_ = Failure("cannot read", file.path);
    file.ended = true;
    file.torn = !file.pending.empty();
  }
  return std::nullopt;
}

void RecordReader::TakeJob(File& file, const std::string& line) {
  const json job = ParseJson(line);
  if (job_.is_null()) {
    job_ = job;
    job_path_ = file.path;
    return;
  }
  for (const char* key : kJobFacts) {
    if (At(job, key) != At(job_, key))
      return Defect(file, "is of another job (" + std::string(key) + ") than " + job_path_);
  }
}

void RecordReader::Advance(File& file) {
  file.head.reset();
  while (const auto line = Line(file)) {
    json record = ParseJson(*line);
    const std::string here = "line " + std::to_string(file.line);
    if (!record.is_object()) {
      Defect(file, here + " is no JSON object");
      continue;
    }
    if (!IsCommit(record)) {
      Defect(file, here + " is no commit record (step, contributors)");
      continue;
    }
    const uint64_t step = Count(record, "step");
    // A coordinator that took office again may name its newest step once more.
    if (file.any && step < file.step)
      Defect(file, here + ": step " + std::to_string(step) + " stands behind step " + std::to_string(file.step));
    file.step = step;
    file.any = true;
    file.head = std::move(record);
    return;
  }
}

void RecordReader::Compare(const json& one, const File& from, const json& other, const File& of) {
  const std::string step = "step " + std::to_string(Count(one, "step"));
  const auto differ = [&](const std::string& what) {
    Defect(of, step + " has another " + what + " than " +
                   (&from == &of ? std::string("the line before") : "in " + from.path) + ": two histories");
  };
  for (const char* key : kFacts) {
    if (At(one, key) != At(other, key)) return differ(key);
  }
  const json& mine = At(one, "contributors");
  const json& theirs = At(other, "contributors");
  if (mine.size() != theirs.size()) return differ("number of contributors");
  for (size_t i = 0; i < mine.size(); ++i) {
    for (const char* key : kContributorFacts) {
      if (At(mine[i], key) != At(theirs[i], key)) return differ("contributor");
    }
  }
}

std::optional<json> RecordReader::Next() {
  File* first = nullptr;
  for (File& file : files_) {
    if (file.head && (first == nullptr || file.step < first->step)) first = &file;
  }
  if (first == nullptr || !status_.ok()) return std::nullopt;
  const uint64_t step = first->step;
  json chosen = std::move(*first->head);
  Advance(*first);
  for (File& file : files_) {
    while (file.head && file.step == step) {
      Compare(chosen, *first, *file.head, file);
      // Whoever saw it committed first knew the workers; the other had it from the servers.
      if (Number(*file.head, "committed_ms") < Number(chosen, "committed_ms")) std::swap(chosen, *file.head);
      Advance(file);
    }
  }
  if (!status_.ok()) return std::nullopt;
  return chosen;
}

bool RecordReader::torn() const {
  const File* newest = nullptr;
  for (const File& file : files_) {
    if (newest == nullptr || file.step > newest->step || (file.step == newest->step && file.torn)) newest = &file;
  }
  return newest != nullptr && newest->torn;
}

}  // namespace everstep::ctl
