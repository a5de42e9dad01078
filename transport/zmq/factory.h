// The only door to the ZeroMQ backend, which serves tcp://, ipc:// and inproc://.
//
// How the pieces fit: ZmqContext runs rounds on the loop; its endpoints are listeners (one ROUTER socket each) and
// dialers (one DEALER socket per outgoing connection); both drive Links, which are the Connections that callers see and
// hold the protocol of zmq_wire.h. ZmqSocket is the only place that touches libzmq's types.
//
// Known limits of libzmq that show through: a host name given to Connect is resolved by libzmq's I/O thread, which a
// slow name server holds up; a hostile peer that sends one message of endlessly many parts makes libzmq buffer them
// (each part is bounded, their number is not; a stranger is cut off at its handshake deadline, a peer that shook hands
// is not); names resolve to IPv4 only, IPv6 is for literal addresses in brackets.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/backend_options.h"
#include "transport/transport.h"

namespace everstep::transport::zeromq {

using Options = BackendOptions;

std::vector<std::string> Schemes();

// `loop` must outlive the context. Fails only when libzmq cannot start (no descriptors, no memory).
Result<std::unique_ptr<Context>> MakeContext(Loop& loop, const Options& options);

}  // namespace everstep::transport::zeromq
