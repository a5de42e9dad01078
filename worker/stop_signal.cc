#include "worker/stop_signal.h"

#include <semaphore.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "base/check.h"

namespace everstep {
namespace {

constexpr int kSignals[] = {SIGTERM, SIGINT};
constexpr int kInterrupted = 130;

// A handler can reach only what is global.
sem_t wake;
std::atomic<int> received{0};
std::atomic<bool> ended{false};
std::atomic<bool> in_use{false};

static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

void OnSignal(int) {
  const int saved = errno;
  if (received.fetch_add(1) > 0) _exit(kInterrupted);
  sem_post(&wake);
  errno = saved;
}

void Install(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (int signal : kSignals) sigaction(signal, &action, nullptr);
}

}  // namespace

StopSignal::StopSignal(std::function<void()> on_first) {
  EVERSTEP_CHECK(!in_use.exchange(true), "two StopSignals in one process");
  received = 0;
  ended = false;
  sem_init(&wake, 0, 0);
  thread_ = std::thread([on_first = std::move(on_first)] {
    while (sem_wait(&wake) != 0) {
    }
    if (!ended) on_first();
  });
  Install(OnSignal);
}

StopSignal::~StopSignal() {
  Install(SIG_DFL);
  ended = true;
  sem_post(&wake);
  thread_.join();
  // A handler that began before may still post, so the semaphore, which is static, is not destroyed.
  in_use = false;
}

}  // namespace everstep
