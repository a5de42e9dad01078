// From an address to the backend that serves it: "tcp://127.0.0.1:7070" -> the factory registered for "tcp".
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "transport/transport.h"

namespace everstep::transport {

struct Address {
  std::string scheme;  // "tcp"
  std::string rest;    // "127.0.0.1:7070"
};

// kInvalidArgument with the known schemes when there is no "scheme://".
Result<Address> ParseAddress(std::string_view address);

// True when nobody outside this host can reach a listener at `address` (loopback, ipc, inproc).
bool IsLocalOnly(std::string_view address);

struct ContextOptions {
  // Whoever listens at a tcp:// address is also reached through shared memory by processes of the same host (more
  // exactly: of the same network namespace), who take that way by themselves.
  bool shared_memory = true;
};

// A Context that hands each address to the backend of its scheme; backends are made when first used. Backends that
// cannot run here answer with the reason instead of a listener or connection. `loop` must outlive it.
std::unique_ptr<Context> MakeContext(Loop& loop, const ContextOptions& options = {});

// The schemes this build knows, sorted.
std::vector<std::string> Schemes();

}  // namespace everstep::transport
