#include "transport/zmq/zmq_dialer.h"

#include "base/check.h"

namespace everstep::transport::zeromq {

Result<std::shared_ptr<Dialer>> Dialer::Make(ZmqContext& context, const std::string& address,
                                             ConnectionHandler* handler, Duration deadline) {
  EVERSTEP_CHECK(handler != nullptr, "a connection needs a handler");
  EVERSTEP_ASSIGN(const ConnectPlan plan, PlanConnect(address));
  std::shared_ptr<Dialer> self(new Dialer(context));
  self->address_ = address;
  self->link_ = std::make_shared<Link>(*self, address, /*route=*/"", context.options());
  self->link_->SetHandler(handler);
  if (address.starts_with("inproc://") && !context.process()->HasName(address)) {
    self->broken_ = Status(Code::kUnavailable, "cannot connect to " + address + ": nobody in this process listens");
  } else {
    EVERSTEP_ASSIGN(self->socket_, ZmqSocket::Connect(context.process(), plan, context.options()));
    context.Watch(*self, *self->socket_, &self->event_ready_);
    // libzmq keeps it until the connection is made.
    (void)self->Put(*self->link_, {Kind::kHello, self->link_->window()}, {}, {});
  }
  self->deadline_timer_ = context.loop().At(SteadyNow() + deadline, [raw = self.get(), deadline] {
    raw->deadline_timer_ = 0;
    raw->OnDeadline(deadline);
  });
  context.Heat(*self);
  return self;
}

bool Dialer::Work() {
  if (event_ready_ && socket_ != nullptr) ReadEvents();
  const bool inbox_empty = socket_ == nullptr || ReadMessages();
  const bool blocked = link_->Flush();
  // What the peer sent before it went comes first.
  if (broken_ && inbox_empty) link_->Finish(*broken_);
  if (link_->over()) {
    if (!retired()) Shut();
    return false;
  }
  return !inbox_empty || socket_->Ready(blocked);
}

void Dialer::ReadEvents() {
  event_ready_ = false;
  while (const auto event = socket_->ReceiveEvent()) {
    if (broken_) continue;
    switch (event->kind) {
      case MonitorEvent::kDisconnected:
        broken_ = Status(Code::kUnavailable, link_->open() ? "the connection to " + address_ + " broke"
                                                           : "cannot connect to " + address_ +
                                                                 ": whoever listens there closed the connection");
        break;
      case MonitorEvent::kConnectFailed:
        broken_ = Status(Code::kUnavailable, "cannot connect to " + address_ +
                                                 ": nobody listens there, or the host is not known or not reachable");
        break;
      case MonitorEvent::kHandshakeFailed:
        broken_ = Status(Code::kUnavailable,
                         "cannot connect to " + address_ + ": whoever listens there does not speak this transport");
        break;
      default: break;
    }
  }
}

bool Dialer::ReadMessages() {
  for (int i = 0; i < kMessagesPerTurn; ++i) {
    if (link_->over()) return true;
    std::optional<Inbound> inbound = socket_->Receive();
    if (!inbound) return true;
    Handle(std::move(*inbound));
  }
  return false;
}

void Dialer::Handle(Inbound inbound) {
  if (!inbound.fault.ok()) return link_->Break("sent " + inbound.fault.message());
  if (inbound.prelude.kind == Kind::kClose) {
    peer_closed_ = true;
    // A listener without descriptors under it sees only by the answer that this end is gone, too.
    if (socket_->monitor_fd() < 0) (void)Put(*link_, {Kind::kClose, 0}, {}, {});
    if (!link_->open() && inbound.prelude.value == 0) inbound.prelude.value = static_cast<uint64_t>(Code::kUnavailable);
    return link_->Receive(std::move(inbound));
  }
  if (link_->open()) return link_->Receive(std::move(inbound));
  if (inbound.prelude.kind != Kind::kWelcome || inbound.prelude.value == 0 || !inbound.header.empty()) {
    return link_->Break("answered the handshake with something else");
  }
  if (deadline_timer_ != 0) loop().Cancel(std::exchange(deadline_timer_, 0));
  (void)Put(*link_, {Kind::kReady, 0}, {}, {});
  link_->Open(inbound.prelude.value);
}

void Dialer::OnDeadline(Duration deadline) {
  if (link_->open() || link_->over()) return;
  if (!broken_) {
    broken_ = Status(Code::kUnavailable, "cannot connect to " + address_ + ": no answer within " +
                                             std::to_string(static_cast<int64_t>(Milliseconds(deadline))) + " ms");
  }
  context().Heat(*this);
}

Sent Dialer::Put(const Link&, const Prelude& prelude, const Buffer& header, const Buffer& payload) {
  return socket_ == nullptr ? Sent::kGone : socket_->Send("", prelude, header, payload);
}

void Dialer::Wake(Link&) { context().Heat(*this); }

void Dialer::Abandon() {
  if (socket_ != nullptr) ReadEvents();  // to wait for nobody who is gone
  (void)link_->Flush();
  link_->End();
  if (!retired()) Shut();
}

void Dialer::Shut() {
  if (deadline_timer_ != 0) loop().Cancel(std::exchange(deadline_timer_, 0));
  if (socket_ != nullptr) {
    context().Unwatch(*socket_);
    // With nobody at the other end there is nothing to wait for.
    if (!link_->open() || broken_ || peer_closed_) socket_->SetLinger(Duration::zero());
    socket_.reset();
  }
  context().Retire(*this);
}

}  // namespace everstep::transport::zeromq
