// What `everstep demo` has found, from four witnesses: the auditor (over the commit records of all coordinators), the
// last coordinator's report, the checkpoints, and the demo's own notes of what it did and saw. Pure.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "ctl/audit.h"
#include "ctl/demo_script.h"
#include "ctl/json.h"

namespace everstep::ctl {

// When steps were granted and committed (steady clock) and whose contributions they hold.
struct CommitTime {
  uint64_t step = 0;
  double at_ms = 0;
  std::vector<std::string> workers;
  double granted_ms = 0;
};
Result<std::vector<CommitTime>> ReadCommitTimes(const std::string& records);

// What lay in the folder of checkpoints when all was over, every byte of it read.
struct CheckpointsFound {
  uint64_t complete = 0;
  std::vector<std::string> broken;  // which and why
  uint64_t version = 0;             // of the newest complete one; 0: there is none
  std::string digest;               // ... of that version, as its manifest has it
  std::string label;
};

// All times on the steady clock.
struct DemoNotes {
  double started_ms = 0;  // of the demo
  double ready_ms = 0;    // every process of the first line-up was there
  double ended_ms = 0;    // the last process had ended
  std::vector<DoneAct> acts;
  bool all_acts_seen = false;
  size_t processes = 0;
  double accuracy_wanted = 0;
  json events = json::array();            // of all coordinators, in order
  std::vector<std::string> coordinators;  // who has coordinated, in order
  std::vector<std::string> servers;       // who has held parameters, in the order in which they came
  CheckpointsFound checkpoints;
};

// The whole report, as documented in docs/reports.md. `report` is the last coordinator's.
json DemoReport(const DemoNotes& notes, const json& report, const Audit& audit, const std::vector<CommitTime>& commits);

// What is wrong with it, one line each; empty when the demo has passed.
std::vector<std::string> Shortcomings(const json& demo_report);

std::string DemoText(const json& demo_report);

}  // namespace everstep::ctl
