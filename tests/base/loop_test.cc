#include "base/loop.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <future>

namespace everstep {
namespace {

// A pipe whose ends close with it.
struct Pipe {
  Pipe() { EXPECT_EQ(pipe(fds), 0); }
  ~Pipe() {
    close(fds[0]);
    close(fds[1]);
  }
  int read_end() const { return fds[0]; }
  void Write() { EXPECT_EQ(write(fds[1], "x", 1), 1); }
  void Read() {
    char byte;
    EXPECT_EQ(read(fds[0], &byte, 1), 1);
  }
  int fds[2] = {-1, -1};
};

TEST(Loop, RunsPostedTasksInOrderAndNeverInsideThePost) {
  Loop loop;
  std::vector<int> order;
  loop.Post([&] {
    loop.Post([&] {
      order.push_back(3);
      loop.Stop();
    });
    order.push_back(1);
  });
  loop.Post([&] { order.push_back(2); });
  EXPECT_TRUE(order.empty());
  loop.Run();
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST(Loop, WhatWasPostedBeforeStopStillRuns) {
  Loop loop;
  int ran = 0;
  loop.Post([&] {
    for (int i = 0; i < 5; ++i) loop.Post([&] { ++ran; });
    loop.Stop();
    loop.Stop();
  });
  loop.Run();
  EXPECT_EQ(ran, 5);
}

TEST(Loop, RunsAgainAfterAStop) {
  Loop loop;
  for (int i = 0; i < 3; ++i) {
    bool ran = false;
    loop.Post([&] {
      ran = true;
      loop.Stop();
    });
    loop.Run();
    EXPECT_TRUE(ran);
  }
}

TEST(Loop, AStopThatComesFirstIsNotLost) {
  Loop loop;
  loop.Stop();
  loop.Run();
}

TEST(Loop, ThreadsPostInTheirOwnOrderAndWakeASleepingLoop) {
  constexpr int kThreads = 4;
  constexpr int kPosts = 5000;
  std::vector<std::vector<int>> seen(kThreads);
  {
    LoopThread runner;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kPosts; ++i) runner.loop().Post([&seen, t, i] { seen[t].push_back(i); });
      });
    }
    for (std::thread& thread : threads) thread.join();
    runner.Call([] {});
  }
  for (const std::vector<int>& mine : seen) {
    ASSERT_EQ(mine.size(), static_cast<size_t>(kPosts));
    EXPECT_TRUE(std::is_sorted(mine.begin(), mine.end()));
  }
}

TEST(Loop, StopsFromOtherThreads) {
  for (int i = 0; i < 100; ++i) {
    Loop loop;
    std::thread other([&] { loop.Stop(); });
    loop.Run();
    other.join();
  }
}

TEST(Loop, KnowsItsThread) {
  LoopThread runner;
  bool inside = false;
  runner.Call([&] { inside = runner.loop().InLoop(); });
  EXPECT_TRUE(inside);
  EXPECT_FALSE(runner.loop().InLoop());
  Loop idle;
  EXPECT_TRUE(idle.InLoop());
}

TEST(LoopDeathTest, TimersBelongToItsThread) {
  EXPECT_DEATH(
      {
        LoopThread runner;
        runner.Call([] {});
        runner.loop().At(Time{}, [] {});
      },
      "belong to the loop's thread");
}

TEST(Loop, TimersFireInOrderOfTimeThenOfAsking) {
  Loop loop;
  const Time now = SteadyNow();
  std::vector<int> order;
  loop.At(now + Duration(3'000'000), [&] {
    order.push_back(4);
    loop.Stop();
  });
  loop.At(now + Duration(1'000'000), [&] { order.push_back(2); });
  loop.At(now + Duration(1'000'000), [&] { order.push_back(3); });
  loop.At(now, [&] { order.push_back(1); });
  loop.At(Time::Never(), [&] { order.push_back(0); });
  loop.Run();
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 4}));
}

TEST(Loop, TimersAreNeverEarly) {
  Loop loop;
  const Time due = SteadyNow() + std::chrono::milliseconds(2);
  Time fired;
  loop.At(due, [&] {
    fired = SteadyNow();
    loop.Stop();
  });
  loop.Run();
  EXPECT_GE(fired, due);
}

TEST(Loop, CancelledTimersDoNotFire) {
  Loop loop;
  const Time now = SteadyNow();
  bool fired = false;
  const Loop::TimerId before = loop.At(now, [&] { fired = true; });
  loop.Cancel(before);
  loop.Cancel(before);
  loop.Cancel(12345);
  Loop::TimerId due = 0;
  Loop::TimerId own = 0;
  own = loop.At(now, [&] {
    loop.Cancel(own);  // is running already
    loop.Cancel(due);  // is due in this very round
    loop.At(now, [&] { loop.Stop(); });
  });
  due = loop.At(now, [&] { fired = true; });
  loop.Run();
  EXPECT_FALSE(fired);
}

TEST(Loop, WatchesForAsLongAsThereIsSomethingToRead) {
  Loop loop;
  Pipe pipe;
  int calls = 0;
  pipe.Write();
  pipe.Write();
  loop.Watch(pipe.read_end(), [&] {
    pipe.Read();
    if (++calls == 2) loop.Stop();
  });
  loop.Run();
  EXPECT_EQ(calls, 2);
}

TEST(Loop, AWatchMayEndItselfAndOthers) {
  Loop loop;
  Pipe a;
  Pipe b;
  a.Write();
  b.Write();
  int calls = 0;
  const auto once = [&] {  // both are ready in the same round; whichever comes first ends both
    ++calls;
    loop.Unwatch(a.read_end());
    loop.Unwatch(b.read_end());
    loop.At(SteadyNow() + std::chrono::milliseconds(1), [&] { loop.Stop(); });
  };
  loop.Watch(a.read_end(), once);
  loop.Watch(b.read_end(), once);
  loop.Run();
  EXPECT_EQ(calls, 1);
}

TEST(Loop, IdleChecksRunAfterCallbacksAndKeepTheLoopAwakeWhileTheyWant) {
  Loop loop;
  int produced = 0;
  int consumed = 0;
  int rounds = 0;
  loop.AddIdle([&] {
    consumed = produced;  // sees what this round's callbacks did
    if (produced == 0) return false;
    if (++rounds == 10) loop.Stop();
    return true;
  });
  loop.Post([&] { produced = 5; });
  loop.Run();
  EXPECT_EQ(consumed, 5);
  EXPECT_EQ(rounds, 10);
}

TEST(Loop, AnIdleCheckMayRemoveItself) {
  Loop loop;
  int calls = 0;
  Loop::IdleId id = 0;
  id = loop.AddIdle([&, keep = std::make_shared<int>(1)] {
    loop.RemoveIdle(id);
    calls += *keep;  // what it captured must still be there
    loop.At(SteadyNow() + std::chrono::milliseconds(1), [&] { loop.Stop(); });
    return false;
  });
  loop.Run();
  EXPECT_EQ(calls, 1);
}

TEST(Loop, TimersThatAreAlwaysDueDoNotStarveTheRest) {
  Loop loop;
  int fired = 0;
  std::function<void()> again = [&] {
    if (++fired < 100'000) loop.At(Time{}, again);
  };
  loop.At(Time{}, again);
  loop.At(SteadyNow() + std::chrono::milliseconds(1), [&] { loop.Post([&] { loop.Stop(); }); });
  loop.Run();
  EXPECT_LT(fired, 100'000);
}

TEST(LoopThread, CallWaitsForItsTask) {
  LoopThread runner;
  int value = 0;
  for (int i = 0; i < 1000; ++i) runner.Call([&] { ++value; });
  EXPECT_EQ(value, 1000);
}

TEST(LoopDeathTest, ARunningLoopCannotBeDestroyed) {
  EXPECT_DEATH(
      {
        auto* loop = new Loop;
        std::promise<void> running;
        std::thread thread([&] {
          loop->Post([&] { running.set_value(); });
          loop->Run();
        });
        running.get_future().wait();
        delete loop;
      },
      "cannot be destroyed");
}

}  // namespace
}  // namespace everstep
