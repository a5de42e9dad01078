// A job's commit records, read as one history. Several servers coordinate over a job's life and each writes a file of
// its own, so a history is a union: steps in order, and a step that two coordinators have written (the newest of one
// may be named once more by the next) is given once.
//
//   auto records = RecordReader::Open({"ps0.jsonl", "ps1.jsonl"}).value();   // or folders, whose *.jsonl are meant
//   while (auto commit = records.Next()) ...                                 // in order of steps
//   records.job(), records.defects()
//
// Memory: a line of each file. Pure reading, single-threaded; what is wrong inside a file is a defect, not an error.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "ctl/json.h"

namespace everstep::ctl {

// A line that is a committed step.
bool IsCommit(const json& line);

class RecordReader {
 public:
  // kNotFound or kUnavailable when something cannot be read, kNotFound for a folder without records, kCorrupt when a
  // file cannot be one of records.
  static Result<RecordReader> Open(const std::vector<std::string>& paths);

  // The first line of the first file that is not empty; null when there is none.
  const json& job() const { return job_; }
  // The next step's record; nothing at the end or once status() is bad.
  std::optional<json> Next();
  // Reading may fail half-way.
  const Status& status() const { return status_; }
  // What was wrong with the lines so far; taken.
  std::vector<std::string> TakeDefects() { return std::exchange(defects_, {}); }
  // At the end: the last line of the file with the newest step is cut off. (That of an older one is no loss, for the
  // next coordinator has named the step again; if it has not, a step is missing.)
  bool torn() const;
  size_t files() const { return files_.size(); }

 private:
  struct File {
    std::string path;
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream;
    std::string pending;       // read, but no whole line yet
    size_t consumed = 0;       // of `pending`
    uint64_t line = 0;         // lines given out
    std::optional<json> head;  // its next commit
    uint64_t step = 0;         // of `head`, or of the last one
    bool any = false;
    bool ended = false;
    bool torn = false;
  };

  // The next line, without its newline; nothing at the end.
  std::optional<std::string> Line(File& file);
  // Moves to the file's next commit record.
  void Advance(File& file);
  void TakeJob(File& file, const std::string& line);
  void Defect(const File& file, const std::string& what);
  // Two coordinators' words about one step.
  void Compare(const json& one, const File& from, const json& other, const File& of);

  std::vector<File> files_;
  json job_;
  std::string job_path_;
  std::vector<std::string> defects_;
  Status status_;
};

}  // namespace everstep::ctl
