// [same-maths] A constant global batch: 1, 2 and 4 workers arrive at the same parameters but for rounding, and the same
// contributions at the same bits, in whatever order they arrive.
#include <cmath>
#include <cstring>
#include <fstream>

#include "tests/proofs/proof.h"

namespace everstep::test {
namespace {

constexpr double kAllowedDistance = 1e-4;

Result<std::vector<float>> ReadFloats(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  if (bytes.empty() || bytes.size() % sizeof(float) != 0) return Status(Code::kNotFound, "no parameters in " + path);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

struct Run {
  std::vector<float> parameters;
  std::vector<std::vector<std::pair<uint64_t, uint64_t>>> ranges;  // of each step, in the order of summation
};

// 50 training steps of a perceptron; with `jitter_seed` each worker takes a random while for each step.
Result<Run> Train(size_t workers, uint64_t jitter_seed) {
  Cluster cluster;
  EVERSTEP_RETURN_IF_ERROR(cluster.StartServers(
      2, {"--epochs=0", "--max-steps=50", "--batch=48", "--learning-rate=0.1", "--momentum=0.9", "--clip-norm=1",
          "--chunk-bytes=1024", "--workers=" + std::to_string(workers) + ":8", "--no-progress"}));
  for (size_t i = 0; i < workers; ++i) {
    Flags flags{"--model=mlp", "--dataset=997", "--dump=" + cluster.path("parameters" + std::to_string(i))};
    if (jitter_seed > 0) {
      flags.push_back("--jitter-ms=8");
      flags.push_back("--jitter-seed=" + std::to_string(jitter_seed * 100 + i));
    }
    EVERSTEP_RETURN_IF_ERROR(cluster.StartWorker("w" + std::to_string(i), std::move(flags)).status());
  }
  EVERSTEP_RETURN_IF_ERROR(cluster.WaitForCleanEnd());
  Run run;
  EVERSTEP_ASSIGN(run.parameters, ReadFloats(cluster.path("parameters0")));
  const std::vector<CommitLine> commits = cluster.commits();
  EVERSTEP_RETURN_IF_ERROR(CheckChain(commits));
  for (const CommitLine& commit : commits) {
    auto& step = run.ranges.emplace_back();
    for (const ContributorLine& c : commit.contributors) step.insert(step.end(), c.ranges.begin(), c.ranges.end());
    if (commit.step > 0 && commit.contributors.size() != workers)
      return Broken("a step had other members than all workers");
  }
  for (size_t i = 1; i < workers; ++i) {
    EVERSTEP_ASSIGN(const std::vector<float> other, ReadFloats(cluster.path("parameters" + std::to_string(i))));
    if (other != run.parameters) return Broken("two workers of one job ended with different parameters");
  }
  return run;
}

double RelativeDistance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{a[i]} * a[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace

Status ProveSameMaths(const ProofContext& context, json* figures) {
  EVERSTEP_ASSIGN(const Run one, Train(1, 0));
  EVERSTEP_ASSIGN(const Run two, Train(2, 0));
  EVERSTEP_ASSIGN(const Run four, Train(4, 0));
  const double d2 = RelativeDistance(one.parameters, two.parameters);
  const double d4 = RelativeDistance(one.parameters, four.parameters);
  (*figures)["relative_distance"] = {{"2_workers", d2}, {"4_workers", d4}};
  (*figures)["allowed"] = kAllowedDistance;
  (*figures)["parameters"] = one.parameters.size();
  if (!(d2 <= kAllowedDistance && d4 <= kAllowedDistance)) return Broken("the number of workers changed the result");
  const int shuffles = context.quick ? 2 : 5;
  for (int i = 1; i <= shuffles; ++i) {
    EVERSTEP_ASSIGN(const Run shuffled, Train(4, context.seed + static_cast<uint64_t>(i)));
    if (shuffled.ranges != four.ranges) return Broken("the shuffled run had other leases");
    if (shuffled.parameters != four.parameters) return Broken("the order of arrival changed the bits");
  }
  (*figures)["bit_equal_shuffles"] = shuffles;
  return Status::Ok();
}

}  // namespace everstep::test
