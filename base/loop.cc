#include "base/loop.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <future>

#include "base/check.h"

namespace everstep {

Loop::Loop() {
  wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  EVERSTEP_CHECK(wake_fd_ >= 0, "eventfd must work");
}

Loop::~Loop() {
  EVERSTEP_CHECK(thread_.load() == std::thread::id(), "a running loop cannot be destroyed");
  close(wake_fd_);
}

bool Loop::InLoop() const {
  const std::thread::id owner = thread_.load(std::memory_order_relaxed);
  return owner == std::thread::id() || owner == std::this_thread::get_id();
}

void Loop::Post(Task task) {
  {
    std::lock_guard lock(mutex_);
    posted_.push_back(std::move(task));
  }
  if (!wake_pending_.exchange(true)) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = write(wake_fd_, &one, sizeof one);
  }
}

void Loop::Stop() {
  stop_ = true;
  Post([] {});
}

Loop::TimerId Loop::At(Time when, Task task) {
  EVERSTEP_CHECK(InLoop(), "timers belong to the loop's thread");
  const TimerId id = next_id_++;
  timers_.emplace(std::pair(when, id), std::move(task));
  timer_times_.emplace(id, when);
  return id;
}

void Loop::Cancel(TimerId id) {
  EVERSTEP_CHECK(InLoop(), "timers belong to the loop's thread");
  if (auto it = timer_times_.find(id); it != timer_times_.end()) {
    timers_.erase({it->second, id});
    timer_times_.erase(it);
  }
}

void Loop::Watch(int fd, Task ready) {
  EVERSTEP_CHECK(InLoop(), "descriptors belong to the loop's thread");
  watches_[fd] = std::make_shared<Task>(std::move(ready));
}

void Loop::Unwatch(int fd) {
  EVERSTEP_CHECK(InLoop(), "descriptors belong to the loop's thread");
  watches_.erase(fd);
}

void Loop::WatchWritable(int fd, Task ready) {
  EVERSTEP_CHECK(InLoop(), "descriptors belong to the loop's thread");
  writable_[fd] = std::make_shared<Task>(std::move(ready));
}

void Loop::UnwatchWritable(int fd) {
  EVERSTEP_CHECK(InLoop(), "descriptors belong to the loop's thread");
  writable_.erase(fd);
}

Loop::IdleId Loop::AddIdle(std::function<bool()> check) {
  EVERSTEP_CHECK(InLoop(), "idle checks belong to the loop's thread");
  const IdleId id = next_id_++;
  idle_.emplace(id, std::make_shared<std::function<bool()>>(std::move(check)));
  return id;
}

void Loop::RemoveIdle(IdleId id) { idle_.erase(id); }

bool Loop::RunPosted() {
  std::vector<Task> tasks;
  {
    std::lock_guard lock(mutex_);
    tasks.swap(posted_);
  }
  for (Task& task : tasks) task();
  return !tasks.empty();
}

bool Loop::RunIdle() {
  bool more = false;
  std::vector<IdleId> ids;
  ids.reserve(idle_.size());
  for (const auto& [id, check] : idle_) ids.push_back(id);
  for (IdleId id : ids) {
    if (auto it = idle_.find(id); it != idle_.end()) {
      const auto check = it->second;  // stays alive while it runs, also if it removes itself
      more |= (*check)();
    }
  }
  return more;
}

void Loop::RunTimers() {
  const Time now = SteadyNow();
  // What a timer asks for, however early, is for the next round: the others come first.
  std::vector<TimerId> due;
  for (const auto& [key, task] : timers_) {
    if (key.first > now) break;
    due.push_back(key.second);
  }
  for (TimerId id : due) {
    const auto time = timer_times_.find(id);
    if (time == timer_times_.end()) continue;  // cancelled meanwhile
    auto node = timers_.extract({time->second, id});
    timer_times_.erase(time);
    node.mapped()();
  }
}

int Loop::TimeoutMs() const {
  if (timers_.empty()) return -1;
  const Time first = timers_.begin()->first.first;
  if (first == Time::Never()) return -1;
  const int64_t ns = (first - SteadyNow()).count();
  return ns <= 0 ? 0 : static_cast<int>(std::min<int64_t>(ns / 1'000'000 + 1, 60'000));
}

void Loop::Poll(int timeout_ms) {
  std::vector<pollfd> fds;
  fds.reserve(watches_.size() + writable_.size() + 1);
  fds.push_back({wake_fd_, POLLIN, 0});
  for (const auto& [fd, ready] : watches_) fds.push_back({fd, POLLIN, 0});
  for (const auto& [fd, ready] : writable_) fds.push_back({fd, POLLOUT, 0});
  const int n = poll(fds.data(), fds.size(), timeout_ms);
  if (n <= 0) return;
  if (fds[0].revents != 0) {
    uint64_t count;
    [[maybe_unused]] const ssize_t got = read(wake_fd_, &count, sizeof count);
    wake_pending_ = false;
  }
  for (size_t i = 1; i < fds.size(); ++i) {
    if (fds[i].revents == 0) continue;
    const auto& watches = fds[i].events == POLLIN ? watches_ : writable_;
    if (auto it = watches.find(fds[i].fd); it != watches.end()) {
      const auto ready = it->second;
      (*ready)();
    }
  }
}

void Loop::Run() {
  EVERSTEP_CHECK(thread_.load() == std::thread::id(), "a loop runs once at a time");
  thread_ = std::this_thread::get_id();
  while (true) {
    bool more = RunPosted();
    RunTimers();
    more |= RunIdle();  // last before the sleep: it must see what the other callbacks did
    if (stop_) break;
    Poll(more ? 0 : TimeoutMs());
  }
  RunPosted();
  stop_ = false;
  thread_ = std::thread::id();
}

void LoopThread::Call(const std::function<void()>& task) {
  std::promise<void> done;
  loop_.Post([&] {
    task();
    done.set_value();
  });
  done.get_future().wait();
}

}  // namespace everstep
