// A job's records file (--records) as a test reads it, and what it must show. Written apart from the code that writes
// it. Pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace everstep::test {

struct ContributorLine {
  std::string worker;  // its life, as in the status
  std::string name;
  uint64_t base = 0;
  uint64_t epoch = 0;
  std::vector<std::pair<uint64_t, uint64_t>> ranges;  // positions [first, second) of the epoch's order
  double weight = 0;

  uint64_t samples() const;
};

struct CommitLine {
  uint64_t step = 0;
  uint64_t ballot = 0;
  std::string digest;
  std::string previous;
  double learning_rate = 0;
  double scale = 1;
  uint64_t members = 0;
  // On the steady clock of the host: comparable with SteadyNow() of every process there.
  double granted_ms = 0;
  double sealed_ms = 0;
  double committed_ms = 0;
  std::map<std::string, double> metrics;
  std::vector<ContributorLine> contributors;

  bool Names(const std::string& worker_name) const;
  uint64_t samples() const;
};

// The commits that are wholly written by now. Empty when there is no file yet.
std::vector<CommitLine> ReadCommits(const std::string& path);

// What several coordinators of one job have committed together, in order. A step may be named twice, by the one that
// committed it and by the next one that found it; the first knows the times. An error when they tell different
// histories.
Result<std::vector<CommitLine>> ReadAllCommits(const std::vector<std::string>& paths);

// Steps follow one another from 0, each names the digest of the one before, and (sync) the weights of each sum to 1.
Status CheckChain(const std::vector<CommitLine>& commits, bool sync = true);

// Every position of every epoch before `epochs` is in exactly one contribution, and none beyond the dataset is.
Status CheckLedger(const std::vector<CommitLine>& commits, uint64_t dataset, uint64_t epochs);

// Of training steps: from the later of grant and previous commit to the commit, in milliseconds.
std::vector<double> StepTimes(const std::vector<CommitLine>& commits);

double Median(std::vector<double> values);  // 0 for none

}  // namespace everstep::test
