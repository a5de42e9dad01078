#include "transport/zmq/zmq_socket.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>

#include "base/log.h"
#include "base/random.h"

namespace everstep::transport::zeromq {
namespace {

// Messages that libzmq may hold per connection and direction. Credits bound the payloads; this bounds everything else.
constexpr int kHighWaterMark = 1024;
// Below this a copy is cheaper than libzmq's bookkeeping for foreign memory.
constexpr size_t kCopyBelow = 4096;
// libzmq receives parts up to its batch size into shared blocks, at any alignment; larger ones have their own memory.
constexpr size_t kOwnMemoryAbove = 8192;
constexpr size_t kAlignment = 8;

constexpr int kEvents = ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CONNECT_RETRIED | ZMQ_EVENT_CLOSED |
                        ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                        ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;

int ToMs(Duration d) { return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(d).count()); }

Buffer ToBuffer(::zmq::message_t message, size_t offset) {
  const auto* data = message.data<std::byte>() + offset;
  const size_t size = message.size() - offset;
  if (message.size() <= kOwnMemoryAbove || reinterpret_cast<uintptr_t>(data) % kAlignment != 0) {
    return Buffer::Copy(data, size);
  }
  auto owner = std::make_shared<::zmq::message_t>(std::move(message));
  return {std::move(owner), data, size};
}

::zmq::message_t ToMessage(const Buffer& buffer) {
  if (buffer.size() < kCopyBelow) return {buffer.data(), buffer.size()};
  auto* held = new Buffer(buffer);
  return {const_cast<std::byte*>(held->data()), held->size(),
          [](void*, void* hint) { delete static_cast<Buffer*>(hint); }, held};
}

::zmq::message_t MakeHead(const Prelude& prelude, const Buffer& header) {
  ::zmq::message_t head(kPreludeBytes + header.size());
  const auto bytes = EncodePrelude(prelude);
  std::memcpy(head.data(), bytes.data(), bytes.size());
  if (!header.empty()) std::memcpy(head.data<std::byte>() + kPreludeBytes, header.data(), header.size());
  return head;
}

// "tcp://10.0.0.7:51234", or "process 4711" behind an ipc socket.
std::string OriginOf(int fd) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  if (fd < 0 || getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return "";
  char text[INET6_ADDRSTRLEN] = "";
  if (peer.ss_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&peer);
    inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
    return "tcp://" + std::string(text) + ":" + std::to_string(ntohs(v4->sin_port));
  }
  if (peer.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&peer);
    inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
    return "tcp://[" + std::string(text) + "]:" + std::to_string(ntohs(v6->sin6_port));
  }
  ucred who{};
  socklen_t who_size = sizeof who;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &who_size) != 0) return "";
  return "process " + std::to_string(who.pid);
}

Status BindError(const ::zmq::error_t& error, const std::string& address) {
  switch (error.num()) {
    case EADDRINUSE:
      return {Code::kUnavailable,
              "address taken: another listener has " + address + "; choose another, or port 0 for any free one"};
    case EMFILE:
    case ENFILE: return {Code::kResourceExhausted, "no descriptor left to listen on " + address + "; raise ulimit -n"};
    case ENODEV:
    case EADDRNOTAVAIL:
      return {Code::kInvalidArgument, "cannot listen on " + address + ": no interface of this host has that address"};
    default: return {Code::kInvalidArgument, "cannot listen on " + address + ": " + error.what()};
  }
}

}  // namespace

ZmqSocket::ZmqSocket(std::shared_ptr<ZmqProcess> process, ::zmq::socket_type type, const Options& options, bool ipv6)
    : process_(std::move(process)), router_(type == ::zmq::socket_type::router), socket_(process_->context(), type) {
  socket_.set(::zmq::sockopt::linger, ToMs(options.linger));
  socket_.set(::zmq::sockopt::sndhwm, kHighWaterMark);
  socket_.set(::zmq::sockopt::rcvhwm, kHighWaterMark);
  socket_.set(::zmq::sockopt::maxmsgsize,
              static_cast<int64_t>(std::max(limits::kMaxPayloadBytes, limits::kMaxHeaderBytes + kPreludeBytes)));
  socket_.set(::zmq::sockopt::handshake_ivl, ToMs(options.handshake_deadline));
  socket_.set(::zmq::sockopt::ipv6, ipv6);
  if (router_) {
    socket_.set(::zmq::sockopt::router_mandatory, true);
    socket_.set(::zmq::sockopt::backlog, 1024);
  } else {
    // A link lives once. Not -1, which makes libzmq drop what it has received but not delivered when the link breaks;
    // with a day's wait it keeps that, and the socket is closed long before.
    socket_.set(::zmq::sockopt::reconnect_ivl, 24 * 3600 * 1000);
    // 128 random bits: who cannot guess it cannot collide with it or take it over.
    const uint64_t id[2] = {EntropyU64(), EntropyU64()};
    std::string route(1 + sizeof id, 'e');  // a leading zero byte is reserved by libzmq
    std::memcpy(route.data() + 1, id, sizeof id);
    socket_.set(::zmq::sockopt::routing_id, route);
  }
  fd_ = socket_.get(::zmq::sockopt::fd);
}

void ZmqSocket::StartMonitor() {
  static std::atomic<uint64_t> next{1};
  const std::string name = "inproc://everstep-monitor/" + std::to_string(next++);
  if (zmq_socket_monitor(socket_.handle(), name.c_str(), kEvents) != 0) throw ::zmq::error_t();
  monitor_ = ::zmq::socket_t(process_->context(), ::zmq::socket_type::pair);
  // Without a bound: libzmq's I/O thread blocks when its events find no room. They are few and read at once.
  monitor_.set(::zmq::sockopt::rcvhwm, 0);
  monitor_.set(::zmq::sockopt::linger, 0);
  monitor_.connect(name);
  monitor_fd_ = monitor_.get(::zmq::sockopt::fd);
}

Result<std::unique_ptr<ZmqSocket>> ZmqSocket::Bind(std::shared_ptr<ZmqProcess> process, const std::string& address,
                                                   const BindPlan& plan, const Options& options) {
  try {
    std::unique_ptr<ZmqSocket> self(new ZmqSocket(std::move(process), ::zmq::socket_type::router, options, plan.ipv6));
    if (!address.starts_with("inproc://")) self->StartMonitor();
    self->socket_.bind(plan.endpoint);
    self->bound_ = self->socket_.get(::zmq::sockopt::last_endpoint);
    return self;
  } catch (const ::zmq::error_t& error) {
    return BindError(error, address);
  }
}

Result<std::unique_ptr<ZmqSocket>> ZmqSocket::Connect(std::shared_ptr<ZmqProcess> process, const ConnectPlan& plan,
                                                      const Options& options) {
  try {
    std::unique_ptr<ZmqSocket> self(new ZmqSocket(std::move(process), ::zmq::socket_type::dealer, options, plan.ipv6));
    if (!plan.endpoint.starts_with("inproc://")) self->StartMonitor();
    self->socket_.connect(plan.endpoint);
    return self;
  } catch (const ::zmq::error_t& error) {
    if (error.num() == EMFILE || error.num() == ENFILE) {
      return Status(Code::kResourceExhausted,
                    "no descriptor left to connect to " + plan.endpoint + "; raise ulimit -n");
    }
    return Status(Code::kInvalidArgument, "cannot connect to " + plan.endpoint + ": " + error.what());
  }
}

ZmqSocket::~ZmqSocket() {
  // In this order: an event that finds the monitor's reader gone would block libzmq's I/O thread.
  if (monitor_fd_ >= 0) zmq_socket_monitor(socket_.handle(), nullptr, 0);
  monitor_.close();
  socket_.close();
}

std::optional<Inbound> ZmqSocket::Receive() {
  Inbound inbound;
  ::zmq::message_t parts[limits::kMaxFramesPerMessage];  // head, payload
  int count = 0;                                         // of parts behind the routing id
  try {
    ::zmq::message_t part;
    if (!socket_.recv(part, ::zmq::recv_flags::dontwait)) return std::nullopt;
    bool routed = !router_;
    while (true) {
      const bool more = part.more();
      if (!routed) {
        inbound.route = part.to_string();
        routed = true;
      } else if (count++ < static_cast<int>(limits::kMaxFramesPerMessage)) {
        parts[count - 1] = std::move(part);
      }
      if (!more) break;
      // The parts of a message arrive together, so this never finds nothing.
      if (!socket_.recv(part, ::zmq::recv_flags::dontwait)) break;
    }
  } catch (const ::zmq::error_t& error) {
    if (error.num() != EINTR) log::Warning(std::string("ZeroMQ receive: ") + error.what());
    return std::nullopt;
  }
  const ::zmq::message_t& head = parts[0];
  if (count < 1 || count > static_cast<int>(limits::kMaxFramesPerMessage)) {
    inbound.fault = {Code::kCorrupt, "a message of " + std::to_string(count) + " parts"};
    return inbound;
  }
  Result<Prelude> prelude = DecodePrelude({head.data<std::byte>(), head.size()});
  if (!prelude.ok()) {
    inbound.fault = prelude.status();
    return inbound;
  }
  inbound.prelude = *prelude;
  if (prelude->kind == Kind::kHello) {
    inbound.fd = zmq_msg_get(head.handle(), ZMQ_SRCFD);
    inbound.origin = OriginOf(inbound.fd);
  }
  if (head.size() - kPreludeBytes > limits::kMaxHeaderBytes) {
    inbound.fault = {Code::kCorrupt, "a header of " + std::to_string(head.size() - kPreludeBytes) + " bytes"};
    return inbound;
  }
  if (count == 2 && (parts[1].size() == 0 || prelude->kind != Kind::kData)) {
    inbound.fault = {Code::kCorrupt, "a payload where none belongs"};
    return inbound;
  }
  inbound.header = ToBuffer(std::move(parts[0]), kPreludeBytes);
  if (count == 2) inbound.payload = ToBuffer(std::move(parts[1]), 0);
  return inbound;
}

std::optional<MonitorEvent> ZmqSocket::ReceiveEvent() {
  if (monitor_fd_ < 0) return std::nullopt;
  try {
    ::zmq::message_t what;
    if (!monitor_.recv(what, ::zmq::recv_flags::dontwait)) return std::nullopt;
    for (bool more = what.more(); more;) {  // the endpoint's name, which is not needed
      ::zmq::message_t rest;
      if (!monitor_.recv(rest, ::zmq::recv_flags::dontwait)) break;
      more = rest.more();
    }
    uint16_t event = 0;
    int32_t value = -1;
    if (what.size() != sizeof event + sizeof value) return MonitorEvent{};
    std::memcpy(&event, what.data(), sizeof event);
    std::memcpy(&value, what.data<std::byte>() + sizeof event, sizeof value);
    switch (event) {
      case ZMQ_EVENT_ACCEPTED: return MonitorEvent{MonitorEvent::kAccepted, value};
      case ZMQ_EVENT_DISCONNECTED: return MonitorEvent{MonitorEvent::kDisconnected, value};
      case ZMQ_EVENT_CONNECT_RETRIED: return MonitorEvent{MonitorEvent::kConnectFailed, -1};
      case ZMQ_EVENT_CLOSED:
        return MonitorEvent{router_ ? MonitorEvent::kListenerClosed : MonitorEvent::kConnectFailed, value};
      case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
      case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
      case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH: return MonitorEvent{MonitorEvent::kHandshakeFailed, -1};
      default: return MonitorEvent{};
    }
  } catch (const ::zmq::error_t&) {
    return std::nullopt;
  }
}

Sent ZmqSocket::Send(const std::string& route, const Prelude& prelude, const Buffer& header, const Buffer& payload) {
  using ::zmq::send_flags;
  const auto last = payload.empty() ? send_flags::dontwait : send_flags::dontwait | send_flags::sndmore;
  try {
    if (router_) {
      ::zmq::message_t to(route);
      if (!socket_.send(to, send_flags::dontwait | send_flags::sndmore)) return Sent::kFull;
    }
    // Once the first part of a message was taken, the rest always is.
    ::zmq::message_t head = MakeHead(prelude, header);
    if (!socket_.send(head, last)) return Sent::kFull;
    if (!payload.empty()) {
      ::zmq::message_t body = ToMessage(payload);
      (void)socket_.send(body, send_flags::dontwait);
    }
    return Sent::kDone;
  } catch (const ::zmq::error_t& error) {
    if (error.num() != EHOSTUNREACH) log::Warning(std::string("ZeroMQ send: ") + error.what());
    return Sent::kGone;
  }
}

bool ZmqSocket::Ready(bool want_write) {
  try {
    const int events = socket_.get(::zmq::sockopt::events);
    return (events & ZMQ_POLLIN) != 0 || (want_write && (events & ZMQ_POLLOUT) != 0);
  } catch (const ::zmq::error_t&) {
    return true;  // interrupted: look again
  }
}

void ZmqSocket::Unbind() {
  constexpr Duration kPatience = std::chrono::milliseconds(500);
  try {
    socket_.unbind(bound_);
  } catch (const ::zmq::error_t& error) {
    log::Warning("ZeroMQ unbind of " + bound_ + ": " + error.what());
    return;
  }
  const Time deadline = SteadyNow() + kPatience;
  while (monitor_fd_ >= 0) {
    while (const auto event = ReceiveEvent()) {
      if (event->kind == MonitorEvent::kListenerClosed) return;
    }
    const Duration left = deadline - SteadyNow();
    if (left <= Duration::zero()) return;
    pollfd ready{monitor_fd_, POLLIN, 0};
    poll(&ready, 1, ToMs(left) + 1);
  }
}

void ZmqSocket::SetLinger(Duration linger) { socket_.set(::zmq::sockopt::linger, ToMs(linger)); }

}  // namespace everstep::transport::zeromq
