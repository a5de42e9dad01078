// Ids of connections: unique within the process over all backends, never reused. Any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace everstep::transport {

inline uint64_t NextConnectionId() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace everstep::transport
