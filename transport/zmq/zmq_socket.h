// One libzmq socket with its monitor, spoken to in messages of zmq_wire.h. The only file, with zmq_process, that knows
// libzmq's types and its exceptions. Belongs to one loop's thread.
//
// libzmq's descriptors are edge-triggered and every call on the socket may swallow an edge: whoever has sent or
// received asks Readable() before it goes to sleep (ZmqContext's rounds do).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <zmq.hpp>

#include "base/bytes.h"
#include "transport/zmq/factory.h"
#include "transport/zmq/zmq_address.h"
#include "transport/zmq/zmq_process.h"
#include "transport/zmq/zmq_wire.h"

namespace everstep::transport::zeromq {

// What a send came to: the message is libzmq's now, or there was no room (try again later), or the peer is gone.
enum class Sent { kDone, kFull, kGone };

// A message from outside.
struct Inbound {
  std::string route;   // on a listener: the routing id of the sender
  int fd = -1;         // with a hello: the descriptor that it came in on, -1 when unknown (inproc)
  std::string origin;  // with a hello: the sender's address as far as it is known
  Status fault;        // not ok: no message of this transport; what follows is unset
  Prelude prelude;
  Buffer header;  // at an 8-byte boundary, like the payload
  Buffer payload;
};

// What happened to the descriptors under a socket.
struct MonitorEvent {
  enum Kind { kAccepted, kDisconnected, kConnectFailed, kHandshakeFailed, kListenerClosed, kOther } kind = kOther;
  int fd = -1;  // of kAccepted, kDisconnected and kListenerClosed
};

class ZmqSocket {
 public:
  // kUnavailable "address taken", kInvalidArgument for what cannot be bound.
  static Result<std::unique_ptr<ZmqSocket>> Bind(std::shared_ptr<ZmqProcess> process, const std::string& address,
                                                 const BindPlan& plan, const Options& options);
  // With a routing id that nobody can guess.
  static Result<std::unique_ptr<ZmqSocket>> Connect(std::shared_ptr<ZmqProcess> process, const ConnectPlan& plan,
                                                    const Options& options);
  ~ZmqSocket();
  ZmqSocket(const ZmqSocket&) = delete;
  ZmqSocket& operator=(const ZmqSocket&) = delete;

  int fd() { return fd_; }
  int monitor_fd() { return monitor_fd_; }  // -1 for inproc
  // The endpoint that libzmq bound, with the real port.
  const std::string& bound() const { return bound_; }

  // Empty when there is nothing (left) to read.
  std::optional<Inbound> Receive();
  std::optional<MonitorEvent> ReceiveEvent();

  // `route` is for listeners. On kDone the payload's owner is held until the bytes are out.
  Sent Send(const std::string& route, const Prelude& prelude, const Buffer& header, const Buffer& payload);

  // Whether there is a message to read, or, if `want_write`, room to write. Rearms the descriptor.
  bool Ready(bool want_write);

  // Stops listening. Returns when the address is free again, or after a bound when libzmq is slow.
  void Unbind();
  // How long what was sent may take to leave after destruction.
  void SetLinger(Duration linger);

 private:
  ZmqSocket(std::shared_ptr<ZmqProcess> process, ::zmq::socket_type type, const Options& options, bool ipv6);
  void StartMonitor();

  std::shared_ptr<ZmqProcess> process_;
  bool router_ = false;
  ::zmq::socket_t socket_;
  ::zmq::socket_t monitor_;
  int fd_ = -1;
  int monitor_fd_ = -1;
  std::string bound_;
};

}  // namespace everstep::transport::zeromq
