// What `everstep demo` has found, from three witnesses: the auditor (over the commit records), the coordinator's
// report, and the demo's own notes of what it did and when. Pure.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "ctl/audit.h"
#include "ctl/demo_script.h"
#include "ctl/json.h"

namespace everstep::ctl {

// When steps were committed (steady clock) and whose contributions they hold.
struct CommitTime {
  uint64_t step = 0;
  double at_ms = 0;
  std::vector<std::string> workers;
};
Result<std::vector<CommitTime>> ReadCommitTimes(const std::string& records_path);

// All times on the steady clock.
struct DemoNotes {
  double started_ms = 0;  // of the demo
  double ready_ms = 0;    // every process of the first line-up was there
  double ended_ms = 0;    // the last process had ended
  std::vector<DoneAct> acts;
  bool all_acts_seen = false;
  size_t processes = 0;
  double accuracy_wanted = 0;
};

// The whole report, as documented in docs/reports.md. `report` is the coordinator's.
json DemoReport(const DemoNotes& notes, const json& report, const Audit& audit, const std::vector<CommitTime>& commits);

// What is wrong with it, one line each; empty when the demo has passed.
std::vector<std::string> Shortcomings(const json& demo_report);

std::string DemoText(const json& demo_report);

}  // namespace everstep::ctl
