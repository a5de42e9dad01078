// What every backend's Connection does alike, whatever carries its frames: the queue, both sides of the byte credits,
// and closing within a deadline. A backend's link derives from it and moves the frames.
//
// Belongs to one loop's thread. The caller may hold it longer than its backend lives; it is over by then.
#pragma once

#include <string>

#include "transport/backend_options.h"
#include "transport/credit.h"
#include "transport/transport.h"

namespace everstep::transport {

class QueuedConnection : public Connection {
 public:
  // Connection. On any thread but the loop's they fail a check.
  Status Send(Frame frame) final;
  void Close() final;
  size_t queued_bytes() const final { return queue_.bytes(); }
  const std::string& peer() const final { return peer_; }
  uint64_t id() const final { return id_; }

  // For the backend.
  void SetHandler(ConnectionHandler* handler) { handler_ = handler; }
  bool open() const { return open_; }
  bool over() const { return over_; }
  // Whether the caller has asked to close; what is queued still flushes.
  bool closing() const { return closing_; }
  // Bytes that the peer may have under way to this end.
  size_t window() const { return window_; }
  bool listed = false;  // for the backend's list of links to flush

 protected:
  QueuedConnection(Loop& loop, std::string peer, const BackendOptions& options);

  // There is something to flush in the next round of the loop. Not called after Retire().
  virtual void Wake() = 0;
  // Closing has taken as long as it may.
  virtual void GiveUp() = 0;

  // The peer has shaken hands and grants `window` bytes.
  void Grant(uint64_t window);
  // The peer returns credit, and what waited for it goes on by itself. False when it returns more than it was sent.
  bool TakeCredit(uint64_t bytes);
  // The frame at the front of the queue is on its way.
  void SentFront(Counters& counters);
  // Hands a frame to the handler; while closing nobody listens, and what arrives is dropped. False when the frame is
  // beyond what the peer was granted.
  bool HandOut(Buffer header, Buffer payload, Counters& counters);
  // Nothing is queued, owed or timed any more.
  void Retire();
  void StopCloseTimer();
  // How long closing may take.
  Duration linger() const { return linger_; }

  Loop& loop_;
  ConnectionHandler* handler_ = nullptr;
  bool open_ = false;
  bool closing_ = false;
  bool over_ = false;
  size_t credit_to_tell_ = 0;  // bytes that the peer may send again and does not know of
  SendQueue queue_;
  SendWindow send_window_;

 private:
  const std::string peer_;
  const uint64_t id_;
  const size_t window_;
  const Duration linger_;
  Loop::TimerId close_timer_ = 0;
  CreditReturn credit_return_;
};

}  // namespace everstep::transport
