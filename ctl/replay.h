// The replay: computes again, from the commit records alone, what each step was: the digest of its seal, who is summed
// in which order and with what weight, the learning rate, the ledger after it. Given the contributions that the workers
// kept (schema/kept_contribution.h), the parameters and the optimizer's state as well.
//
// Nothing of the servers' own rooms is used: formulas are those of docs/reports.md and of torch.optim. Shared is only
// what names things: the digest of a seal is defined by schema/messages.h. Pure, single-threaded.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "ctl/json.h"
#include "schema/messages.h"

namespace everstep::ctl {

// A step as its record says it.
struct RecordedStep {
  Seal seal;
  double scale = 1;
};
// kCorrupt names what is missing or makes no sense.
Result<RecordedStep> ParseStep(const json& record);

// The settings of a job, from the first line of its records. kCorrupt when they are not all there: the records are of
// an older version.
Result<JobSpec> ParseJob(const json& job);

// Checks the seals of a job, one after the other. Returns what is wrong with each, in words.
class SealReplay {
 public:
  // `dataset`: samples of an epoch; nothing: found out where the second epoch begins.
  SealReplay(JobSpec job, std::optional<uint64_t> dataset) : job_(std::move(job)), dataset_(dataset) {}

  std::vector<std::string> Add(const RecordedStep& step);
  // Of version `version`.
  const std::vector<Digest>& digests() const { return digests_; }
  std::optional<uint64_t> dataset() const { return dataset_; }

 private:
  std::vector<std::string> CheckContributors(const Seal& seal) const;
  std::string CheckLedger(const Seal& seal);
  double Rate(uint64_t step) const;

  const JobSpec job_;
  std::optional<uint64_t> dataset_;
  std::vector<Digest> digests_{Digest{}};  // by version
  LedgerState ledger_;
};

// The arrays of a model, tensors end to end in the order of the spec without padding.
using Arrays = std::map<std::string, std::vector<float>>;

// Parameters and optimizer state, step by step. Contributions are Buffers as schema/kept_contribution.h has them.
class ParameterReplay {
 public:
  ParameterReplay(JobSpec job, ParameterSpec spec);

  // Version 1: the values that the initialisation contributed.
  void Begin(const Buffer& values);
  // REQUIRES: Begin; one contribution for each contributor, in order. What is wrong, "" for nothing.
  std::string Add(const RecordedStep& step, const std::vector<Buffer>& contributions);

  // Named as in a checkpoint's manifest: "parameters", and the optimizer's. Of int64 tensors, which no optimizer moves,
  // the two halves of each element lie in two floats' places, bit by bit.
  const Arrays& arrays() const { return arrays_; }
  const ParameterSpec& spec() const { return spec_; }

 private:
  struct Run {
    size_t begin = 0;  // in floats
    size_t size = 0;
    DType dtype = DType::kFloat32;
    Role role = Role::kTrainable;
  };
  void SumRun(const Run& run, const std::vector<double>& weights, const std::vector<Buffer>& contributions);
  void Update(const Run& run, const RecordedStep& step);

  const JobSpec job_;
  const ParameterSpec spec_;
  std::vector<Run> runs_;  // one a tensor
  std::vector<float> sum_;
  Arrays arrays_;
};

}  // namespace everstep::ctl
