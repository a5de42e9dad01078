// Driver of a Coordinator: keeps the configuration record off the loop, writes the commit records, collects events and
// step times, prints progress lines, and answers status requests.
#pragma once

#include <deque>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/loop.h"
#include "checkpoint/store.h"
#include "ps/config_record.h"
#include "ps/coordinator.h"
#include "ps/replica.h"
#include "ps/step_times.h"

namespace everstep {

// What a run looked like in this coordinator's time, for reports. Step times are in milliseconds, from the granting of
// the work to the commit.
struct RunHistory {
  Time started;  // first work given out
  Time last_commit;
  uint64_t steps = 0;  // training steps committed
  StepTimes step_ms;
  std::vector<float> lost_ms;  // of steps in which a member was lost; the first ten thousand
  std::deque<Event> events;    // the newest ones
  uint64_t events_dropped = 0;
  std::map<std::string, double> metrics;  // of the newest step
  double samples_per_second = 0;          // over the last seconds
};

class CoordinatorHost {
 public:
  struct Options {
    Coordinator::Options core;
    std::string records_path;                 // JSON lines, one a committed step; empty: none
    bool progress = true;                     // a line every two seconds on standard output
    bool continue_records = false;            // the file holds the commits before the first one
    std::shared_ptr<Store> checkpoints = {};  // null: none are taken
    size_t checkpoints_kept = 3;
  };

  // `changed` is called on the loop after the record has answered.
  CoordinatorHost(Loop& loop, Options options, std::unique_ptr<ConfigRecord> record, std::function<void()> changed);
  ~CoordinatorHost();

  // The records file could be opened.
  const Status& status() const { return status_; }
  Coordinator& core() { return core_; }
  // Takes what the core has produced besides messages. Loop thread, after every event.
  void Collect(Time now);
  const RunHistory& history() const { return history_; }

 private:
  void Propose(Coordinator::Proposal proposal);
  void CompleteCheckpoint(CheckpointWork work);
  void KeepCommit(const CommitRecord& record);
  void KeepEvent(Event event);
  void PrintProgress(Time now);

  Loop& loop_;
  const Options options_;
  Coordinator core_;
  const std::unique_ptr<ConfigRecord> record_;
  const std::function<void()> changed_;
  Status status_;
  std::ofstream records_;
  RunHistory history_;
  bool lost_member_ = false;                      // since the last commit
  std::deque<std::pair<Time, uint64_t>> recent_;  // commit times and samples of the last seconds
  uint64_t recent_samples_ = 0;                   // of all of recent_
  Time next_line_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  LoopThread disk_;  // last: ends first
};

}  // namespace everstep
