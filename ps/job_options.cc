#include "ps/job_options.h"

#include <CLI/CLI.hpp>

#include "ps/schedule.h"

namespace everstep {
namespace {

constexpr const char* kGroup = "Job (each also a key of the job file)";

// "2:8" -> minimum and maximum; "4" -> at least and at most 4.
Status ParseWorkers(const std::string& text, JobSpec* job) {
  const Status bad(Code::kInvalidArgument, "workers must be MIN:MAX, e.g. 2:8; \"" + text + "\" is not");
  unsigned long low = 0;
  unsigned long high = 0;
  char rest = 0;
  const int fields = std::sscanf(text.c_str(), "%lu:%lu%c", &low, &high, &rest);
  if (fields == 1 && text.find_first_not_of("0123456789") == std::string::npos) high = low;
  if (fields != 1 && fields != 2) return bad;
  if (fields == 1 && high != low) return bad;
  if (low > UINT32_MAX || high > UINT32_MAX) return bad;
  job->min_workers = static_cast<uint32_t>(low);
  job->max_workers = static_cast<uint32_t>(high);
  return Status::Ok();
}

template <typename Enum>
Status ParseName(const std::string& key, const std::string& text, int count, Enum* value) {
  std::string known;
  for (int i = 0; i < count; ++i) {
    const auto candidate = static_cast<Enum>(i);
    if (Name(candidate) == text) {
      *value = candidate;
      return Status::Ok();
    }
    known += (i > 0 ? ", " : "") + std::string(Name(candidate));
  }
  return {Code::kInvalidArgument, key + " must be one of " + known + "; \"" + text + "\" is not"};
}

}  // namespace

void AddJobOptions(CLI::App& app, JobSpec* job, JobTexts* texts) {
  app.set_config("--job", "", "TOML file with the keys below");
  app.allow_config_extras(CLI::config_extras_mode::error);
  const auto add = [&](const char* name, auto& target, const char* help) {
    app.add_option(name, target, help)->group(kGroup)->capture_default_str();
  };
  add("--name", job->name, "Name of the job");
  add("--mode", texts->mode, "sync, ssp or async");
  add("--optimizer", texts->optimizer, "sgd, adam or adamw");
  add("--learning-rate", job->optimizer.learning_rate, "Base learning rate");
  add("--momentum", job->optimizer.momentum, "sgd: momentum");
  add("--dampening", job->optimizer.dampening, "sgd: dampening");
  app.add_flag("--nesterov", job->optimizer.nesterov, "sgd: Nesterov momentum")->group(kGroup);
  add("--beta1", job->optimizer.beta1, "adam, adamw");
  add("--beta2", job->optimizer.beta2, "adam, adamw");
  add("--epsilon", job->optimizer.epsilon, "adam, adamw");
  add("--weight-decay", job->optimizer.weight_decay, "L2 for sgd and adam, decoupled for adamw");
  add("--schedule", texts->schedule, "constant, step, cosine or wsd");
  add("--warmup-steps", job->schedule.warmup_steps, "Linear warm-up");
  add("--total-steps", job->schedule.total_steps, "cosine, wsd: steps until the final rate; 0: the job's length");
  add("--step-size", job->schedule.step_size, "step: steps between decays");
  add("--gamma", job->schedule.gamma, "step: factor of each decay");
  add("--final-scale", job->schedule.final_scale, "cosine, wsd: last rate / base rate");
  add("--decay-steps", job->schedule.decay_steps, "wsd: length of the final decay");
  add("--clip-norm", job->clip_norm, "Clip the gradient's global L2 norm; 0: off");
  add("--batch", job->batch, "Samples per step over all workers (sync), per contribution (ssp, async)");
  add("--epochs", job->epochs, "Passes over the data; 0: until max-steps");
  add("--max-steps", job->max_steps, "Training steps; 0: until the epochs are done");
  add("--seed", job->seed, "Of the order of samples and of built-in models");
  add("--servers", job->servers, "Servers that the job starts with");
  add("--replication", job->replication, "Copies of each chunk; 0: two as soon as there are two servers");
  add("--verify-replicas", job->verify_replicas, "Compare the copies every so many steps; 0: never");
  add("--workers", texts->workers, "MIN:MAX; with fewer than MIN the job pauses");
  add("--chunk-bytes", job->chunk_bytes, "Unit of transfer and placement");
  add("--quorum", job->quorum, "sync: share of the workers that must be whole; the rest gets `grace-ms`");
  add("--grace-ms", texts->grace_ms, "sync: how long a quorum waits for stragglers");
  add("--staleness", job->staleness, "ssp, async: oldest base version that counts");
  add("--staleness-power", job->staleness_power, "async: weight = (1 + staleness)^-power");
  add("--timeout-s", texts->timeout_s, "The one timing setting: lease = timeout/10, heartbeat = lease/6");
  add("--task", job->task, "What built-in workers run, e.g. fashion-mnist-cnn");
}

Status FinishJob(const JobTexts& texts, JobSpec* job) {
  EVERSTEP_RETURN_IF_ERROR(ParseName("mode", texts.mode, 3, &job->mode));
  EVERSTEP_RETURN_IF_ERROR(ParseName("optimizer", texts.optimizer, 3, &job->optimizer.kind));
  EVERSTEP_RETURN_IF_ERROR(ParseName("schedule", texts.schedule, 4, &job->schedule.kind));
  EVERSTEP_RETURN_IF_ERROR(ParseWorkers(texts.workers, job));
  if (!(texts.timeout_s > 0 && texts.timeout_s < 1e6))
    return {Code::kInvalidArgument, "timeout-s must be 0.5 to 86400"};
  if (!(texts.grace_ms >= 0 && texts.grace_ms < 1e9)) return {Code::kInvalidArgument, "grace-ms must be 0 or more"};
  job->timeout = Duration(static_cast<int64_t>(texts.timeout_s * 1e9));
  job->grace = Duration(static_cast<int64_t>(texts.grace_ms * 1e6));
  EVERSTEP_RETURN_IF_ERROR(Validate(*job));
  // A job that is measured in epochs gets its length with its dataset; the coordinator validates again then.
  const uint64_t assumed_length = job->max_steps > 0 ? job->max_steps : UINT32_MAX;
  return Validate(job->schedule, assumed_length);
}

}  // namespace everstep
