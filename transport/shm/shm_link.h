// One connection over shared memory, on either end: queue, credits, the payloads that the peer reads and those of the
// peer that are read here. Its socket outlives the connection until each end has heard that its payloads are no longer
// read (shm_wire.h), or the other process is gone.
//
// Belongs to one loop's thread; payloads may be dropped on any. Callbacks happen only inside Readable and Expire, which
// the host calls from the loop.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/credit.h"
#include "transport/shm/factory.h"
#include "transport/shm/shm_socket.h"
#include "transport/transport.h"

namespace everstep::transport::shm {

class Link;

class LinkHost {
 public:
  virtual ~LinkHost() = default;
  virtual Loop& loop() = 0;
  virtual Counters& counters() = 0;
  // Memory that this end's payloads are copied into when they lie elsewhere.
  virtual BufferPool& pool() = 0;
  // The link has something to flush in this round.
  virtual void Wake(Link& link) = 0;
  // The peer said hello to a listener. Returns its handler; null refuses it.
  virtual ConnectionHandler* Accept(const std::shared_ptr<Link>& link) = 0;
  // The socket is closed; the host forgets the link.
  virtual void Ended(Link& link) = 0;
};

class Link final : public Connection, public std::enable_shared_from_this<Link> {
 public:
  enum class Side { kDialer, kListener };
  Link(LinkHost& host, Side side, std::string peer, const Options& options);
  ~Link() override;

  // Connection. On any thread but the loop's they fail a check.
  Status Send(Frame frame) override;
  void Close() override;
  size_t queued_bytes() const override { return queue_.bytes(); }
  const std::string& peer() const override { return peer_; }
  uint64_t id() const override { return id_; }

  // For the host.
  void SetHandler(ConnectionHandler* handler) { handler_ = handler; }
  // Takes over a connected socket; the dialer's end says hello.
  void Attach(int fd);
  // Shook hands: a connection.
  bool open() const { return open_; }
  bool over() const { return over_; }
  // Sends what may leave.
  void Flush();
  // Waits, up to the time for that, until what is queued has left; then the socket ends. Without callbacks.
  void FinishNow();
  // Over for the reason `why`; tells the handler, and the peer when there is one.
  void Fail(const Status& why);
  bool listed = false;  // for the host's list of links to flush

 private:
  class Releases;
  void Readable();
  void HandleAll();
  void Handle(Socket::Inbound inbound);
  void HandleHandshake(const Record& record);
  void HandleFrame(Socket::Inbound inbound);
  bool HandleSharedPayload(const Record& record, Buffer& payload);
  void HandleRelease(const Buffer& numbers);
  // True when it stopped to give the others a turn.
  bool FlushFrames();
  // How many bytes it had to copy.
  size_t PutFrame(Frame frame);
  void FlushReleases();
  void PutClose(const Status& why);
  void Break(const std::string& what);
  void Finish(const Status& why);
  void Vanished();
  void MaybeEnd();
  void EndSocket();

  LinkHost* host_;  // null once the socket is closed
  Loop& loop_;
  const Side side_;
  const std::string peer_;
  const uint64_t id_;
  const size_t window_;
  const Duration linger_;
  ConnectionHandler* handler_ = nullptr;

  std::unique_ptr<Socket> socket_;  // null before Attach and after the end
  bool writing_ = false;            // the loop says when the socket takes more
  bool open_ = false;
  bool closing_ = false;
  bool over_ = false;
  bool told_ = false;  // kClose is queued or came
  Loop::TimerId close_timer_ = 0;
  size_t credit_to_tell_ = 0;

  SendQueue queue_;
  SendWindow send_window_;
  std::optional<CreditReturn> credit_return_;

  uint64_t next_shared_ = 0;         // number of the next shared frame that is sent
  std::map<uint64_t, Buffer> sent_;  // payloads that the peer may still read, by number
  std::map<uint64_t, std::weak_ptr<const SharedSegment>> announced_;  // own segments that the peer has mapped, by id
  uint64_t received_shared_ = 0;
  std::map<uint64_t, std::shared_ptr<const SharedSegment>> mapped_;  // the peer's, by its id
  std::shared_ptr<Releases> releases_;
};

}  // namespace everstep::transport::shm
