#include "ps/step_times.h"

#include <gtest/gtest.h>

namespace everstep {
namespace {

TEST(StepTimes, AreExactWhileTheyAreFew) {
  StepTimes times;
  EXPECT_EQ(times.Percentile(0.5), 0);
  EXPECT_EQ(times.max(), 0);
  for (int i = 1; i <= 101; ++i) times.Add(static_cast<float>(102 - i));
  EXPECT_EQ(times.Percentile(0), 1);
  EXPECT_EQ(times.Percentile(0.5), 51);
  EXPECT_EQ(times.Percentile(0.99), 100);
  EXPECT_EQ(times.Percentile(1), 101);
  EXPECT_EQ(times.max(), 101);
}

// Of very many, early and late ones count alike, and the longest is never forgotten.
TEST(StepTimes, AreAFairSampleOfMany) {
  StepTimes times;
  times.Add(5000);
  for (int i = 0; i < 500'000; ++i) times.Add(static_cast<float>(i % 1000));
  for (int i = 0; i < 500'000; ++i) times.Add(static_cast<float>(1000 + i % 1000));
  EXPECT_NEAR(times.Percentile(0.5), 1000, 60);
  EXPECT_NEAR(times.Percentile(0.9), 1800, 60);
  EXPECT_EQ(times.max(), 5000);
}

}  // namespace
}  // namespace everstep
