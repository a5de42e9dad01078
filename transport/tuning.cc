#include "transport/tuning.h"

#include <malloc.h>
#include <sys/resource.h>

#include "base/limits.h"

namespace everstep::transport {

void TuneAllocator() {
  // glibc refuses an mmap threshold above 32 MiB; chunks are smaller than that.
  static_assert(limits::kMaxChunkBytes < (32u << 20));
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  // Also keeps the heaps of the threads' arenas (64 MiB each) from being unmapped when they become empty.
  mallopt(M_TOP_PAD, 64 << 20);
}

void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace everstep::transport
