// A man in the middle: listens, connects on to the real server for each connection made to it, and passes frames both
// ways through a filter that may change, drop or note them. Has a thread of its own, on which the filter runs.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/loop.h"
#include "base/status.h"
#include "transport/registry.h"

namespace everstep::test {

class Relay {
 public:
  // What goes on instead of `frame`; nothing: it is lost.
  using Filter = std::function<std::optional<transport::Frame>(bool to_server, transport::Frame frame)>;

  static Result<std::unique_ptr<Relay>> Start(const std::string& listen, const std::string& server, Filter filter);
  ~Relay();

  const std::string& address() const { return address_; }

 private:
  class Pair;

  Relay(std::string server, Filter filter);
  void End(uint64_t pair);

  const std::string server_;
  const Filter filter_;
  std::string address_;
  // Loop thread.
  std::unique_ptr<transport::Context> context_;
  std::unique_ptr<transport::Listener> listener_;
  std::map<uint64_t, std::unique_ptr<Pair>> pairs_;
  uint64_t next_pair_ = 1;
  LoopThread io_;
};

// An encoded message with another protocol version written into it, as an older or newer peer would send it.
Buffer WithProtocolVersion(const Buffer& message, uint16_t version);

}  // namespace everstep::test
