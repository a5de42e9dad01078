#include "schema/job.h"

#include <algorithm>
#include <cmath>

namespace everstep {

std::string_view Name(Mode mode) {
  switch (mode) {
    case Mode::kSync: return "sync";
    case Mode::kSsp: return "ssp";
    case Mode::kAsync: return "async";
  }
  return "unknown";
}

std::string_view Name(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kSgd: return "sgd";
    case OptimizerKind::kAdam: return "adam";
    case OptimizerKind::kAdamW: return "adamw";
  }
  return "unknown";
}

std::string_view Name(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kConstant: return "constant";
    case ScheduleKind::kStep: return "step";
    case ScheduleKind::kCosine: return "cosine";
    case ScheduleKind::kWsd: return "wsd";
  }
  return "unknown";
}

Status Validate(const JobSpec& job) {
  const auto bad = [](std::string what) { return Status(Code::kInvalidArgument, "job: " + std::move(what)); };
  const OptimizerOptions& o = job.optimizer;
  if (job.name.empty() || job.name.size() > limits::kMaxNameBytes) return bad("name must have 1 to 256 bytes");
  if (static_cast<unsigned>(job.mode) > 2) return bad("mode must be sync, ssp or async");
  if (static_cast<unsigned>(o.kind) > 2) return bad("optimizer must be sgd, adam or adamw");
  if (static_cast<unsigned>(job.schedule.kind) > 3) return bad("schedule must be constant, step, cosine or wsd");
  const auto number = [](double x) { return std::isfinite(x) && x >= 0; };
  if (!number(o.learning_rate)) return bad("learning-rate must be 0 or more");
  if (!number(o.momentum) || !number(o.dampening) || !number(o.weight_decay)) {
    return bad("momentum, dampening and weight-decay must be 0 or more");
  }
  if (o.nesterov && (o.momentum == 0 || o.dampening != 0)) return bad("nesterov needs momentum and no dampening");
  if (!(o.beta1 >= 0 && o.beta1 < 1 && o.beta2 >= 0 && o.beta2 < 1)) return bad("beta1 and beta2 must be in [0, 1)");
  if (!number(o.epsilon)) return bad("epsilon must be 0 or more");
  if (!number(job.clip_norm)) return bad("clip-norm must be 0 (off) or more");
  if (job.batch == 0 || job.batch > (uint64_t{1} << 32)) return bad("batch must be 1 to 2^32");
  if (job.epochs == 0 && job.max_steps == 0) return bad("give epochs or max-steps, or the job never ends");
  if (job.servers == 0 || job.servers > limits::kMaxServers) return bad("servers must be 1 to 1024");
  if (job.replication > std::min<uint64_t>(job.servers, limits::kMaxReplication)) {
    return bad("replication must be at most the number of servers, and at most 7; 0: two as soon as there are two");
  }
  if (job.min_workers == 0) return bad("workers: the minimum must be 1 or more");
  if (job.max_workers < job.min_workers || job.max_workers > limits::kMaxMembers) {
    return bad("workers: the maximum must be between the minimum and 4096");
  }
  if (job.chunk_bytes < limits::kMinChunkBytes || job.chunk_bytes > limits::kMaxChunkBytes ||
      job.chunk_bytes % 64 != 0) {
    return bad("chunk-bytes must be a multiple of 64 from 64 to 16 MiB");
  }
  if (!(job.quorum > 0 && job.quorum <= 1)) return bad("quorum must be over 0 and at most 1");
  if (job.grace < Duration::zero() || job.grace > std::chrono::hours(24)) return bad("grace must be 0 to 24 h");
  if (job.staleness > limits::kMaxStaleness) return bad("staleness must be at most 65536 commits");
  if (!number(job.staleness_power)) return bad("staleness-power must be 0 or more");
  if (job.timeout < std::chrono::milliseconds(500) || job.timeout > std::chrono::hours(24)) {
    return bad("timeout must be 0.5 s to 24 h");
  }
  return Status::Ok();
}

}  // namespace everstep
