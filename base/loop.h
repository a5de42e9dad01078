// One thread that owns things: sockets, timers and cores live on a Loop and are touched by its thread alone.
//
// Post() may be called from any thread, everything else only on the loop's thread (methods check it). Callbacks run one
// after the other and never inside the call that asked for them. Within one round: posted functions first, then ready
// descriptors, then due timers.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace everstep {

class Loop {
 public:
  using Task = std::function<void()>;

  Loop();
  ~Loop();  // REQUIRES: not running
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Runs on the calling thread until Stop(). Functions posted before Stop() still run.
  void Run();
  // Any thread, any number of times.
  void Stop();

  // Any thread. Runs `task` on the loop's thread, in the order of posting. A task posted to a loop that never runs
  // again is dropped with the loop.
  void Post(Task task);

  // True on the loop's thread while it runs, and on any thread while it does not.
  bool InLoop() const;

  // A timer that fires once; its id may be cancelled until then.
  using TimerId = uint64_t;
  TimerId At(Time when, Task task);
  void Cancel(TimerId id);

  // Calls `ready` whenever `fd` is readable (level-triggered), until Unwatch(fd).
  void Watch(int fd, Task ready);
  void Unwatch(int fd);
  // The same for an `fd` that can be written, beside Watch.
  void WatchWritable(int fd, Task ready);
  void UnwatchWritable(int fd);

  // Runs after each round's callbacks, before the loop sleeps; returns true when there is more to do right now. For
  // sources whose descriptors are edge-triggered (ZeroMQ).
  using IdleId = uint64_t;
  IdleId AddIdle(std::function<bool()> check);
  void RemoveIdle(IdleId id);

 private:
  bool RunPosted();
  bool RunIdle();
  void RunTimers();
  void Poll(int timeout_ms);
  int TimeoutMs() const;

  int wake_fd_ = -1;
  std::atomic<bool> stop_{false};
  std::atomic<bool> wake_pending_{false};
  std::atomic<std::thread::id> thread_{};

  std::mutex mutex_;
  std::vector<Task> posted_;

  uint64_t next_id_ = 1;
  std::map<std::pair<Time, TimerId>, Task> timers_;
  std::map<TimerId, Time> timer_times_;
  std::map<int, std::shared_ptr<Task>> watches_;
  std::map<int, std::shared_ptr<Task>> writable_;
  std::map<IdleId, std::shared_ptr<std::function<bool()>>> idle_;
};

// A Loop with a thread of its own, for as long as the object lives.
class LoopThread {
 public:
  LoopThread() : thread_([this] { loop_.Run(); }) {}
  ~LoopThread() {
    loop_.Stop();
    thread_.join();
  }
  Loop& loop() { return loop_; }
  // Runs `task` on the loop and waits until it is done. Not from the loop's own thread.
  void Call(const std::function<void()>& task);

 private:
  Loop loop_;
  std::thread thread_;
};

}  // namespace everstep
