#include "worker/stop_signal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <future>
#include <iostream>

namespace everstep {
namespace {

TEST(StopSignal, TheFirstSignalCallsTheFunctionOnAnotherThread) {
  for (int signal : {SIGTERM, SIGINT}) {
    std::promise<std::thread::id> called;
    StopSignal stop([&called] { called.set_value(std::this_thread::get_id()); });
    kill(getpid(), signal);
    EXPECT_NE(called.get_future().get(), std::this_thread::get_id());
  }
}

TEST(StopSignal, WithoutASignalNothingIsCalled) {
  bool called = false;
  {
    StopSignal stop([&called] { called = true; });
  }
  EXPECT_FALSE(called);
}

TEST(StopSignalDeathTest, TheSecondSignalEndsTheProcess) {
  EXPECT_EXIT(
      {
        std::promise<void> first;
        StopSignal stop([&first] { first.set_value(); });
        kill(getpid(), SIGTERM);
        first.get_future().wait();
        kill(getpid(), SIGTERM);
        for (;;) pause();
      },
      testing::ExitedWithCode(130), "");
}

TEST(StopSignalDeathTest, AfterwardsSignalsHaveTheirUsualEffect) {
  EXPECT_EXIT(
      {
        {
          StopSignal stop([] {});
        }
        kill(getpid(), SIGTERM);
        for (;;) pause();
      },
      testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace everstep
