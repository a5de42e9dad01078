// Drives a loop from a test's thread.
#pragma once

#include <functional>

#include "base/loop.h"

namespace everstep::test {

inline constexpr Duration kPatience = std::chrono::seconds(30);

// Runs the loop until `done` holds; false when it does not within `patience`. Looks after every round, and every few
// milliseconds for what changes on other threads.
inline bool RunUntil(Loop& loop, const std::function<bool()>& done, Duration patience = kPatience) {
  constexpr Duration kLook = std::chrono::milliseconds(5);
  bool held = false;
  const Time deadline = SteadyNow() + patience;
  const Loop::IdleId idle = loop.AddIdle([&] {
    held = held || done();
    if (held) loop.Stop();
    return false;
  });
  Loop::TimerId timer = 0;
  std::function<void()> look = [&] {
    if (SteadyNow() >= deadline) {
      loop.Stop();
    } else {
      timer = loop.At(std::min(SteadyNow() + kLook, deadline), look);
    }
  };
  look();
  loop.Run();
  loop.RemoveIdle(idle);
  loop.Cancel(timer);
  return held;
}

}  // namespace everstep::test
