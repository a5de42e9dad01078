// Byte credits, both sides of one direction of a connection. A sender may have `window` payload bytes under way; the
// receiver gives them back when its reader drops the Credit that came with a frame. Backends own one of each.
//
// The two sides see "under way" differently, and the order is what makes a violation certain: the sender counts bytes
// until the return has arrived, the receiver until the return has left, so the receiver's figure is never larger.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "base/limits.h"
#include "base/loop.h"
#include "base/status.h"
#include "transport/transport.h"

namespace everstep::transport {

// The sender's side. Plain state on the loop's thread.
class SendWindow {
 public:
  explicit SendWindow(size_t window = 0) : window_(window) {}

  // A frame larger than the whole window passes when nothing else is under way; else it could never leave.
  bool Admits(size_t bytes) const { return bytes == 0 || outstanding_ == 0 || bytes + outstanding_ <= window_; }
  void Spend(size_t bytes) { outstanding_ += bytes; }
  // False when the peer returns more than it was sent: the peer is broken.
  bool Return(uint64_t bytes) {
    if (bytes > outstanding_) return false;
    outstanding_ -= bytes;
    return true;
  }
  size_t outstanding() const { return outstanding_; }

 private:
  size_t window_ = 0;
  size_t outstanding_ = 0;
};

// The receiver's side. Credits may be dropped on any thread and may outlive this object, its loop included. Returns
// are coalesced: a quarter of the window is reported at once, less within kCreditDelay. (Waiting for the quarter alone
// would stall a sender whose next frame is larger than three quarters of the window.)
class CreditReturn {
 public:
  // `due` is called on the loop when TakeOwed() should be sent. REQUIRES: `loop` lives until Detach() or destruction.
  CreditReturn(Loop& loop, size_t window, std::function<void()> due);
  ~CreditReturn();
  CreditReturn(const CreditReturn&) = delete;
  CreditReturn& operator=(const CreditReturn&) = delete;

  // Whether a frame of `bytes` is within what the sender was granted.
  bool Admits(size_t bytes) const { return bytes == 0 || held_ == 0 || bytes + held_ <= window_; }
  // REQUIRES: bytes > 0.
  Credit Lend(size_t bytes);
  // What the sender may be told to be free again; counts as told from now on.
  size_t TakeOwed();
  // Nothing is due any more; credits that still live become inert.
  void Detach();

 private:
  struct State;
  static void Release(const std::shared_ptr<State>& state, size_t bytes);
  static void OnLoop(const std::shared_ptr<State>& state, bool at_once);

  std::shared_ptr<State> state_;
  size_t window_ = 0;
  size_t held_ = 0;  // received and not yet told to be free
};

inline constexpr Duration kCreditDelay = std::chrono::milliseconds(2);

// Frames that wait for credit or for room in a socket, within limits::kMaxQueuedFrames and kMaxQueuedBytes.
class SendQueue {
 public:
  // kInvalidArgument for a frame over its limits, kResourceExhausted when the queue is full; `peer` is for the message.
  Status Push(Frame frame, const std::string& peer);
  bool empty() const { return frames_.empty(); }
  const Frame& front() const { return frames_.front(); }
  void Pop();
  void Clear();
  size_t bytes() const { return bytes_; }

 private:
  std::deque<Frame> frames_;
  size_t bytes_ = 0;
};

}  // namespace everstep::transport
