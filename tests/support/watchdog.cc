#include "tests/support/watchdog.h"

#include <dirent.h>
#include <execinfo.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace everstep::test {
namespace {

constexpr int kStackSignal = SIGUSR2;
sem_t stack_printed;

// Runs on the thread whose stack is wanted. backtrace() was called once before, so that it allocates nothing here.
void PrintOwnStack(int) {
  void* frames[64];
  const int count = backtrace(frames, 64);
  char line[64];
  const int size = snprintf(line, sizeof line, "-- thread %ld\n", static_cast<long>(syscall(SYS_gettid)));
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line, static_cast<size_t>(size));
  backtrace_symbols_fd(frames, count, STDERR_FILENO);
  sem_post(&stack_printed);
}

// One thread after the other. A thread that blocks the signal is passed over after a second.
void PrintAllStacks() {
  DIR* tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return;
  const long self = syscall(SYS_gettid);
  while (const dirent* entry = readdir(tasks)) {
    const long thread = strtol(entry->d_name, nullptr, 10);
    if (thread <= 0 || thread == self) continue;
    if (syscall(SYS_tgkill, getpid(), thread, kStackSignal) != 0) continue;
    timespec until{};
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    while (sem_timedwait(&stack_printed, &until) != 0 && errno == EINTR) {
    }
  }
  closedir(tasks);
}

}  // namespace

std::chrono::nanoseconds Watchdog::DeadlineFromEnvironment() {
  const char* given = getenv("EVERSTEP_TEST_DEADLINE");
  return given != nullptr ? std::chrono::seconds(strtol(given, nullptr, 10)) : kDefaultDeadline;
}

Watchdog::Watchdog(std::chrono::nanoseconds deadline) : deadline_(deadline) {
  if (deadline_.count() <= 0) return;
  void* frame = nullptr;
  backtrace(&frame, 1);
  sem_init(&stack_printed, 0, 0);
  struct sigaction action {};
  action.sa_handler = PrintOwnStack;
  action.sa_flags = SA_RESTART;
  sigaction(kStackSignal, &action, nullptr);
  thread_ = std::thread([this] { Watch(); });
}

Watchdog::~Watchdog() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::OnTestStart(const testing::TestInfo& info) {
  std::lock_guard lock(mutex_);
  running_ = std::string(info.test_suite_name()) + "." + info.name();
  until_ = std::chrono::steady_clock::now() + deadline_;
  changed_.notify_all();
}

void Watchdog::OnTestEnd(const testing::TestInfo&) {
  std::lock_guard lock(mutex_);
  running_.clear();
  changed_.notify_all();
}

void Watchdog::Watch() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (running_.empty()) {
      changed_.wait(lock);
    } else if (std::chrono::steady_clock::now() < until_) {
      changed_.wait_until(lock, until_);
    } else {
      fprintf(stderr, "watchdog: %s still runs after %.1f s; its threads:\n", running_.c_str(),
              std::chrono::duration<double>(deadline_).count());
      PrintAllStacks();
      abort();
    }
  }
}

}  // namespace everstep::test
