// What the backends have in common to be set. Tests shorten it; programs use the defaults.
#pragma once

#include "base/clock.h"
#include "base/limits.h"

namespace everstep::transport {

struct BackendOptions {
  size_t window_bytes = limits::kCreditWindowBytes;
  size_t max_pending = limits::kMaxPendingConnections;
  // How long a stranger may take to become a connection.
  Duration handshake_deadline = std::chrono::seconds(5);
  // How long a closed connection's remaining bytes may take to leave.
  Duration linger = std::chrono::seconds(2);
};

}  // namespace everstep::transport
