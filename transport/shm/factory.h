// The only door to the shared-memory backend, which serves shm:// between processes of one host.
//
// How the pieces fit: frames travel over a Unix socket, payloads stay where they are. A payload that lies in shared
// memory (transport/shared_memory.h) is named by segment and offset; the receiver reads it in the sender's pages, which
// it has mapped, and says when the last Buffer on it is gone. Until then the sender keeps its Buffer, so that the
// memory's pool cannot hand it out again: also after the connection is over, as long as the receiving process lives
// (shm_orphans.h). Other payloads are copied into shared memory first; where there is none they go through the socket.
// The death of a process closes its socket, and the kernel frees its memory with the last process that maps it: nothing
// has a name in the file system.
//
// Addresses are shm://NAME, in Linux' abstract socket namespace, i.e. one for each network namespace; shm://* takes a
// free name.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/backend_options.h"
#include "transport/transport.h"

namespace everstep::transport::shm {

using Options = BackendOptions;

std::vector<std::string> Schemes();

// A context that can also tell at once whether anybody listens.
class SharedContext : public Context {
 public:
  // As Connect, but null when nobody listens at shm://`name`. `shown` is what the connection calls its peer.
  virtual std::shared_ptr<Connection> ConnectIfListening(const std::string& name, const std::string& shown,
                                                         ConnectionHandler* handler, Duration deadline) = 0;
};

// `loop` must outlive the context.
std::unique_ptr<SharedContext> MakeContext(Loop& loop, const Options& options);

}  // namespace everstep::transport::shm
