// Learning rates against values worked out by hand and against the recurrences that torch's schedulers use.
#include "ps/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

namespace everstep {
namespace {

OptimizerOptions Base(double rate) {
  OptimizerOptions optimizer;
  optimizer.learning_rate = rate;
  return optimizer;
}

std::vector<double> Rates(const ScheduleOptions& schedule, uint64_t steps, uint64_t job_steps = 0, double base = 1) {
  std::vector<double> rates;
  for (uint64_t step = 1; step <= steps; ++step) rates.push_back(LearningRate(Base(base), schedule, step, job_steps));
  return rates;
}

void ExpectNear(const std::vector<double>& got, const std::vector<double>& want) {
  EXPECT_THAT(got, testing::Pointwise(testing::DoubleNear(1e-15), want));
}

TEST(Schedule, Constant) {
  ExpectNear(Rates({}, 3, 0, 0.25), {0.25, 0.25, 0.25});
  EXPECT_EQ(LearningRate(Base(0.1), {}, UINT64_MAX, 0), 0.1);
}

TEST(Schedule, WarmUpReachesTheFullRateAtItsLastStep) {
  ScheduleOptions schedule;
  schedule.warmup_steps = 4;
  ExpectNear(Rates(schedule, 6, 0, 2), {0.5, 1, 1.5, 2, 2, 2});
  schedule.warmup_steps = 1;
  ExpectNear(Rates(schedule, 2), {1, 1});
}

TEST(Schedule, StepMultipliesByGamma) {
  ScheduleOptions schedule;
  schedule.kind = ScheduleKind::kStep;
  schedule.step_size = 3;
  schedule.gamma = 0.5;
  ExpectNear(Rates(schedule, 8), {1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25});
  schedule.warmup_steps = 2;
  ExpectNear(Rates(schedule, 4), {0.5, 1, 1, 0.5});
}

TEST(Schedule, CosineByHand) {
  ScheduleOptions schedule;
  schedule.kind = ScheduleKind::kCosine;
  schedule.total_steps = 4;
  const double half = std::sqrt(0.5);
  ExpectNear(Rates(schedule, 6), {1, (1 + half) / 2, 0.5, (1 - half) / 2, 0, 0});
  schedule.final_scale = 0.2;
  ExpectNear(Rates(schedule, 6), {1, 0.2 + 0.8 * (1 + half) / 2, 0.6, 0.2 + 0.8 * (1 - half) / 2, 0.2, 0.2});
  schedule.warmup_steps = 2;
  schedule.total_steps = 6;
  schedule.final_scale = 0;
  ExpectNear(Rates(schedule, 7), {0.5, 1, 1, (1 + half) / 2, 0.5, (1 - half) / 2, 0});
}

// torch.optim.lr_scheduler.CosineAnnealingLR.get_lr, the chained form.
TEST(Schedule, CosineFollowsTorchsRecurrence) {
  ScheduleOptions schedule;
  schedule.kind = ScheduleKind::kCosine;
  schedule.final_scale = 0.1;
  const double base = 0.3, floor = 0.03, length = 50;
  double rate = base;
  for (int epoch = 0; epoch < 50; ++epoch) {
    if (epoch > 0) {
      const double pi = std::numbers::pi;
      rate = (1 + std::cos(pi * epoch / length)) / (1 + std::cos(pi * (epoch - 1) / length)) * (rate - floor) + floor;
    }
    EXPECT_NEAR(LearningRate(Base(base), schedule, static_cast<uint64_t>(epoch) + 1, 50), rate, 1e-13) << epoch;
  }
}

TEST(Schedule, WsdWarmsUpStaysAndDecays) {
  ScheduleOptions schedule;
  schedule.kind = ScheduleKind::kWsd;
  schedule.warmup_steps = 2;
  schedule.decay_steps = 4;
  schedule.total_steps = 9;
  ExpectNear(Rates(schedule, 11), {0.5, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0, 0});
  schedule.final_scale = 0.5;
  ExpectNear(Rates(schedule, 11), {0.5, 1, 1, 1, 1, 1, 0.875, 0.75, 0.625, 0.5, 0.5});
}

TEST(Schedule, TheJobsLengthStandsInForTotalSteps) {
  for (ScheduleKind kind : {ScheduleKind::kCosine, ScheduleKind::kWsd}) {
    ScheduleOptions own, job;
    own.kind = job.kind = kind;
    own.decay_steps = job.decay_steps = 10;
    own.total_steps = 30;
    EXPECT_EQ(Rates(own, 40, 1000), Rates(job, 40, 30));
  }
}

TEST(Schedule, NeverLeavesTheRangeAndNeverRisesAfterTheWarmUp) {
  for (ScheduleKind kind : {ScheduleKind::kConstant, ScheduleKind::kStep, ScheduleKind::kCosine, ScheduleKind::kWsd}) {
    ScheduleOptions schedule;
    schedule.kind = kind;
    schedule.warmup_steps = 7;
    schedule.step_size = 5;
    schedule.decay_steps = 13;
    schedule.final_scale = 0.01;
    const std::vector<double> rates = Rates(schedule, 100, 61);
    for (size_t i = 0; i < rates.size(); ++i) {
      EXPECT_GT(rates[i], 0) << Name(kind) << " step " << i + 1;
      EXPECT_LE(rates[i], 1) << Name(kind) << " step " << i + 1;
      if (i >= 7) {
        EXPECT_LE(rates[i], rates[i - 1]) << Name(kind) << " step " << i + 1;
      }
    }
  }
}

void ExpectRefused(const ScheduleOptions& schedule, uint64_t job_steps, const std::string& key) {
  const Status status = Validate(schedule, job_steps);
  EXPECT_EQ(status.code(), Code::kInvalidArgument) << key;
  EXPECT_THAT(status.message(), testing::HasSubstr(key));
}

TEST(ScheduleValidate, CosineNeedsALength) {
  ScheduleOptions schedule;
  schedule.kind = ScheduleKind::kCosine;
  ExpectRefused(schedule, 0, "total-steps");
  EXPECT_TRUE(Validate(schedule, 1).ok());
  schedule.total_steps = 10;
  EXPECT_TRUE(Validate(schedule, 0).ok());
  schedule.warmup_steps = 9;
  EXPECT_TRUE(Validate(schedule, 0).ok());
  schedule.warmup_steps = 10;
  ExpectRefused(schedule, 0, "warmup-steps");
  schedule.warmup_steps = 0;
  for (double bad : {-0.1, 1.1, std::nan("")}) {
    schedule.final_scale = bad;
    ExpectRefused(schedule, 0, "final-scale");
  }
}

TEST(ScheduleValidate, WsdNeedsADecayThatFits) {
  ScheduleOptions schedule;
  schedule.kind = ScheduleKind::kWsd;
  schedule.warmup_steps = 4;
  schedule.decay_steps = 6;
  ExpectRefused(schedule, 0, "total-steps");
  EXPECT_TRUE(Validate(schedule, 10).ok());
  ExpectRefused(schedule, 9, "decay-steps");
  ExpectRefused(schedule, 4, "warmup-steps");
  schedule.decay_steps = 0;
  ExpectRefused(schedule, 10, "decay-steps");
}

TEST(ScheduleValidate, StepNeedsASizeAndAPositiveFactor) {
  ScheduleOptions schedule;
  schedule.kind = ScheduleKind::kStep;
  ExpectRefused(schedule, 0, "step-size");
  schedule.step_size = 1;
  EXPECT_TRUE(Validate(schedule, 0).ok());
  for (double bad : {0.0, -1.0, std::nan(""), static_cast<double>(INFINITY)}) {
    schedule.gamma = bad;
    ExpectRefused(schedule, 0, "gamma");
  }
}

TEST(ScheduleValidate, UnknownKind) {
  ScheduleOptions schedule;
  schedule.kind = static_cast<ScheduleKind>(9);
  ExpectRefused(schedule, 0, "schedule must be");
}

TEST(ScheduleDeathTest, StepsCountFromOne) { EXPECT_DEATH(LearningRate(Base(1), {}, 0, 0), "count from 1"); }

}  // namespace
}  // namespace everstep
