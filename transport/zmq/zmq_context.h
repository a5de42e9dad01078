// The ZeroMQ backend's Context: owns the endpoints (listeners and dialers) and gives each a turn when its descriptor or
// its queue says so. A round is short (kMessagesPerTurn each), so that a saturated connection delays the others by some
// frames and never by its whole backlog.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "transport/transport.h"
#include "transport/zmq/factory.h"
#include "transport/zmq/zmq_process.h"
#include "transport/zmq/zmq_socket.h"

namespace everstep::transport::zeromq {

inline constexpr int kMessagesPerTurn = 16;

class ZmqContext;

// Something with a socket. Owned by the context until it retires.
class Endpoint {
 public:
  explicit Endpoint(ZmqContext& context) : context_(context) {}
  virtual ~Endpoint() = default;

  // One turn. True when there is more to do at once.
  virtual bool Work() = 0;
  // Closes everything without callbacks and retires; for the context's end.
  virtual void Abandon() = 0;

  ZmqContext& context() { return context_; }
  bool retired() const { return retired_; }

 private:
  friend class ZmqContext;
  ZmqContext& context_;
  bool hot_ = false;  // has a turn in the next round
  bool retired_ = false;
};

class ZmqContext final : public Context {
 public:
  ZmqContext(Loop& loop, std::shared_ptr<ZmqProcess> process, const Options& options);
  // REQUIRES: not inside a callback of this context.
  ~ZmqContext() override;

  Result<std::unique_ptr<Listener>> Listen(const std::string& address, OnAccept on_accept) override;
  Result<std::shared_ptr<Connection>> Connect(const std::string& address, ConnectionHandler* handler,
                                              Duration deadline) override;
  Counters counters() const override { return counters_; }

  // For endpoints.
  Loop& loop() { return loop_; }
  const std::shared_ptr<ZmqProcess>& process() { return process_; }
  const Options& options() const { return options_; }
  Counters& mutable_counters() { return counters_; }
  // Gives `endpoint` a turn in the next round, which comes before the loop sleeps.
  void Heat(Endpoint& endpoint);
  // Turns whenever the socket's descriptors are ready; `on_event` notes that the monitor's was.
  void Watch(Endpoint& endpoint, ZmqSocket& socket, bool* on_event);
  void Unwatch(ZmqSocket& socket);
  // The endpoint is done; it is destroyed after the round.
  void Retire(Endpoint& endpoint);

 private:
  bool Round();

  Loop& loop_;
  std::shared_ptr<ZmqProcess> process_;
  const Options options_;
  Counters counters_;
  Loop::IdleId idle_ = 0;
  bool in_round_ = false;
  std::unordered_map<Endpoint*, std::shared_ptr<Endpoint>> endpoints_;
  std::vector<std::shared_ptr<Endpoint>> retired_;
  std::vector<Endpoint*> hot_;
};

}  // namespace everstep::transport::zeromq
