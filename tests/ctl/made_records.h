// A job's records, made by hand; tests spoil them.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "base/random.h"
#include "ctl/audit.h"

namespace everstep::ctl {

struct Range {
  uint64_t begin, end;
};

inline std::string Digest(uint64_t version) {
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(version == 0 ? 0 : Mix64(version)));
  return text;
}

// As they ought to be.
struct Records {
  json job{{"job", "j"}, {"uid", "00000000000000aa"}, {"mode", "sync"}, {"epochs", 2}, {"max_steps", 0}};
  std::vector<json> commits;

  Records() {
    commits.push_back(Commit(0));
    commits[0]["contributors"].push_back(Contributor("w0", 0, 0, {}, 1));
  }

  json Commit(uint64_t step) const {
    return {{"step", step},
            {"ballot", 1},
            {"digest", Digest(step + 1)},
            {"previous", Digest(step)},
            {"members", 2},
            {"committed_ms", 1000.0 + static_cast<double>(step)},
            {"contributors", json::array()}};
  }
  static json Contributor(const std::string& worker, uint64_t base, uint64_t epoch, const std::vector<Range>& ranges,
                          double weight) {
    json list = json::array();
    for (const Range& range : ranges) list.push_back({range.begin, range.end});
    return {{"worker", worker}, {"name", worker}, {"base", base},
            {"epoch", epoch},   {"ranges", list}, {"weight", weight}};
  }

  // The next step, of two workers, weighted by samples.
  Records& Step(uint64_t epoch, const std::vector<Range>& a, const std::vector<Range>& b = {}) {
    const uint64_t step = commits.size();
    const auto size = [](const std::vector<Range>& ranges) {
      double sum = 0;
      for (const Range& range : ranges) sum += static_cast<double>(range.end - range.begin);
      return sum;
    };
    const double total = size(a) + size(b);
    commits.push_back(Commit(step));
    commits.back()["contributors"].push_back(Contributor("w1", step, epoch, a, size(a) / total));
    if (!b.empty()) commits.back()["contributors"].push_back(Contributor("w2", step, epoch, b, size(b) / total));
    return *this;
  }

  Audit Examine(AuditOptions options = {}) const {
    Auditor auditor(std::move(options));
    auditor.AddJob(ParseJson(job.dump()));  // whole numbers as a file has them
    for (const json& commit : commits) auditor.AddCommit(ParseJson(commit.dump()));
    return auditor.Finish();
  }
};

// Two epochs of 10 samples; the second worker of step 2 died, so its samples came in step 3.
inline Records GoodRecords() {
  Records records;
  records.Step(0, {{0, 3}}, {{3, 6}}).Step(0, {{6, 8}}).Step(0, {{8, 10}});
  records.Step(1, {{0, 5}}, {{7, 10}}).Step(1, {{5, 7}});
  return records;
}

}  // namespace everstep::ctl
