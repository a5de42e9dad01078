// Addresses as users write them, turned into what libzmq takes, and checks that libzmq does not do.
#pragma once

#include <string>

#include "base/status.h"

namespace everstep::transport::zeromq {

// How a listener binds and what it calls itself.
struct BindPlan {
  std::string endpoint;   // for zmq_bind: a numeric host
  std::string user_host;  // tcp: the host as given; the address is "tcp://" + user_host + ":" + the real port
  std::string path;       // ipc: the socket file, empty for abstract names ("ipc://@name")
  bool ipv6 = false;
};

// For addresses whose scheme is tcp, ipc or inproc. Looks host names up, which may take as long as the name server
// does; refuses an ipc path where a live process listens (kUnavailable) or where something else than a socket lies,
// because libzmq would delete it unasked.
Result<BindPlan> PlanBind(const std::string& address);

struct ConnectPlan {
  std::string endpoint;
  bool ipv6 = false;
};
Result<ConnectPlan> PlanConnect(const std::string& address);

// "tcp://127.0.0.1:7070" -> "7070"; empty when there is none.
std::string PortOf(const std::string& endpoint);

// Which file lies at `path`, to delete only what one has made oneself.
struct FileId {
  uint64_t device = 0;
  uint64_t inode = 0;
  friend bool operator==(const FileId&, const FileId&) = default;
};
FileId IdOfFile(const std::string& path);

}  // namespace everstep::transport::zeromq
