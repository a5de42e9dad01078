// The job: what one job file says. The servers hold it and hand it to whoever joins, so that two workers can never
// disagree about a hyper-parameter. Plain data; how it is read from TOML and flags is ps/job_options.h, how it travels
// is schema/codec.h.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/limits.h"
#include "base/status.h"

namespace everstep {

enum class Mode : uint8_t { kSync = 0, kSsp = 1, kAsync = 2 };
enum class OptimizerKind : uint8_t { kSgd = 0, kAdam = 1, kAdamW = 2 };
enum class ScheduleKind : uint8_t { kConstant = 0, kStep = 1, kCosine = 2, kWsd = 3 };

// Defaults and meaning as in torch::optim.
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kSgd;
  double learning_rate = 0.01;
  double momentum = 0.0;   // SGD
  double dampening = 0.0;  // SGD
  bool nesterov = false;   // SGD
  double beta1 = 0.9;      // Adam, AdamW
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;  // L2 for SGD and Adam, decoupled for AdamW

  friend bool operator==(const OptimizerOptions&, const OptimizerOptions&) = default;
};

// The learning rate as a function of the committed step; ps/schedule.h has the formulas.
struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::kConstant;
  uint64_t warmup_steps = 0;  // linear from 0 to the rate, all kinds
  uint64_t total_steps = 0;   // cosine and wsd: where the rate reaches `final_scale`; 0 = the job's own length
  uint64_t step_size = 0;     // step: multiply by gamma every step_size steps
  double gamma = 0.1;
  double final_scale = 0.0;  // cosine, wsd: last rate / base rate
  uint64_t decay_steps = 0;  // wsd: length of the final decay

  friend bool operator==(const ScheduleOptions&, const ScheduleOptions&) = default;
};

struct JobSpec {
  std::string name = "everstep";
  Mode mode = Mode::kSync;

  OptimizerOptions optimizer;
  ScheduleOptions schedule;
  double clip_norm = 0.0;  // global L2 norm of the weighted mean gradient; 0 = no clipping

  uint64_t batch = 64;     // samples per step over all members (sync); per contribution (ssp, async)
  uint64_t epochs = 1;     // passes over the data; 0 = until max_steps
  uint64_t max_steps = 0;  // training steps; 0 = until epochs are done
  uint64_t seed = 1;       // of the data permutation

  uint32_t servers = 1;       // servers that the first shard map waits for
  uint32_t replication = 0;   // copies of each chunk; 0: two as soon as there are two servers
  uint32_t min_workers = 1;   // fewer ready members: PAUSED
  uint32_t max_workers = 64;  // more are refused
  uint64_t chunk_bytes = limits::kDefaultChunkBytes;

  // sync: seal when this share of the granted members is whole and `grace` has passed since. 1 = wait for all.
  double quorum = 1.0;
  Duration grace = std::chrono::milliseconds(100);

  // ssp: how many contributions a member may be ahead of the slowest. async and ssp: contributions based on a version
  // more than `staleness` commits old are refused.
  uint64_t staleness = 8;
  double staleness_power = 0.5;  // async: weight = (1 + staleness)^-power

  // The one timing setting; the ladder below is derived from it.
  Duration timeout = std::chrono::seconds(30);

  // Every so many steps the copies of each chunk are compared by checksum; 0: never.
  uint64_t verify_replicas = 16;

  // What built-in workers run ("fashion-mnist-cnn", ...); free text for a user's own program.
  std::string task;

  // Copies of each chunk that this many servers keep.
  uint32_t Copies(size_t available) const {
    return static_cast<uint32_t>(std::min<size_t>(replication == 0 ? 2 : replication, std::max<size_t>(available, 1)));
  }

  Duration lease() const { return timeout / 10; }  // silence after which a member is excluded
  Duration heartbeat() const { return lease() / 6; }
  Duration retransmit() const { return lease() / 3; }          // unanswered protocol messages are sent again
  Duration progress_deadline() const { return timeout * 10; }  // a member that holds up a step for so long is excluded
  Duration linger() const { return timeout / 6; }              // how long servers stay after the end for latecomers

  friend bool operator==(const JobSpec&, const JobSpec&) = default;
};

// Whether the values make sense together; the message names the key and what is allowed.
Status Validate(const JobSpec& job);

std::string_view Name(Mode mode);
std::string_view Name(OptimizerKind kind);
std::string_view Name(ScheduleKind kind);

}  // namespace everstep
