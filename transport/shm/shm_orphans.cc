#include "transport/shm/shm_orphans.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <mutex>

namespace everstep::transport::shm {
namespace {

struct Orphans {
  int pidfd = -1;  // -1: the process cannot be watched, e.g. in another pid namespace
  std::vector<Buffer> payloads;

  bool dead() const {
    if (pidfd < 0) return false;
    pollfd ended{pidfd, POLLIN, 0};
    return poll(&ended, 1, 0) > 0;
  }
};

std::mutex mutex;
std::vector<Orphans>& All() {
  static std::vector<Orphans>& all = *new std::vector<Orphans>();  // buffers may outlive main()
  return all;
}

}  // namespace

void KeepUntilDead(pid_t receiver, std::vector<Buffer> payloads) {
  if (payloads.empty()) return;
  const int pidfd = receiver > 0 ? static_cast<int>(syscall(SYS_pidfd_open, receiver, 0)) : -1;
  if (pidfd < 0 && receiver > 0 && errno == ESRCH) return;  // dead already
  std::lock_guard lock(mutex);
  All().push_back({pidfd, std::move(payloads)});
}

size_t SweepOrphans() {
  std::vector<Orphans> gone;  // freed outside of the lock
  size_t kept = 0;
  std::lock_guard lock(mutex);
  std::vector<Orphans> left;
  for (Orphans& one : All()) {
    if (one.dead()) {
      close(one.pidfd);
      gone.push_back(std::move(one));
    } else {
      kept += one.payloads.size();
      left.push_back(std::move(one));
    }
  }
  All() = std::move(left);
  return kept;
}

}  // namespace everstep::transport::shm
