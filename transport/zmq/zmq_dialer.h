// The connecting end: one DEALER socket for one Link, from the first hello to the last flush.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "transport/zmq/zmq_context.h"
#include "transport/zmq/zmq_link.h"

namespace everstep::transport::zeromq {

class Dialer final : public Endpoint, public LinkHost {
 public:
  static Result<std::shared_ptr<Dialer>> Make(ZmqContext& context, const std::string& address,
                                              ConnectionHandler* handler, Duration deadline);

  const std::shared_ptr<Link>& link() const { return link_; }

  bool Work() override;
  void Abandon() override;

  Sent Put(const Link& link, const Prelude& prelude, const Buffer& header, const Buffer& payload) override;
  void Wake(Link& link) override;
  Loop& loop() override { return context().loop(); }
  Counters& counters() override { return context().mutable_counters(); }

 private:
  explicit Dialer(ZmqContext& context) : Endpoint(context) {}

  void ReadEvents();
  // Reads up to a turn's worth. True when the inbox is empty.
  bool ReadMessages();
  void Handle(Inbound inbound);
  void OnDeadline(Duration deadline);
  void Shut();

  std::string address_;
  std::unique_ptr<ZmqSocket> socket_;
  std::shared_ptr<Link> link_;
  Loop::TimerId deadline_timer_ = 0;
  bool event_ready_ = true;  // the monitor's descriptor was readable; it is so only after a first look
  bool peer_closed_ = false;
  std::optional<Status> broken_;  // why the link below is no more; told when the inbox is empty
};

}  // namespace everstep::transport::zeromq
