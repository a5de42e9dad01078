#include <gtest/gtest.h>
#include <stdlib.h>

#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <string>

#include "tests/support/seed.h"
#include "tests/support/temp_dir.h"
#include "tests/support/watchdog.h"

namespace everstep::test {
namespace {

TEST(TempDirTest, IsThereThenGone) {
  std::string path;
  {
    TempDir dir;
    path = dir.path();
    EXPECT_TRUE(std::filesystem::is_directory(path));
    EXPECT_EQ(dir / "a", path + "/a");
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(SeedTest, EnvironmentReplaysIt) {
  setenv("EVERSTEP_SEED", "0x2a", 1);
  EXPECT_EQ(Seed(), 42u);
  unsetenv("EVERSTEP_SEED");
  EXPECT_NE(Seed(), Seed());
}

void HangUnderAWatchdog() {
  Watchdog watchdog(std::chrono::milliseconds(20));
  watchdog.OnTestStart(*testing::UnitTest::GetInstance()->current_test_info());
  std::mutex mutex;
  std::condition_variable never;
  std::unique_lock lock(mutex);
  never.wait(lock, [] { return false; });
}

TEST(WatchdogDeathTest, NamesTheHungTestAndPrintsItsStacks) {
  EXPECT_DEATH(HangUnderAWatchdog(), "WatchdogDeathTest.NamesTheHungTest.* still runs after .*(\n.*)*-- thread");
}

}  // namespace
}  // namespace everstep::test
