#include "transport/zmq/zmq_process.h"

namespace everstep::transport::zeromq {

ZmqProcess::ZmqProcess() : context_(/*io_threads=*/1) {
  // Three per outgoing connection (its own, and two for its monitor); the default of 1023 is soon used up.
  context_.set(::zmq::ctxopt::max_sockets, context_.get(::zmq::ctxopt::socket_limit));
}

Result<std::shared_ptr<ZmqProcess>> ZmqProcess::Get() {
  static std::mutex mutex;
  static std::weak_ptr<ZmqProcess> shared;
  std::lock_guard lock(mutex);
  if (auto alive = shared.lock()) return alive;
  try {
    std::shared_ptr<ZmqProcess> fresh(new ZmqProcess);
    shared = fresh;
    return fresh;
  } catch (const ::zmq::error_t& error) {
    return Status(Code::kResourceExhausted, std::string("ZeroMQ cannot start: ") + error.what());
  }
}

void ZmqProcess::AddName(const std::string& name) {
  std::lock_guard lock(mutex_);
  names_.insert(name);
}

void ZmqProcess::RemoveName(const std::string& name) {
  std::lock_guard lock(mutex_);
  names_.erase(name);
}

bool ZmqProcess::HasName(const std::string& name) const {
  std::lock_guard lock(mutex_);
  return names_.contains(name);
}

}  // namespace everstep::transport::zeromq
