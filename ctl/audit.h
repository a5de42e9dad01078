// The auditor: proves from a job's commit records alone that each sample of each epoch is in exactly one committed
// contribution, and that the steps form one unbroken history. It shares no code with the ledger it checks
// (ps/ledger.h), not even the interval arithmetic.
//
//   Auditor auditor({.dataset = 60000});
//   auditor.AddJob(first line); for each step's record, in order: auditor.AddCommit(record);
//   const Audit audit = auditor.Finish();   // audit.ok(), audit.samples_missing, audit.defects, ...
//
// Memory: the ranges of what is consumed, one range for an epoch that is complete. Pure, single-threaded.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "ctl/json.h"

namespace everstep::ctl {

struct AuditOptions {
  // Samples of one epoch; when it is not given, the highest position in the records counts as the last.
  std::optional<uint64_t> dataset;
  std::string dataset_from = "--dataset";
  // The job still runs or was stopped: what the last epoch has not consumed yet is not missing, nor is the end of the
  // file's last line.
  bool unfinished = false;
};

struct Audit {
  std::string job;
  std::string uid;
  std::string mode;
  uint64_t steps_committed = 0;  // without the initialisation
  uint64_t contributions = 0;
  uint64_t members_max = 0;
  uint64_t dataset = 0;      // samples of one epoch; 0: the job has none
  std::string dataset_from;  // where that number comes from: an option, "report" or "records"
  uint64_t epochs_begun = 0;
  uint64_t epochs_complete = 0;
  uint64_t samples_expected = 0;
  uint64_t samples_committed = 0;   // each time it is committed
  uint64_t samples_duplicated = 0;  // committed once more than they should
  uint64_t samples_missing = 0;
  uint64_t samples_outside = 0;  // positions that the dataset does not have
  std::string digest;            // of the newest version
  uint64_t defects_found = 0;
  std::vector<std::string> defects;  // the first ones, in words

  bool ok() const { return defects_found == 0; }
};

class Auditor {
 public:
  explicit Auditor(AuditOptions options) : options_(std::move(options)) {}

  // The line that describes the job. First, and once.
  void AddJob(const json& line);
  // A step's record; steps in order.
  void AddCommit(const json& line);
  // What follows from all lines together. Once.
  Audit Finish();
  // For callers that see what no line shows, e.g. a line cut off.
  void Defect(const std::string& what);

 private:
  // Positions covered so far, as disjoint ranges that do not touch.
  class Coverage {
   public:
    // How many of [begin, end) were not covered before.
    uint64_t Add(uint64_t begin, uint64_t end);
    uint64_t size() const { return size_; }
    size_t range_count() const { return end_of_.size(); }
    // Covered positions below `bound`.
    uint64_t Below(uint64_t bound) const;
    uint64_t end() const { return end_of_.empty() ? 0 : end_of_.rbegin()->second; }
    // "[3, 5), [9, 10)": what is missing below `bound`, the first few.
    std::string Holes(uint64_t bound) const;

   private:
    std::map<uint64_t, uint64_t> end_of_;  // by begin
    uint64_t size_ = 0;
  };

  void CheckHistory(const json& line, uint64_t step);
  void CheckContributors(const json& contributors, uint64_t step);
  // The samples of one contribution; what it adds to the coverage.
  uint64_t AddSamples(const json& contributor, uint64_t step);
  void CheckEpoch(uint64_t epoch, uint64_t step);
  void CheckLedger();

  const AuditOptions options_;
  Audit audit_;
  bool begun_ = false;
  bool sync_ = false;
  uint64_t job_epochs_ = 0;
  uint64_t job_max_steps_ = 0;
  std::optional<uint64_t> last_step_;
  uint64_t last_ballot_ = 0;
  double last_commit_ms_ = 0;
  std::map<uint64_t, Coverage> epochs_;
};

// All that the coordinators of a job have written, as files or folders (ctl/records.h). kNotFound or kUnavailable when
// one cannot be read; what is wrong inside is a defect.
Result<Audit> AuditFiles(const std::vector<std::string>& paths, AuditOptions options);

// Adds a defect for each figure in which a coordinator's report (docs/reports.md) differs.
void CompareWithReport(const json& report, Audit* audit);

json ToJson(const Audit& audit);
std::string ToText(const Audit& audit);

}  // namespace everstep::ctl
