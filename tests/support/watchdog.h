// Ends a test that hangs, with the stacks of all its threads. tests/support/test_main.cc installs one in every test
// program; nothing else needs to know of it.
//
// The limit is for one TEST, in seconds: EVERSTEP_TEST_DEADLINE, by default kDefaultDeadline; 0 turns it off (for a
// debugger). CTest's own time limit, which says nothing about where the program hangs, is above it.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace everstep::test {

class Watchdog : public testing::EmptyTestEventListener {
 public:
  static constexpr std::chrono::seconds kDefaultDeadline{100};

  explicit Watchdog(std::chrono::nanoseconds deadline);
  ~Watchdog() override;

  // What the environment asks for.
  static std::chrono::nanoseconds DeadlineFromEnvironment();

  void OnTestStart(const testing::TestInfo& info) override;
  void OnTestEnd(const testing::TestInfo& info) override;

 private:
  void Watch();

  const std::chrono::nanoseconds deadline_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string running_;  // empty between tests
  std::chrono::steady_clock::time_point until_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace everstep::test
