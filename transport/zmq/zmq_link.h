// One connection over ZeroMQ, on either end: the queue, the credits and the state of zmq_wire.h's protocol after the
// socket has been set up. A dialer or a listener (its LinkHost) owns the socket, hands messages in and asks it to
// flush; callbacks to the connection's handler happen only inside those two, which the host calls from the context's
// rounds.
//
// Belongs to one loop's thread. The caller may hold it longer than its host lives; it is over by then.
#pragma once

#include <memory>
#include <string>

#include "transport/queued_connection.h"
#include "transport/zmq/zmq_socket.h"

namespace everstep::transport::zeromq {

class Link;

class LinkHost {
 public:
  virtual ~LinkHost() = default;
  virtual Sent Put(const Link& link, const Prelude& prelude, const Buffer& header, const Buffer& payload) = 0;
  // The link has something to flush in the next round.
  virtual void Wake(Link& link) = 0;
  virtual Loop& loop() = 0;
  virtual Counters& counters() = 0;
};

class Link final : public QueuedConnection, public std::enable_shared_from_this<Link> {
 public:
  // `route` is the peer's routing id on a listener, empty on a dialer.
  Link(LinkHost& host, std::string peer, std::string route, const Options& options);

  // For the host.
  const std::string& route() const { return route_; }
  // Whether the socket has said that there is no such peer any more.
  bool gone() const { return gone_; }

  // The handshake is complete; the peer grants `window` bytes. REQUIRES: not open.
  void Open(uint64_t window);
  // A message of a kind that belongs after the handshake.
  void Receive(Inbound inbound);
  // Hands out what may leave. True when something waits for the socket to have room.
  bool Flush();
  // Over before the caller got it: tells only the peer.
  void Refuse(const Status& why);
  // The peer broke the protocol: tells it and the handler.
  void Break(const std::string& what);
  // Over, for the reason `why`: tells the handler, if there still is one, and not the peer.
  void Finish(const Status& why);
  // Over; tells the peer when there is one, and not the handler.
  void End();

 private:
  void Wake() override { host_->Wake(*this); }
  void GiveUp() override;
  bool FlushCredit();
  bool FlushFrames();
  void ReceiveFrame(Inbound inbound);
  Sent PutClose(const Status& why);
  void Leave();

  LinkHost* host_;  // null once over
  const std::string route_;
  bool gone_ = false;
  bool gave_up_ = false;  // closing has taken too long
};

}  // namespace everstep::transport::zeromq
