// The transport contract: framed, ordered, at-most-once delivery between two processes (or two ends in one), with
// closed connections seen at once and memory bounded by byte credits. It knows no schema: a frame is a small header
// and an optional large payload, both plain bytes.
//
// How one frame travels:
//  1. `Connection::Send(frame)` queues it. It leaves when the peer's byte credit allows; frames on one connection keep
//     their order. The payload is not copied: the transport holds the Buffer until the bytes are out.
//  2. The peer's `ConnectionHandler::OnFrame` gets header and payload as Buffers that view the memory they were
//     received into (no second copy), and a Credit. While the Credit lives, the payload's bytes count against the
//     sender's window; dropping it lets more come. The Buffers may live longer than the Credit.
//  3. Either end closes, or its process dies: the other end's OnClosed fires, once, after the last OnFrame.
//
// Rules:
//  - A Connection is one life of one link. It never reconnects; the session above decides to connect again. What was
//    under way when it closed may or may not have arrived.
//  - Control and bulk never queue behind each other: a peer opens one connection a lane.
//  - Everything happens on the Context's Loop: methods check it, callbacks fire on it, never inside the call that
//    caused them, and each exactly once.
//  - A close by the peer's death is reported within 100 ms on one host. A silent network is the heartbeats' business.
//  - Bytes from outside never end the process: garbage, oversized frames and half-open strangers are dropped and
//    counted (Context::counters()).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/limits.h"
#include "base/loop.h"
#include "base/status.h"

namespace everstep::transport {

struct Frame {
  Buffer header;   // at most limits::kMaxHeaderBytes, never empty
  Buffer payload;  // at most limits::kMaxPayloadBytes; may be empty
};

// Bytes of a received payload that count against the sender's window until this object is gone. Movable; may be
// dropped on any thread.
class Credit {
 public:
  Credit() = default;
  explicit Credit(std::function<void()> release) : release_(std::move(release)) {}
  Credit(Credit&& other) noexcept : release_(std::exchange(other.release_, nullptr)) {}
  Credit& operator=(Credit&& other) noexcept {
    std::swap(release_, other.release_);
    return *this;
  }
  ~Credit() {
    if (release_) release_();
  }

 private:
  std::function<void()> release_;
};

// Both buffers begin at an 8-byte boundary of memory.
struct Received {
  Buffer header;
  Buffer payload;
  Credit credit;
};

class Connection;

// What a connection's owner implements. The handler must outlive the connection's OnClosed, or call Close() before.
class ConnectionHandler {
 public:
  virtual ~ConnectionHandler() = default;
  virtual void OnFrame(Connection& connection, Received received) = 0;
  // The connection is over: Ok when the peer closed in order, kUnavailable when it vanished, refused or was never
  // reached (the message names the address), kCorrupt when one end broke the protocol, kWrongVersion when the peer's
  // transport is of another version. Nothing follows. Does not fire after Close().
  virtual void OnClosed(Connection& connection, const Status& why) = 0;
};

// Ends by Close(), its OnClosed, or its Listener's or Context's end; letting go of the pointer does not close it.
class Connection {
 public:
  virtual ~Connection() = default;

  // Queues the frame. kResourceExhausted when the queue's bound is reached (nothing was queued), kUnavailable when
  // the connection is closed, kInvalidArgument when the frame is over its limits.
  virtual Status Send(Frame frame) = 0;

  // Ends this end after what is queued and covered by credit has been handed to the system (within 2 s; what waits for
  // credit is dropped); the peer sees an orderly close. Returns at once. No callback fires on this end afterwards.
  virtual void Close() = 0;

  // Bytes queued here that have not been handed to the system.
  virtual size_t queued_bytes() const = 0;
  // Whom this connection talks to, for logs: an address.
  virtual const std::string& peer() const = 0;
  // Unique within the process, never reused.
  virtual uint64_t id() const = 0;
};

// Destroying it frees the address and closes the connections that were made to it, as Close() does.
class Listener {
 public:
  virtual ~Listener() = default;
  // The address that others connect to: as given, with the real port where port 0 (or `*`) was asked for.
  virtual const std::string& address() const = 0;
};

// A new connection was made by a peer. Returns the handler that will own its events, or null to refuse it (the peer
// sees kUnavailable). Called before its first OnFrame.
using OnAccept = std::function<ConnectionHandler*(std::shared_ptr<Connection>)>;

struct Counters {
  uint64_t frames_sent = 0;
  uint64_t frames_received = 0;
  uint64_t bytes_sent = 0;  // headers and payloads
  uint64_t bytes_received = 0;
  uint64_t accepted = 0;
  uint64_t refused_frames = 0;  // malformed or oversized: dropped, with their connection
  uint64_t failed_handshakes = 0;
};

// One backend bound to one loop. Destroying it, which must not happen inside one of its callbacks, closes what is left
// without callbacks; it may take as long as Close() may take to flush. Its listeners and connections may still be
// destroyed afterwards, and Send answers kUnavailable.
class Context {
 public:
  virtual ~Context() = default;

  // kInvalidArgument for an address that makes no sense, kUnavailable when the address is taken (the message says so).
  virtual Result<std::unique_ptr<Listener>> Listen(const std::string& address, OnAccept on_accept) = 0;

  // Returns at once; a peer that cannot be reached shows as OnClosed(kUnavailable) within `deadline`.
  virtual Result<std::shared_ptr<Connection>> Connect(const std::string& address, ConnectionHandler* handler,
                                                      Duration deadline) = 0;

  virtual Counters counters() const = 0;
};

}  // namespace everstep::transport
