// The main() of every test program: GoogleTest with the watchdog.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/watchdog.h"

int main(int argc, char** argv) {
  // Test programs have threads, so a death test must start a fresh process instead of forking this one.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  testing::InitGoogleMock(&argc, argv);
  // GoogleTest owns its listeners and ends them before main's statics.
  testing::UnitTest::GetInstance()->listeners().Append(
      new everstep::test::Watchdog(everstep::test::Watchdog::DeadlineFromEnvironment()));
  return RUN_ALL_TESTS();
}
