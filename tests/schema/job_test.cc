#include "schema/job.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

namespace everstep {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(Job, TheDefaultsMakeSense) {
  const Status status = Validate(JobSpec{});
  EXPECT_TRUE(status.ok()) << status.ToString();
}

// Each value that cannot be is refused by a message that names its key.
TEST(Job, BadValuesAreRefusedByName) {
  const std::vector<std::pair<const char*, std::function<void(JobSpec&)>>> bad = {
      {"name", [](JobSpec& j) { j.name = ""; }},
      {"name", [](JobSpec& j) { j.name = std::string(257, 'n'); }},
      {"mode", [](JobSpec& j) { j.mode = static_cast<Mode>(3); }},
      {"optimizer", [](JobSpec& j) { j.optimizer.kind = static_cast<OptimizerKind>(3); }},
      {"schedule", [](JobSpec& j) { j.schedule.kind = static_cast<ScheduleKind>(4); }},
      {"learning-rate", [](JobSpec& j) { j.optimizer.learning_rate = -0.1; }},
      {"learning-rate", [](JobSpec& j) { j.optimizer.learning_rate = kNan; }},
      {"learning-rate", [](JobSpec& j) { j.optimizer.learning_rate = kInf; }},
      {"momentum", [](JobSpec& j) { j.optimizer.momentum = -1; }},
      {"momentum", [](JobSpec& j) { j.optimizer.momentum = kNan; }},
      {"dampening", [](JobSpec& j) { j.optimizer.dampening = kInf; }},
      {"weight-decay", [](JobSpec& j) { j.optimizer.weight_decay = -1e-9; }},
      {"nesterov", [](JobSpec& j) { j.optimizer.nesterov = true; }},
      {"nesterov",
       [](JobSpec& j) {
         j.optimizer.nesterov = true;
         j.optimizer.momentum = 0.9;
         j.optimizer.dampening = 0.1;
       }},
      {"beta1", [](JobSpec& j) { j.optimizer.beta1 = 1; }},
      {"beta2", [](JobSpec& j) { j.optimizer.beta2 = kNan; }},
      {"epsilon", [](JobSpec& j) { j.optimizer.epsilon = -1; }},
      {"clip-norm", [](JobSpec& j) { j.clip_norm = kNan; }},
      {"clip-norm", [](JobSpec& j) { j.clip_norm = -1; }},
      {"batch", [](JobSpec& j) { j.batch = 0; }},
      {"batch", [](JobSpec& j) { j.batch = (uint64_t{1} << 32) + 1; }},
      {"epochs or max-steps", [](JobSpec& j) { j.epochs = 0; }},
      {"servers", [](JobSpec& j) { j.servers = 0; }},
      {"servers", [](JobSpec& j) { j.servers = 1025; }},
      {"replication", [](JobSpec& j) { j.replication = 2; }},
      {"replication",
       [](JobSpec& j) {
         j.servers = 20;
         j.replication = 8;
       }},
      {"minimum", [](JobSpec& j) { j.min_workers = 0; }},
      {"maximum", [](JobSpec& j) { j.min_workers = j.max_workers + 1; }},
      {"maximum", [](JobSpec& j) { j.max_workers = 4097; }},
      {"chunk-bytes", [](JobSpec& j) { j.chunk_bytes = 0; }},
      {"chunk-bytes", [](JobSpec& j) { j.chunk_bytes = 100; }},
      {"chunk-bytes", [](JobSpec& j) { j.chunk_bytes = limits::kMaxChunkBytes + 64; }},
      {"quorum", [](JobSpec& j) { j.quorum = 0; }},
      {"quorum", [](JobSpec& j) { j.quorum = 1.01; }},
      {"quorum", [](JobSpec& j) { j.quorum = kNan; }},
      {"grace", [](JobSpec& j) { j.grace = Duration(-1); }},
      {"grace", [](JobSpec& j) { j.grace = Duration::max(); }},  // would overflow the clock
      {"staleness", [](JobSpec& j) { j.staleness = UINT64_MAX; }},
      {"staleness-power", [](JobSpec& j) { j.staleness_power = -1; }},
      {"staleness-power", [](JobSpec& j) { j.staleness_power = kInf; }},
      {"timeout", [](JobSpec& j) { j.timeout = std::chrono::milliseconds(499); }},
      {"timeout", [](JobSpec& j) { j.timeout = std::chrono::hours(25); }},
  };
  for (size_t i = 0; i < bad.size(); ++i) {
    JobSpec job;
    bad[i].second(job);
    const Status status = Validate(job);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << "change " << i << " of " << bad[i].first;
    EXPECT_NE(status.message().find(bad[i].first), std::string::npos) << status.message();
  }
}

TEST(Job, ValuesAtTheirBoundsAreFine) {
  JobSpec job;
  job.name = std::string(256, 'n');
  job.optimizer.learning_rate = 0;
  job.batch = uint64_t{1} << 32;
  job.epochs = 0;
  job.max_steps = 1;
  job.servers = 1024;
  job.replication = limits::kMaxReplication;
  job.max_workers = job.min_workers = 4096;
  job.chunk_bytes = 64;
  job.grace = Duration::zero();
  job.staleness = 0;
  job.timeout = std::chrono::milliseconds(500);
  EXPECT_TRUE(Validate(job).ok()) << Validate(job).ToString();
}

// One setting, and everything that waits is derived from it in this order.
TEST(Job, TheLadderOfTimesIsInOrder) {
  for (const Duration timeout : {Duration(std::chrono::milliseconds(500)), Duration(std::chrono::seconds(30)),
                                 Duration(std::chrono::hours(24))}) {
    JobSpec job;
    job.timeout = timeout;
    EXPECT_GT(job.heartbeat(), Duration::zero());
    EXPECT_LT(job.heartbeat(), job.retransmit());
    EXPECT_LT(job.retransmit(), job.lease());
    EXPECT_LT(job.lease(), job.timeout);
    EXPECT_LT(job.timeout, job.progress_deadline());
  }
  EXPECT_EQ(JobSpec{}.lease(), std::chrono::seconds(3));
}

TEST(Job, KindsHaveNames) {
  EXPECT_EQ(Name(Mode::kSsp), "ssp");
  EXPECT_EQ(Name(OptimizerKind::kAdamW), "adamw");
  EXPECT_EQ(Name(ScheduleKind::kWsd), "wsd");
  EXPECT_EQ(Name(static_cast<Mode>(9)), "unknown");
}

}  // namespace
}  // namespace everstep
