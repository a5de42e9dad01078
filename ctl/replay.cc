#include "ctl/replay.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <tuple>

#include "base/check.h"

namespace everstep::ctl {
namespace {

std::string Str(uint64_t number) { return std::to_string(number); }

Status Lacks(const std::string& what) { return {Code::kCorrupt, what}; }

// 16 hex digits.
Result<uint64_t> Id(const json& object, const char* key) {
  const std::string text = Text(object, key);
  if (text.size() != 16 || text.find_first_not_of("0123456789abcdef") != std::string::npos)
    return Lacks(std::string("no ") + key);
  return std::stoull(text, nullptr, 16);
}

Result<double> Real(const json& object, const char* key) {
  const json& value = At(object, key);
  if (!value.is_number()) return Lacks(std::string("no ") + key);
  return value.get<double>();
}

Result<uint64_t> Whole(const json& object, const char* key) {
  const json& value = At(object, key);
  if (!value.is_number_unsigned()) return Lacks(std::string("no ") + key);
  return value.get<uint64_t>();
}

Result<std::vector<SampleRange>> Ranges(const json& list, const char* key) {
  const json& pairs = At(list, key);
  if (!pairs.is_array()) return Lacks(std::string("no ") + key);
  std::vector<SampleRange> ranges;
  for (const json& pair : pairs) {
    const bool fine = pair.is_array() && pair.size() == 2 && pair[0].is_number_unsigned() &&
                      pair[1].is_number_unsigned() && pair[0].get<uint64_t>() < pair[1].get<uint64_t>();
    if (!fine) return Lacks(std::string(key) + " that are none");
    ranges.push_back({pair[0].get<uint64_t>(), pair[1].get<uint64_t>()});
  }
  return ranges;
}

Result<Contribution> ParseContribution(const json& c) {
  Contribution out;
  EVERSTEP_ASSIGN(out.worker.value, Id(c, "worker"));
  EVERSTEP_ASSIGN(out.base.value, Whole(c, "base"));
  EVERSTEP_ASSIGN(out.base_digest.value, Id(c, "base_digest"));
  EVERSTEP_ASSIGN(out.lease.id.value, Id(c, "lease"));
  EVERSTEP_ASSIGN(out.lease.epoch, Whole(c, "epoch"));
  EVERSTEP_ASSIGN(out.lease.ranges, Ranges(c, "ranges"));
  return out;
}

template <typename Kind>
Result<Kind> ByName(const json& job, const char* key, std::initializer_list<Kind> kinds) {
  for (Kind kind : kinds) {
    if (Text(job, key) == Name(kind)) return kind;
  }
  return Lacks(std::string("no ") + key + " that this program knows");
}

// The union of what was consumed and what a step consumes, sorted, touching ranges joined.
std::vector<SampleRange> Joined(std::vector<SampleRange> ranges) {
  std::sort(ranges.begin(), ranges.end());
  std::vector<SampleRange> out;
  for (const SampleRange& range : ranges) {
    if (!out.empty() && range.begin <= out.back().end) {
      out.back().end = std::max(out.back().end, range.end);
    } else {
      out.push_back(range);
    }
  }
  return out;
}

}  // namespace

// ---- Reading ----

Result<RecordedStep> ParseStep(const json& record) {
  RecordedStep step;
  Seal& seal = step.seal;
  EVERSTEP_ASSIGN(seal.id.step.value, Whole(record, "step"));
  EVERSTEP_ASSIGN(seal.id.ballot.value, Whole(record, "ballot"));
  EVERSTEP_ASSIGN(seal.digest.value, Id(record, "digest"));
  EVERSTEP_ASSIGN(seal.previous.value, Id(record, "previous"));
  EVERSTEP_ASSIGN(seal.learning_rate, Real(record, "learning_rate"));
  EVERSTEP_ASSIGN(seal.clip_norm, Real(record, "clip_norm"));
  EVERSTEP_ASSIGN(step.scale, Real(record, "scale"));
  const json& ledger = At(record, "ledger");
  EVERSTEP_ASSIGN(seal.ledger_after.epoch, Whole(ledger, "epoch"));
  EVERSTEP_ASSIGN(seal.ledger_after.consumed, Ranges(ledger, "consumed"));
  const json& contributors = At(record, "contributors");
  if (!contributors.is_array() || contributors.empty()) return Lacks("no contributors");
  for (const json& c : contributors) {
    EVERSTEP_ASSIGN(Contribution contribution, ParseContribution(c));
    EVERSTEP_ASSIGN(const double weight, Real(c, "weight"));
    seal.contributors.push_back(std::move(contribution));
    seal.weights.push_back(weight);
  }
  return step;
}

Result<JobSpec> ParseJob(const json& line) {
  JobSpec job;
  OptimizerOptions& o = job.optimizer;
  ScheduleOptions& s = job.schedule;
  job.name = Text(line, "job");
  EVERSTEP_ASSIGN(job.mode, (ByName<Mode>(line, "mode", {Mode::kSync, Mode::kSsp, Mode::kAsync})));
  EVERSTEP_ASSIGN(o.kind, (ByName<OptimizerKind>(line, "optimizer",
                                                 {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW})));
  EVERSTEP_ASSIGN(s.kind, (ByName<ScheduleKind>(line, "schedule",
                                                {ScheduleKind::kConstant, ScheduleKind::kStep, ScheduleKind::kCosine,
                                                 ScheduleKind::kWsd})));
  if (!At(line, "nesterov").is_boolean()) return Lacks("no nesterov");
  o.nesterov = Truth(line, "nesterov");
  EVERSTEP_ASSIGN(o.learning_rate, Real(line, "learning_rate"));
  EVERSTEP_ASSIGN(o.momentum, Real(line, "momentum"));
  EVERSTEP_ASSIGN(o.dampening, Real(line, "dampening"));
  EVERSTEP_ASSIGN(o.beta1, Real(line, "beta1"));
  EVERSTEP_ASSIGN(o.beta2, Real(line, "beta2"));
  EVERSTEP_ASSIGN(o.epsilon, Real(line, "epsilon"));
  EVERSTEP_ASSIGN(o.weight_decay, Real(line, "weight_decay"));
  EVERSTEP_ASSIGN(s.warmup_steps, Whole(line, "warmup_steps"));
  EVERSTEP_ASSIGN(s.total_steps, Whole(line, "total_steps"));
  EVERSTEP_ASSIGN(s.step_size, Whole(line, "step_size"));
  EVERSTEP_ASSIGN(s.gamma, Real(line, "gamma"));
  EVERSTEP_ASSIGN(s.final_scale, Real(line, "final_scale"));
  EVERSTEP_ASSIGN(s.decay_steps, Whole(line, "decay_steps"));
  EVERSTEP_ASSIGN(job.clip_norm, Real(line, "clip_norm"));
  EVERSTEP_ASSIGN(job.batch, Whole(line, "batch"));
  EVERSTEP_ASSIGN(job.epochs, Whole(line, "epochs"));
  EVERSTEP_ASSIGN(job.max_steps, Whole(line, "max_steps"));
  EVERSTEP_ASSIGN(job.seed, Whole(line, "seed"));
  if (job.batch == 0) return Lacks("a batch of nothing");
  return job;
}

// ---- Seals ----

std::vector<std::string> SealReplay::Add(const RecordedStep& step) {
  const Seal& seal = step.seal;
  std::vector<std::string> wrong = CheckContributors(seal);
  if (SealDigest(seal) != seal.digest)
    wrong.push_back("its digest is not that of what it says: something of it was changed");
  if (seal.id.step.value > 0) {
    const double rate = Rate(seal.id.step.value);
    if (rate >= 0 && std::abs(rate - seal.learning_rate) > 1e-12 * std::max(1.0, std::abs(rate))) {
      wrong.push_back("its learning rate is " + std::to_string(seal.learning_rate) + ", the job's settings make it " +
                      std::to_string(rate));
    }
  }
  if (seal.clip_norm == 0 && step.scale != 1) wrong.push_back("it was clipped, which the job does not ask for");
  if (std::string ledger = CheckLedger(seal); !ledger.empty()) wrong.push_back(std::move(ledger));
  // What follows is held against what this step says, so that one fault is not found in all later steps again.
  ledger_ = seal.ledger_after;
  digests_.resize(seal.id.step.value + 1);
  digests_.push_back(seal.digest);
  return wrong;
}

std::vector<std::string> SealReplay::CheckContributors(const Seal& seal) const {
  std::vector<std::string> wrong;
  const auto place = [](const Contribution& c) {
    return std::tuple(c.lease.ranges.empty() ? 0 : c.lease.ranges.front().begin, c.worker, c.lease.id);
  };
  for (size_t i = 0; i < seal.contributors.size(); ++i) {
    const Contribution& c = seal.contributors[i];
    const bool known = c.base.value < digests_.size() && c.base <= seal.id.step;
    if (!known || digests_[c.base.value] != c.base_digest)
      wrong.push_back("a contribution is based on a version that this history does not have");
    if (i > 0 && place(c) < place(seal.contributors[i - 1])) wrong.push_back("its contributors are not in order");
  }
  return wrong;
}

std::string SealReplay::CheckLedger(const Seal& seal) {
  LedgerState after = ledger_;
  for (const Contribution& c : seal.contributors) {
    if (c.lease.ranges.empty()) continue;
    if (c.lease.epoch != after.epoch)
      return "it has samples of epoch " + Str(c.lease.epoch) + " in epoch " + Str(after.epoch);
    after.consumed.insert(after.consumed.end(), c.lease.ranges.begin(), c.lease.ranges.end());
  }
  uint64_t sum = 0;
  for (const SampleRange& range : after.consumed) sum += range.size();
  after.consumed = Joined(std::move(after.consumed));
  for (const SampleRange& range : after.consumed) sum -= range.size();
  if (sum > 0) return Str(sum) + " of its samples were consumed before";
  const bool one = after.consumed.size() == 1 && after.consumed.front().begin == 0;
  // The end of the first epoch tells how long all are.
  if (!dataset_ && one && seal.ledger_after.epoch == after.epoch + 1) dataset_ = after.consumed.front().end;
  if (dataset_ && one && after.consumed.front().end == *dataset_) after = {after.epoch + 1, {}};
  if (after == seal.ledger_after) return {};
  return "the ledger after it is not the one before and its samples";
}

// As docs/job-file.md has it; negative when the length of the job is not known and the schedule needs it.
double SealReplay::Rate(uint64_t step) const {
  const ScheduleOptions& s = job_.schedule;
  uint64_t length = s.total_steps;
  if (length == 0 && dataset_ && job_.epochs > 0) length = job_.epochs * ((*dataset_ + job_.batch - 1) / job_.batch);
  if (s.total_steps == 0 && job_.max_steps > 0 && (length == 0 || job_.max_steps < length)) length = job_.max_steps;
  const auto x = static_cast<double>(step - 1);
  double factor = 1;
  if (s.kind == ScheduleKind::kStep && s.step_size > 0)
    factor = std::pow(s.gamma, std::floor(x / static_cast<double>(s.step_size)));
  if (s.kind == ScheduleKind::kCosine || s.kind == ScheduleKind::kWsd) {
    const uint64_t from = s.kind == ScheduleKind::kCosine ? s.warmup_steps : length - std::min(length, s.decay_steps);
    if (length <= from) return -1;
    const double way = std::clamp((x - static_cast<double>(from)) / static_cast<double>(length - from), 0.0, 1.0);
    const double left = s.kind == ScheduleKind::kCosine ? (1 + std::cos(std::numbers::pi * way)) / 2 : 1 - way;
    factor = s.final_scale + (1 - s.final_scale) * left;
  }
  if (step < s.warmup_steps) factor *= static_cast<double>(step) / static_cast<double>(s.warmup_steps);
  return job_.optimizer.learning_rate * factor;
}

// ---- Parameters ----

ParameterReplay::ParameterReplay(JobSpec job, ParameterSpec spec) : job_(std::move(job)), spec_(std::move(spec)) {
  size_t at = 0;
  for (const TensorSpec& tensor : spec_.tensors) {
    runs_.push_back({at, tensor.bytes() / sizeof(float), tensor.dtype, tensor.role});
    at += runs_.back().size;
  }
  sum_.resize(at);
  arrays_["parameters"].resize(at);
  if (job_.optimizer.kind != OptimizerKind::kSgd) {
    arrays_["exp_avg"].resize(at);
    arrays_["exp_avg_sq"].resize(at);
  } else if (job_.optimizer.momentum != 0) {
    arrays_["momentum"].resize(at);
  }
}

void ParameterReplay::Begin(const Buffer& values) {
  EVERSTEP_CHECK(values.size() == spec_.bytes(), "the values are this model's");
  std::memcpy(arrays_["parameters"].data(), values.data(), values.size());
}

void ParameterReplay::SumRun(const Run& run, const std::vector<double>& weights,
                             const std::vector<Buffer>& contributions) {
  const auto element = [&](size_t c, size_t i) {
    float value;
    std::memcpy(&value, contributions[c].data() + (run.begin + i) * sizeof value, sizeof value);
    return value;
  };
  if (run.dtype == DType::kInt64) {
    for (size_t i = 0; i < run.size; i += 2) {
      int64_t most = INT64_MIN;
      for (const Buffer& contribution : contributions) {
        int64_t value;
        std::memcpy(&value, contribution.data() + (run.begin + i) * sizeof(float), sizeof value);
        most = std::max(most, value);
      }
      std::memcpy(&sum_[run.begin + i], &most, sizeof most);
    }
    return;
  }
  double total = 0;
  for (double weight : weights) total += weight;
  const bool mean = run.role == Role::kBuffer;
  const bool shares = total > 0 && std::isfinite(total);
  for (size_t i = 0; i < run.size; ++i) {
    float sum = 0;
    for (size_t c = 0; c < contributions.size(); ++c) {
      double weight = weights[c];
      if (mean) weight = shares ? weight / total : 1.0 / static_cast<double>(weights.size());
      sum += static_cast<float>(weight) * element(c, i);
    }
    sum_[run.begin + i] = sum;
  }
}

// One rounding an operation, as torch.optim's documentation has the formulas.
void ParameterReplay::Update(const Run& run, const RecordedStep& step) {
  std::vector<float>& parameters = arrays_["parameters"];
  if (run.role == Role::kBuffer) {
    std::copy_n(sum_.begin() + static_cast<long>(run.begin), run.size,
                parameters.begin() + static_cast<long>(run.begin));
    return;
  }
  const OptimizerOptions& o = job_.optimizer;
  const double rate = step.seal.learning_rate;
  const auto update = static_cast<double>(step.seal.id.step.value);
  const auto scale = static_cast<float>(step.scale);
  const auto decay = static_cast<float>(o.weight_decay);
  if (o.kind == OptimizerKind::kSgd) {
    const bool first = step.seal.id.step.value == 1;
    const auto momentum = static_cast<float>(o.momentum);
    const float take = first ? 1.0f : static_cast<float>(1 - o.dampening);
    float* const buffer = o.momentum != 0 ? arrays_["momentum"].data() : nullptr;
    for (size_t i = run.begin; i < run.begin + run.size; ++i) {
      float g = scale * sum_[i];
      if (decay != 0) g = g + decay * parameters[i];
      if (buffer != nullptr) {
        buffer[i] = (first ? 0.0f : momentum) * buffer[i] + take * g;
        g = o.nesterov ? g + momentum * buffer[i] : buffer[i];
      }
      parameters[i] = parameters[i] + static_cast<float>(-rate) * g;
    }
    return;
  }
  std::vector<float>& mean = arrays_["exp_avg"];
  std::vector<float>& square = arrays_["exp_avg_sq"];
  const double correction1 = 1 - std::pow(o.beta1, update);
  const double correction2 = 1 - std::pow(o.beta2, update);
  const auto shrink = o.kind == OptimizerKind::kAdamW ? static_cast<float>(1 - rate * o.weight_decay) : 1.0f;
  const auto take1 = static_cast<float>(1 - o.beta1);
  const auto take2 = static_cast<float>(1 - o.beta2);
  const auto root = static_cast<float>(std::sqrt(correction2));
  const auto step_size = static_cast<float>(-rate / correction1);
  for (size_t i = run.begin; i < run.begin + run.size; ++i) {
    float g = scale * sum_[i];
    if (o.kind == OptimizerKind::kAdam && decay != 0) g = g + decay * parameters[i];
    mean[i] = static_cast<float>(o.beta1) * mean[i] + take1 * g;
    square[i] = static_cast<float>(o.beta2) * square[i] + (take2 * g) * g;
    const float denominator = std::sqrt(square[i]) / root + static_cast<float>(o.epsilon);
    parameters[i] = shrink * parameters[i] + (step_size * mean[i]) / denominator;
  }
}

std::string ParameterReplay::Add(const RecordedStep& step, const std::vector<Buffer>& contributions) {
  EVERSTEP_CHECK(contributions.size() == step.seal.contributors.size(), "one for each contributor");
  for (const Run& run : runs_) SumRun(run, step.seal.weights, contributions);
  std::string wrong;
  if (step.seal.clip_norm > 0) {
    // The servers add the squares in another order; the scale itself is taken from the record.
    double squares = 0;
    for (const Run& run : runs_) {
      if (run.role != Role::kTrainable) continue;
      for (size_t i = run.begin; i < run.begin + run.size; ++i) squares += static_cast<double>(sum_[i]) * sum_[i];
    }
    const double wanted = std::min(1.0, step.seal.clip_norm / (std::sqrt(squares) + 1e-6));
    if (std::abs(wanted - step.scale) > 1e-6 * wanted) {
      wrong = "its gradient was clipped by " + std::to_string(step.scale) + ", its norm calls for " +
              std::to_string(wanted);
    }
  }
  for (const Run& run : runs_) Update(run, step);
  return wrong;
}

}  // namespace everstep::ctl
