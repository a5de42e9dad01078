// The other process in the transport conformance suite; it lives until it is killed.
//   transport_peer connect ADDRESS HOW  connects and sends one frame
//   transport_peer flood ADDRESS HOW    connects and sends numbered frames without end
//   transport_peer listen ADDRESS HOW   listens, prints the real address, and echoes frames
// HOW: "shared" goes around the network where both ends are on one host, "apart" does not.
#include <cstdio>
#include <cstring>
#include <string>

#include "base/loop.h"
#include "transport/registry.h"

namespace {

using namespace everstep;             // NOLINT
using namespace everstep::transport;  // NOLINT

class Echo : public ConnectionHandler {
 public:
  void OnFrame(Connection& connection, Received received) override {
    (void)connection.Send({received.header, received.payload});
  }
  void OnClosed(Connection&, const Status&) override {}
};

int Main(const std::string& what, const std::string& address, bool shared_memory) {
  Loop loop;
  auto context = MakeContext(loop, {shared_memory});
  Echo handler;
  if (what == "listen") {
    auto listener = context->Listen(address, [&](auto) { return &handler; });
    if (!listener.ok()) return 1;
    std::printf("%s\n", (*listener)->address().c_str());
    std::fflush(stdout);
    loop.Run();
  }
  auto connection = context->Connect(address, &handler, std::chrono::seconds(10));
  if (!connection.ok()) return 1;
  uint64_t number = 0;
  if (what == "connect") {
    (void)(*connection)->Send({Buffer::Copy("here"), {}});
  } else {
    loop.AddIdle([&] {
      const size_t size = number % 3 == 0 ? 0 : (number * 7919) % 200000;
      if ((*connection)->queued_bytes() < (1u << 20)) {
        (void)(*connection)->Send({Buffer::Copy(std::to_string(number++)), MutableBuffer(size).Freeze()});
      }
      return true;
    });
  }
  loop.Run();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  return Main(argv[1], argv[2], std::string(argv[3]) == "shared");
}
