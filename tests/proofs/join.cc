// [join] A joiner of a 100 MB model takes part at the first step boundary after it has pulled; the others go on.
#include <algorithm>

#include "tests/proofs/proof.h"

namespace everstep::test {
namespace {

constexpr double kAllowedRatio = 2;

double EventTime(const json& status, const std::string& kind, const std::string& target) {
  const std::vector<json> events = EventsOf(status, kind, target);
  return events.empty() ? 0 : events.front().at("at_ms").get<double>();
}

}  // namespace

Status ProveJoin(const ProofContext& context, json* figures) {
  Cluster cluster;
  EVERSTEP_RETURN_IF_ERROR(cluster.StartServers(
      2, {"--epochs=0", "--max-steps=100000", "--batch=96", "--learning-rate=0.01", "--no-progress"}));
  const Flags flags{"--elements=25000000", "--dataset=100000", "--compute-ms=100"};
  for (const char* name : {"a", "b"}) EVERSTEP_RETURN_IF_ERROR(cluster.StartWorker(name, flags).status());
  const Duration patience = std::chrono::seconds(60);
  const uint64_t before_steps = context.quick ? 10 : 25;
  EVERSTEP_RETURN_IF_ERROR(cluster.WaitForStep(before_steps, patience));
  EVERSTEP_RETURN_IF_ERROR(cluster.StartWorker("joiner", flags).status());
  EVERSTEP_RETURN_IF_ERROR(cluster.WaitForEvent("worker-ready", "joiner", patience));
  EVERSTEP_ASSIGN(const json at_ready, cluster.AskStatus());
  EVERSTEP_RETURN_IF_ERROR(cluster.WaitForStep(at_ready.at("step").get<uint64_t>() + 5, patience));
  EVERSTEP_ASSIGN(const json status, cluster.AskStatus());
  const double joined = EventTime(status, "worker-joined", "joiner");
  const double ready = EventTime(status, "worker-ready", "joiner");
  std::vector<double> before;
  std::vector<double> during;
  uint64_t boundaries = 0;  // steps granted after it was ready and committed without it
  double entered = 0;
  double last = 0;
  for (const CommitLine& commit : cluster.commits()) {
    const double ms = commit.committed_ms - std::max(commit.granted_ms, last);
    last = commit.committed_ms;
    if (commit.step <= 2) continue;  // first touch of everything
    const bool names = commit.Names("joiner");
    if (names && entered == 0) entered = commit.granted_ms;
    if (commit.granted_ms > ready && !names && entered == 0) ++boundaries;
    if (commit.committed_ms < joined) before.push_back(ms);
    if (commit.committed_ms >= joined && !names && entered == 0) during.push_back(ms);
    if (names && entered == commit.granted_ms) during.push_back(ms);
  }
  const double median = Median(before);
  const double longest = during.empty() ? 0 : *std::max_element(during.begin(), during.end());
  (*figures)["pull_ms"] = ready - joined;
  (*figures)["steps_without_it_after_it_was_ready"] = boundaries;
  (*figures)["step_ms_before"] = {{"median", median},
                                  {"max", before.empty() ? 0 : *std::max_element(before.begin(), before.end())}};
  (*figures)["step_ms_during"] = {{"median", Median(during)}, {"max", longest}, {"steps", during.size()}};
  (*figures)["longest_over_median"] = longest / median;
  (*figures)["allowed_ratio"] = kAllowedRatio;
  if (entered == 0) return Broken("the joiner never took part");
  if (boundaries > 0) return Broken("a step was given out after the joiner was ready, without it");
  if (longest > kAllowedRatio * median)
    return Broken("the longest step during the join took " + std::to_string(longest / median) +
                  " times the median before");
  return Status::Ok();
}

}  // namespace everstep::test
