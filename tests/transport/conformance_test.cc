// The conformance suite over every scheme.
#include "tests/conformance/transport_conformance.h"
#include "tests/support/temp_dir.h"

namespace everstep::transport {
namespace {

std::string FreshPath() {
  static const test::TempDir folder;
  static int next = 0;
  return folder / std::to_string(next++);
}

const Backend kTcp{"tcp", [] { return std::string("tcp://127.0.0.1:0"); }, true, EVERSTEP_TRANSPORT_PEER};
const Backend kIpc{"ipc", [] { return "ipc://" + FreshPath(); }, true, EVERSTEP_TRANSPORT_PEER};
const Backend kInproc{"inproc",
                      [] {
                        static int next = 0;
                        return "inproc://conformance-" + std::to_string(next++);
                      },
                      false, ""};

const Backend kShm{"shm", [] { return std::string("shm://*"); }, true, EVERSTEP_TRANSPORT_PEER};

// A tcp:// address whose ends are on one host.
const Backend kAround{"tcp", kTcp.fresh_address, true, EVERSTEP_TRANSPORT_PEER, true, "tcp_around"};

INSTANTIATE_TEST_SUITE_P(Zmq, TransportConformance, testing::Values(kTcp, kIpc, kInproc),
                         [](const auto& one) { return one.param.name; });

INSTANTIATE_TEST_SUITE_P(Shm, TransportConformance, testing::Values(kShm, kAround),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace everstep::transport
