#include "ctl/audit.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/check.h"
#include "base/limits.h"
#include "ctl/records.h"

namespace everstep::ctl {
namespace {

constexpr size_t kMaxDefectsKept = 20;
// Weights are sums and quotients of small integers in double precision.
constexpr double kWeightTolerance = 1e-9;
constexpr const char* kNoDigest = "0000000000000000";

std::string Str(uint64_t number) { return std::to_string(number); }

bool IsDigest(const std::string& text) {
  return text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace

// ---- Positions ----

uint64_t Auditor::Coverage::Add(uint64_t begin, uint64_t end) {
  uint64_t fresh = end - begin;
  uint64_t left = begin;
  uint64_t right = end;
  auto it = end_of_.upper_bound(begin);
  if (it != end_of_.begin() && std::prev(it)->second >= begin) --it;
  while (it != end_of_.end() && it->first <= end) {
    const uint64_t shared_begin = std::max(begin, it->first);
    const uint64_t shared_end = std::min(end, it->second);
    if (shared_end > shared_begin) fresh -= shared_end - shared_begin;
    left = std::min(left, it->first);
    right = std::max(right, it->second);
    it = end_of_.erase(it);
  }
  end_of_[left] = right;
  size_ += fresh;
  return fresh;
}

uint64_t Auditor::Coverage::Below(uint64_t bound) const {
  uint64_t sum = 0;
  for (const auto& [begin, end] : end_of_) {
    if (begin >= bound) break;
    sum += std::min(end, bound) - begin;
  }
  return sum;
}

std::string Auditor::Coverage::Holes(uint64_t bound) const {
  std::string text;
  int shown = 0;
  uint64_t at = 0;
  const auto show = [&](uint64_t begin, uint64_t end) {
    if (begin >= end || ++shown > 4) return;
    text += shown == 4 ? ", ..." : (shown > 1 ? ", " : "") + ("[" + Str(begin) + ", " + Str(end) + ")");
  };
  for (const auto& [begin, end] : end_of_) {
    if (begin >= bound) break;
    show(at, begin);
    at = end;
  }
  show(at, bound);
  return text;
}

// ---- Lines ----

void Auditor::Defect(const std::string& what) {
  ++audit_.defects_found;
  if (audit_.defects.size() < kMaxDefectsKept) audit_.defects.push_back(what);
}

void Auditor::AddJob(const json& line) {
  begun_ = true;
  audit_.job = Text(line, "job");
  audit_.uid = Text(line, "uid");
  audit_.mode = Text(line, "mode");
  sync_ = audit_.mode == "sync";
  job_epochs_ = Count(line, "epochs");
  job_max_steps_ = Count(line, "max_steps");
  if (audit_.job.empty() || audit_.uid.empty() || audit_.mode.empty() || (job_epochs_ == 0 && job_max_steps_ == 0)) {
    Defect("line 1 does not describe a job (job, uid, mode, epochs, max_steps); is this a commit-records file?");
  }
}

void Auditor::AddCommit(const json& line) {
  EVERSTEP_CHECK(IsCommit(line), "whoever reads the lines looks at what they are");
  const json& contributors = At(line, "contributors");
  const uint64_t step = Count(line, "step");
  CheckHistory(line, step);
  if (step > 0) ++audit_.steps_committed;
  audit_.members_max = std::max(audit_.members_max, Count(line, "members"));
  CheckContributors(contributors, step);
}

// Steps follow one another, each on the version that the one before has made.
void Auditor::CheckHistory(const json& line, uint64_t step) {
  const std::string at = "step " + Str(step);
  const uint64_t wanted = last_step_ ? *last_step_ + 1 : 0;
  if (step != wanted) {
    Defect(last_step_ ? at + " follows step " + Str(*last_step_) +
                            "; if its coordinators changed, give the records of all of a job's servers"
                      : "the first commit is " + at + ", not the initialisation (step 0)");
  }
  last_step_ = step;

  const std::string digest = Text(line, "digest");
  const std::string previous = Text(line, "previous");
  if (!IsDigest(digest) || !IsDigest(previous)) Defect(at + " has no digests");
  const std::string& before = audit_.digest.empty() ? kNoDigest : audit_.digest;
  if (previous != before)
    Defect(at + ": the chain of digests is broken: it is based on " + previous + ", the version before is " + before);
  audit_.digest = digest;

  const uint64_t ballot = Count(line, "ballot");
  if (ballot < last_ballot_) Defect(at + " was sealed at ballot " + Str(ballot) + " after ballot " + Str(last_ballot_));
  last_ballot_ = std::max(last_ballot_, ballot);
  const double committed = Number(line, "committed_ms");
  if (committed < last_commit_ms_) Defect(at + " was committed before the step ahead of it");
  last_commit_ms_ = std::max(last_commit_ms_, committed);
}

void Auditor::CheckContributors(const json& contributors, uint64_t step) {
  const std::string at = "step " + Str(step);
  uint64_t total = 0;
  double weights = 0;
  std::vector<std::pair<double, uint64_t>> shares;
  std::set<std::string> workers;
  for (const json& c : contributors) {
    const json& weight = At(c, "weight");
    const std::string worker = Text(c, "worker");
    if (!weight.is_number() || worker.empty()) {
      Defect(at + " has a contributor without worker or weight");
      continue;
    }
    ++audit_.contributions;
    if (sync_ && !workers.insert(worker).second) Defect(at + " holds two contributions of worker " + Printable(worker));
    const uint64_t base = Count(c, "base", UINT64_MAX);
    if (sync_ ? base != step : base > step) Defect(at + " holds a contribution that is not based on its version");
    const uint64_t samples = AddSamples(c, step);
    total += samples;
    weights += weight.get<double>();
    shares.emplace_back(weight.get<double>(), samples);
  }
  if (step == 0) {
    if (contributors.size() != 1 || total > 0) Defect("the initialisation is not one contribution without samples");
    return;
  }
  if (!sync_) return;
  if (std::abs(weights - 1) > kWeightTolerance)
    Defect(at + ": the weights sum to " + std::to_string(weights) + ", not to 1");
  for (const auto& [weight, samples] : shares) {
    if (total == 0) break;
    const double share = static_cast<double>(samples) / static_cast<double>(total);
    if (std::abs(weight - share) > kWeightTolerance) {
      Defect(at + ": a contribution of " + Str(samples) + " of " + Str(total) + " samples has weight " +
             std::to_string(weight));
    }
  }
}

uint64_t Auditor::AddSamples(const json& contributor, uint64_t step) {
  const std::string at = "step " + Str(step);
  const json& ranges = At(contributor, "ranges");
  const json& epoch_field = At(contributor, "epoch");
  if (!ranges.is_array() || !epoch_field.is_number_unsigned()) {
    Defect(at + " has a contributor without epoch or ranges");
    return 0;
  }
  if (ranges.empty()) return 0;
  const uint64_t epoch = epoch_field.get<uint64_t>();
  CheckEpoch(epoch, step);
  Coverage& coverage = epochs_[epoch];
  uint64_t sum = 0;
  for (const json& range : ranges) {
    const bool pair =
        range.is_array() && range.size() == 2 && range[0].is_number_unsigned() && range[1].is_number_unsigned();
    if (!pair || range[0].get<uint64_t>() >= range[1].get<uint64_t>()) {
      Defect(at + " has a range that is none");
      continue;
    }
    const uint64_t begin = range[0].get<uint64_t>();
    const uint64_t end = range[1].get<uint64_t>();
    const uint64_t fresh = coverage.Add(begin, end);
    sum += end - begin;
    if (const uint64_t again = end - begin - fresh; again > 0) {
      audit_.samples_duplicated += again;
      Defect(at + ": " + Str(again) + " samples of [" + Str(begin) + ", " + Str(end) + ") of epoch " + Str(epoch) +
             " were committed before");
    }
  }
  audit_.samples_committed += sum;
  if (coverage.range_count() > limits::kMaxLedgerRanges)
    Defect("epoch " + Str(epoch) + " has more holes than a ledger may have");
  return sum;
}

void Auditor::CheckEpoch(uint64_t epoch, uint64_t step) {
  const uint64_t newest = epochs_.empty() ? 0 : epochs_.rbegin()->first;
  const bool next = epoch == newest || (!epochs_.empty() && epoch == newest + 1);
  if (!next) Defect("step " + Str(step) + " has samples of epoch " + Str(epoch) + " in epoch " + Str(newest));
  // Once the size is known, a new epoch before the old one's end is seen where it happens, not only by what is missing.
  if (epoch > newest && options_.dataset && epochs_[newest].size() < *options_.dataset) {
    Defect("step " + Str(step) + " begins epoch " + Str(epoch) + " before epoch " + Str(newest) + " is consumed");
  }
}

// ---- The whole ----

Audit Auditor::Finish() {
  if (!begun_) Defect("there are no records");
  if (begun_ && !last_step_) Defect("there is no commit record");
  CheckLedger();
  return audit_;
}

void Auditor::CheckLedger() {
  uint64_t highest = 0;
  for (const auto& [epoch, coverage] : epochs_) highest = std::max(highest, coverage.end());
  audit_.dataset = options_.dataset.value_or(highest);
  audit_.dataset_from = options_.dataset ? options_.dataset_from : "records";
  const uint64_t size = audit_.dataset;
  const uint64_t begun = epochs_.empty() ? 0 : epochs_.rbegin()->first + 1;
  audit_.epochs_begun = begun;

  // A job may end by its number of steps, in the middle of an epoch.
  const bool ended_by_steps = job_max_steps_ > 0 && audit_.steps_committed >= job_max_steps_;
  const bool last_may_be_partial = options_.unfinished || ended_by_steps;
  if (job_epochs_ > 0 && begun > job_epochs_)
    Defect("epoch " + Str(begun - 1) + " was begun, the job has " + Str(job_epochs_));
  if (job_max_steps_ > 0 && audit_.steps_committed > job_max_steps_)
    Defect("more steps than the job's " + Str(job_max_steps_));
  if (size == 0 || job_epochs_ == 0) {
    if (job_max_steps_ > 0 && !last_may_be_partial) {
      Defect("the records end at step " + Str(audit_.steps_committed) + " of " + Str(job_max_steps_));
    }
  }
  if (size == 0) return;

  const uint64_t epochs_expected = last_may_be_partial || job_epochs_ == 0 ? begun : std::max(begun, job_epochs_);
  // Epochs of which the records hold nothing are counted, not walked: the file says how many there should be.
  uint64_t present = 0;
  for (const auto& [epoch, coverage] : epochs_) {
    const uint64_t inside = coverage.Below(size);
    if (coverage.size() > inside) {
      audit_.samples_outside += coverage.size() - inside;
      Defect("epoch " + Str(epoch) + " has positions up to " + Str(coverage.end()) + ", the dataset has " + Str(size) +
             " samples");
    }
    const bool partial = last_may_be_partial && epoch + 1 == begun;
    const uint64_t expected = partial ? inside : size;
    audit_.samples_expected += expected;
    audit_.samples_missing += expected - inside;
    if (expected > inside) {
      Defect("epoch " + Str(epoch) + ": " + Str(expected - inside) +
             " samples were never committed: " + coverage.Holes(size));
    }
    if (inside == size) ++audit_.epochs_complete;
    ++present;
  }
  if (epochs_expected > present) {
    const uint64_t absent = (epochs_expected - present) * size;
    audit_.samples_expected += absent;
    audit_.samples_missing += absent;
    Defect(Str(epochs_expected - present) + " epochs of " + Str(epochs_expected) + " are not in the records at all");
  }
}

Result<Audit> AuditFiles(const std::vector<std::string>& paths, AuditOptions options) {
  const bool unfinished = options.unfinished;
  EVERSTEP_ASSIGN(RecordReader records, RecordReader::Open(paths));
  Auditor auditor(std::move(options));
  const auto pass_on = [&] {
    for (const std::string& defect : records.TakeDefects()) auditor.Defect(defect);
  };
  if (!records.job().is_null()) auditor.AddJob(records.job());
  pass_on();
  while (const auto commit = records.Next()) {
    auditor.AddCommit(*commit);
    pass_on();
  }
  EVERSTEP_RETURN_IF_ERROR(records.status());
  pass_on();
  if (records.torn() && !unfinished)
    auditor.Defect("the last line is cut off; if the job still runs or was killed, give --unfinished");
  return auditor.Finish();
}

void CompareWithReport(const json& report, Audit* audit) {
  const auto differs = [&](const std::string& what, const std::string& claimed, const std::string& found) {
    if (claimed == found) return;
    ++audit->defects_found;
    audit->defects.push_back("the report says " + what + " " + Printable(claimed) + ", the records say " +
                             Printable(found));
  };
  const auto count = [&](const char* key) {
    const uint64_t value = Count(report, key, UINT64_MAX);
    return value == UINT64_MAX ? std::string("nothing") : Str(value);
  };
  differs("uid", Text(report, "uid"), audit->uid);
  differs("steps_committed", count("steps_committed"), Str(audit->steps_committed));
  differs("samples_committed", count("samples_committed"), Str(audit->samples_committed));
  differs("digest", Text(report, "digest"), audit->digest);
}

// ---- Showing ----

json ToJson(const Audit& audit) {
  return {{"ok", audit.ok()},
          {"job", audit.job},
          {"uid", audit.uid},
          {"mode", audit.mode},
          {"steps_committed", audit.steps_committed},
          {"contributions", audit.contributions},
          {"members_max", audit.members_max},
          {"dataset", audit.dataset},
          {"dataset_from", audit.dataset_from},
          {"epochs_begun", audit.epochs_begun},
          {"epochs_complete", audit.epochs_complete},
          {"samples_expected", audit.samples_expected},
          {"samples_committed", audit.samples_committed},
          {"samples_duplicated", audit.samples_duplicated},
          {"samples_missing", audit.samples_missing},
          {"samples_outside", audit.samples_outside},
          {"digest", audit.digest},
          {"defects_found", audit.defects_found},
          {"defects", audit.defects}};
}

std::string ToText(const Audit& audit) {
  std::string text =
      "job " + Printable(audit.job) + " (" + Printable(audit.mode) + ", uid " + Printable(audit.uid) + ")\n";
  text += "  steps      " + Str(audit.steps_committed) + " committed, " + Str(audit.contributions) +
          " contributions, at most " + Str(audit.members_max) + " workers\n";
  if (audit.dataset > 0) {
    text += "  epochs     " + Str(audit.epochs_complete) + " complete of " + Str(audit.epochs_begun) + " begun, " +
            Str(audit.dataset) + " samples each (by " + audit.dataset_from + ")\n";
    text += "  samples    " + Str(audit.samples_expected) + " expected, " + Str(audit.samples_committed) +
            " committed, " + Str(audit.samples_duplicated) + " duplicated, " + Str(audit.samples_missing) +
            " missing\n";
  } else {
    text += "  samples    the job has no dataset\n";
  }
  if (audit.dataset > 0 && audit.dataset_from == "records") {
    text +=
        "  note       the size of the dataset is the highest position seen; --dataset or --report makes it certain\n";
  }
  text += "  digest     " + Printable(audit.digest) + "\n";
  for (const std::string& defect : audit.defects) text += "  DEFECT     " + defect + "\n";
  if (audit.defects_found > audit.defects.size()) {
    text += "  ... and " + Str(audit.defects_found - audit.defects.size()) + " more defects\n";
  }
  text += audit.ok() ? "proved: each sample once, in an unbroken history\n"
                     : "NOT proved: " + Str(audit.defects_found) + " defects\n";
  return text;
}

}  // namespace everstep::ctl
