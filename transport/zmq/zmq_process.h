// What all ZeroMQ contexts of a process share: libzmq's context, because inproc:// addresses are seen only inside one,
// and the names bound there, because libzmq lets a connect to a name that nobody has bound wait for ever. It lives as
// long as somebody holds it; the last one to let go waits until what is closed has left (at most Options::linger).
// Any thread.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <zmq.hpp>

#include "base/status.h"

namespace everstep::transport::zeromq {

class ZmqProcess {
 public:
  // kResourceExhausted when libzmq cannot start.
  static Result<std::shared_ptr<ZmqProcess>> Get();

  ::zmq::context_t& context() { return context_; }

  void AddName(const std::string& name);
  void RemoveName(const std::string& name);
  bool HasName(const std::string& name) const;

 private:
  ZmqProcess();

  ::zmq::context_t context_;
  mutable std::mutex mutex_;
  std::set<std::string> names_;
};

}  // namespace everstep::transport::zeromq
