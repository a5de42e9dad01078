// One connection over shared memory, on either end: queue, credits, the payloads that the peer reads and those of the
// peer that are read here. Its socket outlives the connection until each end has heard that its payloads are no longer
// read (shm_wire.h), or the other process is gone.
//
// Belongs to one loop's thread; payloads may be dropped on any. Callbacks happen only inside Readable and Expire, which
// the host calls from the loop.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "transport/queued_connection.h"
#include "transport/shm/factory.h"
#include "transport/shm/shm_socket.h"

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

class Link final : public QueuedConnection, public std::enable_shared_from_this<Link> {
 public:
  enum class Side { kDialer, kListener };
  Link(LinkHost& host, Side side, std::string peer, const Options& options);

  // For the host.
  // Takes over a connected socket; the dialer's end says hello.
  void Attach(int fd);
  // Sends what may leave.
  void Flush();
  // Waits, up to the time for that, until what is queued has left; then the socket ends. Without callbacks.
  void FinishNow();
  // Over for the reason `why`; tells the handler, and the peer when there is one.
  void Fail(const Status& why);

 private:
  class Releases;
  void Wake() override { host_->Wake(*this); }
  void GiveUp() override;
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
  const Side side_;
  std::unique_ptr<Socket> socket_;  // null before Attach and after the end
  bool writing_ = false;            // the loop says when the socket takes more
  bool told_ = false;               // kClose is queued or came

  uint64_t next_shared_ = 0;         // number of the next shared frame that is sent
  std::map<uint64_t, Buffer> sent_;  // payloads that the peer may still read, by number
  std::map<uint64_t, std::weak_ptr<const SharedSegment>> announced_;  // own segments that the peer has mapped, by id
  uint64_t received_shared_ = 0;
  std::map<uint64_t, std::shared_ptr<const SharedSegment>> mapped_;  // the peer's, by its id
  std::shared_ptr<Releases> releases_;
};

}  // namespace everstep::transport::shm
