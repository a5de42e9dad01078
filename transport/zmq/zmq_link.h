// One connection over ZeroMQ, on either end: the queue, the credits and the state of zmq_wire.h's protocol after the
// socket has been set up. A dialer or a listener (its LinkHost) owns the socket, hands messages in and asks it to
// flush; callbacks to the connection's handler happen only inside those two, which the host calls from the context's
// rounds.
//
// Belongs to one loop's thread. The caller may hold it longer than its host lives; it is over by then.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "transport/credit.h"
#include "transport/transport.h"
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

class Link final : public Connection, public std::enable_shared_from_this<Link> {
 public:
  // `route` is the peer's routing id on a listener, empty on a dialer.
  Link(LinkHost& host, std::string peer, std::string route, const Options& options);
  ~Link() override;

  // Connection. On any thread but the loop's they fail a check.
  Status Send(Frame frame) override;
  void Close() override;
  size_t queued_bytes() const override { return queue_.bytes(); }
  const std::string& peer() const override { return peer_; }
  uint64_t id() const override { return id_; }

  // For the host.
  const std::string& route() const { return route_; }
  bool open() const { return open_; }
  bool over() const { return over_; }
  // Whether the caller has asked to close; what is queued still flushes.
  bool closing() const { return closing_; }
  // Whether the socket has said that there is no such peer any more.
  bool gone() const { return gone_; }
  size_t window() const { return window_; }
  // For the host's list of links to flush.
  bool listed = false;

  void SetHandler(ConnectionHandler* handler) { handler_ = handler; }
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
  bool FlushCredit();
  bool FlushFrames();
  void ReceiveFrame(Inbound inbound);
  Sent PutClose(const Status& why);
  void Leave();

  LinkHost* host_;  // null once over
  Loop& loop_;
  const std::string peer_;
  const std::string route_;
  const uint64_t id_;
  const size_t window_;
  const Duration linger_;
  ConnectionHandler* handler_ = nullptr;

  bool open_ = false;
  bool closing_ = false;
  bool over_ = false;
  bool gone_ = false;
  bool gave_up_ = false;       // closing has taken too long
  size_t credit_to_tell_ = 0;  // bytes that the peer may send again and does not know of
  Loop::TimerId close_timer_ = 0;
  SendQueue queue_;
  SendWindow send_window_;
  std::optional<CreditReturn> credit_return_;
};

}  // namespace everstep::transport::zeromq
