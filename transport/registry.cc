#include "transport/registry.h"

#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "transport/local_host.h"
#include "transport/shm/factory.h"
#include "transport/zmq/factory.h"

namespace everstep::transport {
namespace {

// One backend and the schemes it serves. `make` answers with the reason when the backend cannot run here.
struct Backend {
  std::vector<std::string> schemes;
  std::function<Result<std::unique_ptr<Context>>(Loop&)> make;
};

const std::vector<Backend>& Backends() {
  static const std::vector<Backend> backends = {
      {zeromq::Schemes(), [](Loop& loop) { return zeromq::MakeContext(loop, {}); }},
      {shm::Schemes(), [](Loop& loop) { return std::unique_ptr<Context>(shm::MakeContext(loop, {})); }},
  };
  return backends;
}

std::string KnownSchemes() {
  std::string known;
  for (const std::string& scheme : Schemes()) known += (known.empty() ? "" : ", ") + scheme + "://";
  return known;
}

// A listener at a tcp:// address, and the same one for processes of this host.
class TwoDoors final : public Listener {
 public:
  TwoDoors(std::unique_ptr<Listener> network, std::unique_ptr<Listener> host)
      : network_(std::move(network)), host_(std::move(host)) {}
  const std::string& address() const override { return network_->address(); }

 private:
  const std::unique_ptr<Listener> network_;
  const std::unique_ptr<Listener> host_;
};

// Sends each call to the backend of the address's scheme.
class SchemeContext final : public Context {
 public:
  SchemeContext(Loop& loop, const ContextOptions& options)
      : loop_(loop), options_(options), contexts_(Backends().size()) {}

  Result<std::unique_ptr<Listener>> Listen(const std::string& address, OnAccept on_accept) override {
    EVERSTEP_ASSIGN(Context * context, ContextFor(address));
    EVERSTEP_ASSIGN(std::unique_ptr<Listener> listener, context->Listen(address, on_accept));
    const Result<Address> real = ParseAddress(listener->address());
    if (!options_.shared_memory || !real.ok() || real->scheme != "tcp") return listener;
    auto host = Shared().Listen("shm://" + SharedNameOf(real->rest), std::move(on_accept));
    if (!host.ok()) {
      log::Warning("processes of this host will use " + address +
                   " instead of shared memory: " + host.status().message());
      return listener;
    }
    return std::unique_ptr<Listener>(std::make_unique<TwoDoors>(std::move(listener), std::move(*host)));
  }

  Result<std::shared_ptr<Connection>> Connect(const std::string& address, ConnectionHandler* handler,
                                              Duration deadline) override {
    EVERSTEP_ASSIGN(Context * context, ContextFor(address));
    EVERSTEP_ASSIGN(const Address parsed, ParseAddress(address));
    if (options_.shared_memory && parsed.scheme == "tcp") {
      for (const std::string& name : SharedNamesFor(parsed.rest)) {
        if (auto connection = Shared().ConnectIfListening(name, address, handler, deadline)) return connection;
      }
    }
    return context->Connect(address, handler, deadline);
  }

  Counters counters() const override {
    Counters sum;
    if (shared_) Add(shared_->counters(), sum);
    for (const auto& context : contexts_) {
      if (context) Add(context->counters(), sum);
    }
    return sum;
  }

 private:
  static void Add(const Counters& one, Counters& sum) {
    sum.frames_sent += one.frames_sent;
    sum.frames_received += one.frames_received;
    sum.bytes_sent += one.bytes_sent;
    sum.bytes_received += one.bytes_received;
    sum.accepted += one.accepted;
    sum.refused_frames += one.refused_frames;
    sum.failed_handshakes += one.failed_handshakes;
  }

  shm::SharedContext& Shared() {
    if (!shared_) shared_ = shm::MakeContext(loop_, {});
    return *shared_;
  }

  Result<Context*> ContextFor(const std::string& address) {
    EVERSTEP_CHECK(loop_.InLoop(), "a transport context belongs to its loop's thread");
    EVERSTEP_ASSIGN(const Address parsed, ParseAddress(address));
    const std::vector<Backend>& backends = Backends();
    for (size_t i = 0; i < backends.size(); ++i) {
      for (const std::string& scheme : backends[i].schemes) {
        if (scheme != parsed.scheme) continue;
        if (contexts_[i] == nullptr) {
          Result<std::unique_ptr<Context>> made = backends[i].make(loop_);
          if (!made.ok()) return made.status().With(scheme + ":// cannot be used on this machine");
          contexts_[i] = std::move(made).value();
        }
        return contexts_[i].get();
      }
    }
    return Status(Code::kInternal, "no backend for a scheme that was parsed: " + parsed.scheme);
  }

  Loop& loop_;
  const ContextOptions options_;
  std::unique_ptr<shm::SharedContext> shared_;      // behind tcp:// addresses; null until first used
  std::vector<std::unique_ptr<Context>> contexts_;  // by the index of their backend; null until first used
};

}  // namespace

std::vector<std::string> Schemes() {
  std::vector<std::string> schemes;
  for (const Backend& backend : Backends()) {
    schemes.insert(schemes.end(), backend.schemes.begin(), backend.schemes.end());
  }
  std::sort(schemes.begin(), schemes.end());
  return schemes;
}

Result<Address> ParseAddress(std::string_view address) {
  const size_t separator = address.find("://");
  const std::string quoted = "address \"" + std::string(address.substr(0, limits::kMaxNameBytes)) + "\"";
  if (separator == std::string_view::npos || separator == 0) {
    return Status(Code::kInvalidArgument, quoted + " needs a scheme in front, one of " + KnownSchemes());
  }
  Address parsed{std::string(address.substr(0, separator)), std::string(address.substr(separator + 3))};
  const std::vector<std::string> schemes = Schemes();
  if (std::find(schemes.begin(), schemes.end(), parsed.scheme) == schemes.end()) {
    return Status(Code::kInvalidArgument, quoted + " has an unknown scheme; known are " + KnownSchemes());
  }
  if (parsed.rest.empty()) {
    return Status(Code::kInvalidArgument, quoted + " names nothing after " + parsed.scheme + "://");
  }
  return parsed;
}

bool IsLocalOnly(std::string_view address) {
  const Result<Address> parsed = ParseAddress(address);
  if (!parsed.ok()) return false;
  if (parsed->scheme == "inproc" || parsed->scheme == "ipc" || parsed->scheme == "shm") return true;
  if (parsed->scheme != "tcp") return false;
  return IsLoopback(HostOf(parsed->rest));
}

std::unique_ptr<Context> MakeContext(Loop& loop, const ContextOptions& options) {
  return std::make_unique<SchemeContext>(loop, options);
}

}  // namespace everstep::transport
