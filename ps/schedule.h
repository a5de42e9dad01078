// The learning rate as a pure function of the training step that is about to be committed. The coordinator asks once a
// step and puts the answer into the seal, so that replicas never compute it themselves. Any thread.
//
// With s the training step (from 1), x = s - 1 the steps committed before it, W = warmup_steps, T = total_steps (or the
// job's own length) and f = final_scale, the rate is
//
//   base * min(1, s / W) * shape(x)
//
// The warm-up is linear (Goyal et al. 2017, arXiv:1706.02677, section 2.2); it starts above 0, because a first step at
// rate 0 would be a wasted one, and step W has the full rate. The shapes:
//
//   constant  1
//   step      gamma^floor(x / step_size)                 torch.optim.lr_scheduler.StepLR, last_epoch = x
//   cosine    f + (1 - f) * (1 + cos(pi * t)) / 2,       Loshchilov and Hutter 2017, arXiv:1608.03983, equation 5, as
//             t = (x - W) / (T - W) in [0, 1]            CosineAnnealingLR with T_max = T - W, begun after the warm-up
//   wsd       1 while x < T - D, then                    warm-up, stable, decay: Hu et al. 2024, arXiv:2404.06395; the
//             1 - (1 - f) * (x - (T - D)) / D            linear decay of Haegele et al. 2024, arXiv:2405.18392
//
// with D = decay_steps. The final scale is reached after T committed steps, and kept: step T itself still learns.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "schema/job.h"

namespace everstep {

// REQUIRES: step >= 1 and Validate(schedule, job_steps).ok(). `job_steps` is the job's length in training steps, 0 when
// it is not known.
double LearningRate(const OptimizerOptions& optimizer, const ScheduleOptions& schedule, uint64_t step,
                    uint64_t job_steps);

// Whether LearningRate has an answer for every step; the message names the key and what is allowed.
Status Validate(const ScheduleOptions& schedule, uint64_t job_steps);

}  // namespace everstep
