// The listening end: one ROUTER socket for all connections that peers make to one address.
//
// Two tables: `peers_` by routing id, `sockets_` by descriptor, joined by the hello of a peer, which says on which
// descriptor it came in. libzmq's monitor reports deaths by descriptor, and descriptors are reused, so the monitor is
// read before a hello is believed. A hello that outlived its sender may still name the descriptor of a newcomer; it
// never gets past the handshake, and both hang on the descriptor until it closes.
//
// Strangers are cut off (shutdown of their descriptor, which libzmq then reports as closed) when they are not a
// connection by the handshake deadline or when there are too many of them; so is a peer that does not go after its
// connection was closed here.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/zmq/zmq_context.h"
#include "transport/zmq/zmq_link.h"

namespace everstep::transport::zeromq {

class ZmqListener final : public Endpoint, public LinkHost {
 public:
  static Result<std::shared_ptr<ZmqListener>> Make(ZmqContext& context, const std::string& address, OnAccept on_accept);

  const std::string& address() const { return address_; }

  // Stops listening, closes the connections without callbacks, frees the address, retires.
  void Down();

  bool Work() override;
  void Abandon() override { Down(); }

  Sent Put(const Link& link, const Prelude& prelude, const Buffer& header, const Buffer& payload) override;
  void Wake(Link& link) override;
  Loop& loop() override { return context().loop(); }
  Counters& counters() override { return context().mutable_counters(); }

 private:
  struct Peer {
    std::shared_ptr<Link> link;
    int fd = -1;            // -1: no descriptor under it (inproc)
    uint64_t window = 0;    // what it grants
    bool ready = false;     // shook hands
    bool vanished = false;  // closed below; finished when its last messages are read
    Time since;             // of the hello; of the last message, once vanished; of the end, once that was swept
    bool ended = false;     // a sweep has seen that the link is over
  };
  struct Descriptor {
    Time since;
    bool ready = false;  // some peer on it shook hands
    bool left = false;   // and said goodbye
    std::vector<std::string> routes;
  };

  ZmqListener(ZmqContext& context, OnAccept on_accept) : Endpoint(context), on_accept_(std::move(on_accept)) {}

  void ReadEvents();
  void OnAccepted(int fd);
  void OnDisconnected(int fd);
  // Reads up to a turn's worth. True when the inbox is empty.
  bool ReadMessages();
  void Handle(Inbound inbound);
  void HandleStranger(Inbound inbound);
  void HandleHello(Inbound inbound);
  void Accept(Peer& peer);
  void Vanish(Peer& peer);
  void FinishVanished(bool inbox_empty);
  void FlushListed();
  void Sweep();
  void SweepPeers(Time now);
  void CutOff(int fd);
  void ArmSweep();

  OnAccept on_accept_;
  std::string address_;
  std::string path_;  // ipc: the socket file, removed at the end if it is still ours
  FileId file_;
  std::unique_ptr<ZmqSocket> socket_;
  bool down_ = false;
  bool event_ready_ = true;  // the monitor's descriptor was readable; it is so only after a first look
  std::unordered_map<std::string, Peer> peers_;
  std::unordered_map<int, Descriptor> sockets_;
  size_t strangers_ = 0;                       // descriptors that are not ready
  std::vector<std::string> vanished_;          // routes of peers to finish
  std::vector<std::shared_ptr<Link>> listed_;  // links to flush
  Loop::TimerId sweep_timer_ = 0;
  Loop::TimerId retry_timer_ = 0;
};

// What callers hold: ending it ends the listener, unless the context has done so before.
class ListenerHandle final : public Listener {
 public:
  explicit ListenerHandle(std::shared_ptr<ZmqListener> listener) : listener_(std::move(listener)) {}
  ~ListenerHandle() override {
    if (!listener_->retired()) listener_->Down();
  }
  const std::string& address() const override { return listener_->address(); }

 private:
  std::shared_ptr<ZmqListener> listener_;
};

}  // namespace everstep::transport::zeromq
