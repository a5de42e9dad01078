#include "transport/zmq/zmq_context.h"

#include "base/check.h"
#include "transport/zmq/zmq_dialer.h"
#include "transport/zmq/zmq_listener.h"

namespace everstep::transport::zeromq {

std::vector<std::string> Schemes() { return {"inproc", "ipc", "tcp"}; }

Result<std::unique_ptr<Context>> MakeContext(Loop& loop, const Options& options) {
  EVERSTEP_ASSIGN(auto process, ZmqProcess::Get());
  return std::unique_ptr<Context>(std::make_unique<ZmqContext>(loop, std::move(process), options));
}

ZmqContext::ZmqContext(Loop& loop, std::shared_ptr<ZmqProcess> process, const Options& options)
    : loop_(loop), process_(std::move(process)), options_(options) {
  idle_ = loop_.AddIdle([this] { return Round(); });
}

ZmqContext::~ZmqContext() {
  EVERSTEP_CHECK(loop_.InLoop(), "a transport context belongs to its loop's thread");
  EVERSTEP_CHECK(!in_round_, "a transport context cannot be destroyed inside its own callback");
  loop_.RemoveIdle(idle_);
  while (!endpoints_.empty()) endpoints_.begin()->second->Abandon();
}

Result<std::unique_ptr<Listener>> ZmqContext::Listen(const std::string& address, OnAccept on_accept) {
  EVERSTEP_CHECK(loop_.InLoop(), "a transport context belongs to its loop's thread");
  EVERSTEP_ASSIGN(auto listener, ZmqListener::Make(*this, address, std::move(on_accept)));
  endpoints_.emplace(listener.get(), listener);
  return std::unique_ptr<Listener>(std::make_unique<ListenerHandle>(std::move(listener)));
}

Result<std::shared_ptr<Connection>> ZmqContext::Connect(const std::string& address, ConnectionHandler* handler,
                                                        Duration deadline) {
  EVERSTEP_CHECK(loop_.InLoop(), "a transport context belongs to its loop's thread");
  EVERSTEP_ASSIGN(auto dialer, Dialer::Make(*this, address, handler, deadline));
  endpoints_.emplace(dialer.get(), dialer);
  return std::shared_ptr<Connection>(dialer->link());
}

void ZmqContext::Heat(Endpoint& endpoint) {
  if (endpoint.hot_ || endpoint.retired_) return;
  endpoint.hot_ = true;
  hot_.push_back(&endpoint);
}

void ZmqContext::Watch(Endpoint& endpoint, ZmqSocket& socket, bool* on_event) {
  loop_.Watch(socket.fd(), [this, &endpoint] { Heat(endpoint); });
  if (socket.monitor_fd() < 0) return;
  loop_.Watch(socket.monitor_fd(), [this, &endpoint, on_event] {
    *on_event = true;
    Heat(endpoint);
  });
}

void ZmqContext::Unwatch(ZmqSocket& socket) {
  loop_.Unwatch(socket.fd());
  if (socket.monitor_fd() >= 0) loop_.Unwatch(socket.monitor_fd());
}

void ZmqContext::Retire(Endpoint& endpoint) {
  EVERSTEP_CHECK(!endpoint.retired_, "an endpoint retires once");
  endpoint.retired_ = true;
  auto node = endpoints_.extract(&endpoint);
  EVERSTEP_CHECK(!node.empty(), "an endpoint belongs to its context");
  // Callers further up the stack may still be in it. The round that destroys it comes in any case.
  retired_.push_back(std::move(node.mapped()));
  if (!endpoint.hot_) {
    endpoint.hot_ = true;
    hot_.push_back(&endpoint);
  }
}

bool ZmqContext::Round() {
  in_round_ = true;
  std::vector<Endpoint*> turn;
  turn.swap(hot_);
  for (Endpoint* endpoint : turn) endpoint->hot_ = false;
  for (Endpoint* endpoint : turn) {
    if (!endpoint->retired_ && endpoint->Work()) Heat(*endpoint);
  }
  std::erase_if(hot_, [](const Endpoint* endpoint) { return endpoint->retired_; });
  retired_.clear();
  in_round_ = false;
  return !hot_.empty();
}

}  // namespace everstep::transport::zeromq
