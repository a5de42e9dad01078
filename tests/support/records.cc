#include "tests/support/records.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"

namespace everstep::test {
namespace {

using nlohmann::json;

CommitLine Parse(const json& in) {
  CommitLine commit;
  in.at("step").get_to(commit.step);
  in.at("ballot").get_to(commit.ballot);
  in.at("digest").get_to(commit.digest);
  in.at("previous").get_to(commit.previous);
  in.at("learning_rate").get_to(commit.learning_rate);
  in.at("scale").get_to(commit.scale);
  in.at("members").get_to(commit.members);
  in.at("granted_ms").get_to(commit.granted_ms);
  in.at("sealed_ms").get_to(commit.sealed_ms);
  in.at("committed_ms").get_to(commit.committed_ms);
  // A metric that is no number is written as null.
  for (const auto& [name, value] : in.at("metrics").items()) {
    commit.metrics[name] = value.is_number() ? value.get<double>() : std::nan("");
  }
  for (const json& c : in.at("contributors")) {
    ContributorLine line;
    c.at("worker").get_to(line.worker);
    c.at("name").get_to(line.name);
    c.at("base").get_to(line.base);
    c.at("epoch").get_to(line.epoch);
    c.at("ranges").get_to(line.ranges);
    c.at("weight").get_to(line.weight);
    commit.contributors.push_back(std::move(line));
  }
  return commit;
}

Status Wrong(const std::string& what) { return {Code::kCorrupt, "records: " + what}; }

}  // namespace

uint64_t ContributorLine::samples() const {
  uint64_t sum = 0;
  for (const auto& [begin, end] : ranges) sum += end - begin;
  return sum;
}

bool CommitLine::Names(const std::string& worker_name) const {
  return std::any_of(contributors.begin(), contributors.end(), [&](const auto& c) { return c.name == worker_name; });
}

uint64_t CommitLine::samples() const {
  uint64_t sum = 0;
  for (const ContributorLine& c : contributors) sum += c.samples();
  return sum;
}

std::vector<CommitLine> ReadCommits(const std::string& path) {
  const Result<std::string> text = ReadFile(path);
  std::vector<CommitLine> commits;
  if (!text.ok()) return commits;
  std::istringstream lines(text->substr(0, text->rfind('\n') + 1));
  for (std::string line; std::getline(lines, line);) {
    const json in = json::parse(line);
    if (in.contains("step")) commits.push_back(Parse(in));
  }
  return commits;
}

Result<std::vector<CommitLine>> ReadAllCommits(const std::vector<std::string>& paths) {
  std::map<uint64_t, CommitLine> steps;
  for (const std::string& path : paths) {
    for (CommitLine& line : ReadCommits(path)) {
      const auto it = steps.find(line.step);
      if (it != steps.end() && it->second.digest != line.digest) {
        return Status(Code::kCorrupt, "two histories of step " + std::to_string(line.step));
      }
      if (it == steps.end() || line.committed_ms < it->second.committed_ms) steps[line.step] = std::move(line);
    }
  }
  std::vector<CommitLine> all;
  for (auto& [step, line] : steps) all.push_back(std::move(line));
  return all;
}

Status CheckChain(const std::vector<CommitLine>& commits, bool sync) {
  for (size_t i = 0; i < commits.size(); ++i) {
    const CommitLine& c = commits[i];
    const std::string here = "step " + std::to_string(c.step);
    if (c.step != i) return Wrong(here + " stands where step " + std::to_string(i) + " belongs");
    if (i > 0 && c.previous != commits[i - 1].digest) return Wrong(here + " does not follow the version before it");
    if (i > 0 && c.committed_ms < commits[i - 1].committed_ms)
      return Wrong(here + " was committed before the one before");
    double weights = 0;
    for (const ContributorLine& w : c.contributors) weights += w.weight;
    if (sync && std::abs(weights - 1) > 1e-9) return Wrong(here + ": the weights sum to " + std::to_string(weights));
  }
  return Status::Ok();
}

Status CheckLedger(const std::vector<CommitLine>& commits, uint64_t dataset, uint64_t epochs) {
  std::vector<std::vector<uint8_t>> seen(epochs, std::vector<uint8_t>(dataset, 0));
  for (const CommitLine& commit : commits) {
    if (commit.step == 0) continue;
    for (const ContributorLine& c : commit.contributors) {
      if (c.epoch >= epochs)
        return Wrong("step " + std::to_string(commit.step) + " uses epoch " + std::to_string(c.epoch));
      for (const auto& [begin, end] : c.ranges) {
        if (end > dataset) return Wrong("step " + std::to_string(commit.step) + " uses positions beyond the dataset");
        for (uint64_t i = begin; i < end; ++i) {
          if (seen[c.epoch][i]++ == 0) continue;
          return Wrong("position " + std::to_string(i) + " of epoch " + std::to_string(c.epoch) +
                       " is used again in step " + std::to_string(commit.step));
        }
      }
    }
  }
  for (uint64_t epoch = 0; epoch < epochs; ++epoch) {
    const auto missing = std::count(seen[epoch].begin(), seen[epoch].end(), 0);
    if (missing > 0)
      return Wrong(std::to_string(missing) + " samples of epoch " + std::to_string(epoch) + " were never used");
  }
  return Status::Ok();
}

std::vector<double> StepTimes(const std::vector<CommitLine>& commits) {
  std::vector<double> times;
  for (size_t i = 1; i < commits.size(); ++i) {
    times.push_back(commits[i].committed_ms - std::max(commits[i].granted_ms, commits[i - 1].committed_ms));
  }
  return times;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<long>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace everstep::test
