#include "transport/registry.h"

#include <algorithm>

#include "base/check.h"
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
      {shm::Schemes(), [](Loop& loop) { return shm::MakeContext(loop, {}); }},
  };
  return backends;
}

std::string KnownSchemes() {
  std::string known;
  for (const std::string& scheme : Schemes()) known += (known.empty() ? "" : ", ") + scheme + "://";
  return known;
}

// Sends each call to the backend of the address's scheme.
class SchemeContext final : public Context {
 public:
  explicit SchemeContext(Loop& loop) : loop_(loop), contexts_(Backends().size()) {}

  Result<std::unique_ptr<Listener>> Listen(const std::string& address, OnAccept on_accept) override {
    EVERSTEP_ASSIGN(Context * context, ContextFor(address));
    return context->Listen(address, std::move(on_accept));
  }

  Result<std::shared_ptr<Connection>> Connect(const std::string& address, ConnectionHandler* handler,
                                              Duration deadline) override {
    EVERSTEP_ASSIGN(Context * context, ContextFor(address));
    return context->Connect(address, handler, deadline);
  }

  Counters counters() const override {
    Counters sum;
    for (const auto& context : contexts_) {
      if (context == nullptr) continue;
      const Counters one = context->counters();
      sum.frames_sent += one.frames_sent;
      sum.frames_received += one.frames_received;
      sum.bytes_sent += one.bytes_sent;
      sum.bytes_received += one.bytes_received;
      sum.accepted += one.accepted;
      sum.refused_frames += one.refused_frames;
      sum.failed_handshakes += one.failed_handshakes;
    }
    return sum;
  }

 private:
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
  std::vector<std::unique_ptr<Context>> contexts_;  // by the index of their backend; null until first used
};

// "[::1]:70" -> "::1", "ps0:70" -> "ps0".
std::string_view HostOf(std::string_view rest) {
  std::string_view host = rest.substr(0, rest.rfind(':'));
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return host;
}

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
  const std::string_view host = HostOf(parsed->rest);
  if (host == "localhost" || host == "::1") return true;
  // 127.0.0.0/8, as a literal only: a name such as "127.example.org" may lead anywhere.
  return host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string_view::npos;
}

std::unique_ptr<Context> MakeContext(Loop& loop) { return std::make_unique<SchemeContext>(loop); }

}  // namespace everstep::transport
