// The bench's results: a table for people and one JSON object for programs.
#pragma once

#include <string>
#include <vector>

#include "bench/step/contest.h"

namespace everstep::bench {

struct CellResult {
  Cell cell;
  std::vector<Measured> measured;
};

// What it ran on, and how busy that was.
struct Machine {
  std::string processor;
  std::string kernel;
  unsigned cores = 0;
  double memory_gib = 0;
  double load_before = 0;  // runnable processes, average of the last minute
  double load_after = 0;
};
Machine DescribeMachine();
double LoadAverage();

// One cell. Ratios are medians over the rounds of (this one's time / the other's in the same round).
std::string CellTable(const CellResult& result);
std::string ToJson(const Machine& machine, const std::string& command, const std::vector<CellResult>& results);

}  // namespace everstep::bench
