#include "transport/zmq/zmq_listener.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "base/check.h"
#include "base/log.h"

namespace everstep::transport::zeromq {
namespace {

// How long a peer that is gone may go without one of its last messages being read, while others' are.
constexpr Duration kVanishPatience = std::chrono::milliseconds(50);
// libzmq does not say which peer has room again. Its descriptor nearly always does; this covers the rest.
constexpr Duration kRetryDelay = std::chrono::milliseconds(2);

}  // namespace

Result<std::shared_ptr<ZmqListener>> ZmqListener::Make(ZmqContext& context, const std::string& address,
                                                       OnAccept on_accept) {
  EVERSTEP_CHECK(on_accept != nullptr, "a listener needs somebody to give its connections to");
  EVERSTEP_ASSIGN(const BindPlan plan, PlanBind(address));
  std::shared_ptr<ZmqListener> self(new ZmqListener(context, std::move(on_accept)));
  EVERSTEP_ASSIGN(self->socket_, ZmqSocket::Bind(context.process(), address, plan, context.options()));
  const std::string& bound = self->socket_->bound();
  self->address_ = plan.user_host.empty() ? address : "tcp://" + plan.user_host + ":" + PortOf(bound);
  self->path_ = plan.path;
  self->file_ = IdOfFile(plan.path);
  if (address.starts_with("inproc://")) context.process()->AddName(address);
  context.Watch(*self, *self->socket_, &self->event_ready_);
  context.Heat(*self);
  return self;
}

void ZmqListener::Down() {
  if (down_) return;
  EVERSTEP_CHECK(loop().InLoop(), "a listener belongs to its loop's thread");
  down_ = true;
  for (auto& [route, peer] : peers_) {
    (void)peer.link->Flush();
    peer.link->End();
  }
  for (Loop::TimerId* timer : {&sweep_timer_, &retry_timer_}) {
    if (*timer != 0) loop().Cancel(std::exchange(*timer, 0));
  }
  context().Unwatch(*socket_);
  if (address_.starts_with("inproc://")) context().process()->RemoveName(address_);
  socket_->Unbind();
  if (!path_.empty() && IdOfFile(path_) == file_) unlink(path_.c_str());
  socket_.reset();
  context().Retire(*this);
}

bool ZmqListener::Work() {
  if (event_ready_) ReadEvents();
  const bool inbox_empty = ReadMessages();
  if (down_) return false;  // a callback may end the listener
  FlushListed();
  FinishVanished(inbox_empty);
  if (down_) return false;
  return !inbox_empty || socket_->Ready(/*want_write=*/false);
}

void ZmqListener::ReadEvents() {
  event_ready_ = false;
  while (const auto event = socket_->ReceiveEvent()) {
    if (event->kind == MonitorEvent::kAccepted) OnAccepted(event->fd);
    if (event->kind == MonitorEvent::kDisconnected) OnDisconnected(event->fd);
  }
}

void ZmqListener::OnAccepted(int fd) {
  OnDisconnected(fd);  // does nothing: libzmq reports the end of a descriptor before it closes it
  sockets_.emplace(fd, Descriptor{SteadyNow(), false, false, {}});
  ++strangers_;
  if (strangers_ > context().options().max_pending) CutOff(fd);
  ArmSweep();
}

void ZmqListener::OnDisconnected(int fd) {
  auto node = sockets_.extract(fd);
  if (node.empty()) return;
  if (!node.mapped().ready) --strangers_;
  if (node.mapped().routes.empty()) counters().failed_handshakes += 1;
  for (const std::string& route : node.mapped().routes) {
    if (auto it = peers_.find(route); it != peers_.end()) Vanish(it->second);
  }
}

bool ZmqListener::ReadMessages() {
  for (int i = 0; i < kMessagesPerTurn; ++i) {
    std::optional<Inbound> inbound = socket_->Receive();
    if (!inbound) return true;
    Handle(std::move(*inbound));
    if (down_) return true;
  }
  return false;
}

void ZmqListener::Handle(Inbound inbound) {
  const auto it = peers_.find(inbound.route);
  if (it == peers_.end()) return HandleStranger(std::move(inbound));
  Peer& peer = it->second;
  if (peer.vanished) peer.since = SteadyNow();
  const std::shared_ptr<Link> link = peer.link;
  const Kind kind = inbound.prelude.kind;
  if (!link->over()) {
    if (!inbound.fault.ok()) {
      link->Break("sent " + inbound.fault.message());
    } else if (!peer.ready && kind == Kind::kReady) {
      return Accept(peer);
    } else if (!peer.ready && kind != Kind::kClose) {
      link->Break("sent something else before it was ready");
    } else {
      link->Receive(std::move(inbound));
    }
  }
  // Nothing follows a peer's close. Peers that were closed here stay, so that what they still send is not a stranger's.
  if (down_ || !inbound.fault.ok() || kind != Kind::kClose) return;
  if (auto descriptor = sockets_.find(peer.fd); descriptor != sockets_.end()) {
    descriptor->second.left = true;
    descriptor->second.since = SteadyNow();
  }
  peers_.erase(link->route());
}

void ZmqListener::HandleStranger(Inbound inbound) {
  if (inbound.fault.ok() && inbound.prelude.kind == Kind::kHello) return HandleHello(std::move(inbound));
  // A late answer to a close. Everything else comes from somebody who does not know the protocol; the sweep cuts it
  // off.
  if (inbound.fault.ok() && inbound.prelude.kind == Kind::kClose) return;
  counters().refused_frames += 1;
  if (inbound.fault.ok() || inbound.fault.code() != Code::kWrongVersion) return;
  log::Debug(address_ + ": refused " + inbound.fault.message());
  (void)socket_->Send(inbound.route, {Kind::kClose, static_cast<uint64_t>(Code::kWrongVersion)},
                      Buffer::Copy("refused " + inbound.fault.message()), {});
}

void ZmqListener::HandleHello(Inbound inbound) {
  ReadEvents();
  if (inbound.prelude.value == 0 || !inbound.header.empty()) {
    counters().refused_frames += 1;
    return;
  }
  const bool has_descriptors = socket_->monitor_fd() >= 0;
  const auto descriptor = sockets_.find(inbound.fd);
  if (has_descriptors && descriptor == sockets_.end()) return;  // its sender is gone, and counted
  std::string name = inbound.origin.empty() ? address_ : inbound.origin;
  if (address_.starts_with("ipc://") && !inbound.origin.empty()) name = address_ + " (" + inbound.origin + ")";
  auto link = std::make_shared<Link>(*this, std::move(name), inbound.route, context().options());
  if (Put(*link, {Kind::kWelcome, link->window()}, {}, {}) != Sent::kDone) return;  // gone as well
  if (has_descriptors) descriptor->second.routes.push_back(inbound.route);
  Peer peer;
  peer.link = std::move(link);
  peer.fd = has_descriptors ? inbound.fd : -1;
  peer.window = inbound.prelude.value;
  peer.since = SteadyNow();
  peers_.emplace(std::move(inbound.route), std::move(peer));
  ArmSweep();
}

void ZmqListener::Accept(Peer& peer) {
  peer.ready = true;
  if (auto it = sockets_.find(peer.fd); it != sockets_.end() && !it->second.ready) {
    it->second.ready = true;
    --strangers_;
  }
  counters().accepted += 1;
  const std::shared_ptr<Link> link = peer.link;
  link->Open(peer.window);
  ConnectionHandler* handler = on_accept_(link);
  if (link->over() || link->closing()) return;
  if (handler == nullptr) return link->Refuse({Code::kUnavailable, "refused by the server"});
  link->SetHandler(handler);
}

void ZmqListener::Vanish(Peer& peer) {
  if (peer.vanished) return;
  peer.vanished = true;
  peer.since = SteadyNow();
  vanished_.push_back(peer.link->route());
  context().Heat(*this);
}

// What a peer sent before it went is read first: until the inbox is empty, or none of it came for a while.
void ZmqListener::FinishVanished(bool inbox_empty) {
  if (vanished_.empty()) return;
  const Time now = SteadyNow();
  std::vector<std::string> routes;
  routes.swap(vanished_);
  for (std::string& route : routes) {
    const auto it = peers_.find(route);
    if (it == peers_.end()) continue;
    if (!inbox_empty && now - it->second.since < kVanishPatience) {
      vanished_.push_back(std::move(route));
      continue;
    }
    const Peer peer = std::move(it->second);
    peers_.erase(it);
    if (!peer.ready) counters().failed_handshakes += 1;
    peer.link->Finish({Code::kUnavailable, "the connection to " + peer.link->peer() + " broke"});
    if (down_) return;
  }
}

void ZmqListener::FlushListed() {
  std::vector<std::shared_ptr<Link>> links;
  links.swap(listed_);
  bool blocked = false;
  for (std::shared_ptr<Link>& link : links) {
    link->listed = false;
    const bool waits = link->Flush();
    if (link->gone()) {
      if (auto it = peers_.find(link->route()); it != peers_.end()) Vanish(it->second);
    }
    if (!waits) continue;
    blocked = true;
    link->listed = true;
    listed_.push_back(std::move(link));
  }
  if (!blocked || retry_timer_ != 0) return;
  retry_timer_ = loop().At(SteadyNow() + kRetryDelay, [this] {
    retry_timer_ = 0;
    context().Heat(*this);
  });
}

void ZmqListener::ArmSweep() {
  if (sweep_timer_ != 0 || down_ || (peers_.empty() && sockets_.empty())) return;
  const Duration period = std::min<Duration>(std::chrono::seconds(1), context().options().handshake_deadline / 4);
  sweep_timer_ = loop().At(SteadyNow() + period, [this] {
    sweep_timer_ = 0;
    Sweep();
    ArmSweep();
  });
}

void ZmqListener::Sweep() {
  ReadEvents();
  const Time now = SteadyNow();
  for (const auto& [fd, descriptor] : sockets_) {
    if (descriptor.ready && !descriptor.left) continue;
    if (now - descriptor.since > context().options().handshake_deadline) CutOff(fd);
  }
  SweepPeers(now);
}

void ZmqListener::SweepPeers(Time now) {
  const Options& options = context().options();
  for (auto it = peers_.begin(); it != peers_.end();) {
    Peer& peer = it->second;
    if (peer.link->over() && !peer.ended) {
      peer.ended = true;
      peer.since = now;
    }
    const bool overstays = peer.ended && now - peer.since > options.linger;
    const bool never_ready = !peer.ready && !peer.vanished && now - peer.since > options.handshake_deadline;
    const auto descriptor = sockets_.find(peer.fd);
    if ((overstays || never_ready) && descriptor != sockets_.end()) {
      CutOff(peer.fd);  // and forgotten when libzmq reports it
      ++it;
    } else if (overstays || never_ready) {
      peer.link->End();
      if (never_ready) counters().failed_handshakes += 1;
      it = peers_.erase(it);
    } else {
      ++it;
    }
  }
}

// The descriptor is libzmq's. Shutting it down, unlike closing it, cannot hand its number to somebody else, and events
// were read just before, so it is this stranger's but for the moment in which libzmq closes it itself.
void ZmqListener::CutOff(int fd) { shutdown(fd, SHUT_RDWR); }

Sent ZmqListener::Put(const Link& link, const Prelude& prelude, const Buffer& header, const Buffer& payload) {
  return socket_ == nullptr ? Sent::kGone : socket_->Send(link.route(), prelude, header, payload);
}

void ZmqListener::Wake(Link& link) {
  if (!link.listed) {
    link.listed = true;
    listed_.push_back(link.shared_from_this());
  }
  context().Heat(*this);
}

}  // namespace everstep::transport::zeromq
