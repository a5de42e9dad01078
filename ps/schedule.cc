#include "ps/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

namespace everstep {
namespace {

uint64_t TotalSteps(const ScheduleOptions& schedule, uint64_t job_steps) {
  return schedule.total_steps != 0 ? schedule.total_steps : job_steps;
}

// How far x is on the way from `from` to `from + length`, within [0, 1].
double Progress(uint64_t x, uint64_t from, uint64_t length) {
  if (x <= from) return 0;
  return std::min(1.0, static_cast<double>(x - from) / static_cast<double>(length));
}

double Shape(const ScheduleOptions& schedule, uint64_t x, uint64_t job_steps) {
  const uint64_t total = TotalSteps(schedule, job_steps);
  const double final_scale = schedule.final_scale;
  switch (schedule.kind) {
    case ScheduleKind::kConstant: return 1;
    case ScheduleKind::kStep: return std::pow(schedule.gamma, static_cast<double>(x / schedule.step_size));
    case ScheduleKind::kCosine: {
      const double t = Progress(x, schedule.warmup_steps, total - schedule.warmup_steps);
      return final_scale + (1 - final_scale) * (1 + std::cos(std::numbers::pi * t)) / 2;
    }
    case ScheduleKind::kWsd:
      return 1 - (1 - final_scale) * Progress(x, total - schedule.decay_steps, schedule.decay_steps);
  }
  return 1;
}

}  // namespace

double LearningRate(const OptimizerOptions& optimizer, const ScheduleOptions& schedule, uint64_t step,
                    uint64_t job_steps) {
  EVERSTEP_CHECK(step >= 1, "training steps count from 1");
  const Status valid = Validate(schedule, job_steps);
  EVERSTEP_CHECK(valid.ok(), valid.message());
  double rate = optimizer.learning_rate * Shape(schedule, step - 1, job_steps);
  if (step < schedule.warmup_steps) {
    rate *= static_cast<double>(step) / static_cast<double>(schedule.warmup_steps);
  }
  return rate;
}

Status Validate(const ScheduleOptions& schedule, uint64_t job_steps) {
  const auto bad = [&](const std::string& what) {
    return Status(Code::kInvalidArgument, "schedule " + std::string(Name(schedule.kind)) + ": " + what);
  };
  const uint64_t total = TotalSteps(schedule, job_steps);
  switch (schedule.kind) {
    case ScheduleKind::kConstant: return Status::Ok();
    case ScheduleKind::kStep:
      if (schedule.step_size == 0) return bad("step-size must be 1 or more steps");
      if (!(schedule.gamma > 0 && std::isfinite(schedule.gamma))) return bad("gamma must be over 0");
      return Status::Ok();
    case ScheduleKind::kCosine:
    case ScheduleKind::kWsd: break;
    default: return Status(Code::kInvalidArgument, "schedule must be constant, step, cosine or wsd");
  }
  if (!(schedule.final_scale >= 0 && schedule.final_scale <= 1)) return bad("final-scale must be between 0 and 1");
  if (total == 0) return bad("the length of the job is not known; give total-steps (or max-steps)");
  const std::string length = std::to_string(total) + " steps in total";
  if (schedule.warmup_steps >= total) {
    return bad("warmup-steps is " + std::to_string(schedule.warmup_steps) + " and must be less than the " + length);
  }
  if (schedule.kind == ScheduleKind::kWsd &&
      (schedule.decay_steps == 0 || schedule.decay_steps > total - schedule.warmup_steps)) {
    return bad("decay-steps is " + std::to_string(schedule.decay_steps) + " and must be 1 to " +
               std::to_string(total - schedule.warmup_steps) + ", what " + length + " leave after the warm-up");
  }
  return Status::Ok();
}

}  // namespace everstep
