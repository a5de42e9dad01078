#include "transport/zmq/zmq_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "transport/registry.h"

namespace everstep::transport::zeromq {
namespace {

struct HostPort {
  std::string host;  // without brackets
  std::string port;
  bool bracketed = false;
};

Status Senseless(const std::string& address, const std::string& why) {
  return {Code::kInvalidArgument, "address \"" + address + "\": " + why};
}

bool IsPort(std::string_view text, bool listening) {
  if (text == "*") return listening;
  unsigned port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port <= 65535 && (listening || port > 0);
}

Result<HostPort> SplitTcp(const std::string& address, const std::string& rest, bool listening) {
  const size_t colon = rest.rfind(':');
  if (colon == std::string::npos) return Senseless(address, "tcp needs a host and a port, as in tcp://127.0.0.1:7070");
  HostPort parts{rest.substr(0, colon), rest.substr(colon + 1), false};
  if (!IsPort(parts.port, listening)) {
    return Senseless(address, "\"" + parts.port + "\" is no port" +
                                  (listening ? " (0 to 65535, 0 or * for any free one)" : " (1 to 65535)"));
  }
  if (parts.host.size() >= 2 && parts.host.front() == '[' && parts.host.back() == ']') {
    parts.host = parts.host.substr(1, parts.host.size() - 2);
    parts.bracketed = true;
  }
  if (parts.host.empty()) return Senseless(address, "the host is missing; use * to listen on all interfaces");
  if (!listening && parts.host == "*") return Senseless(address, "* is for listening; name the host to connect to");
  // libzmq gives these a meaning of their own ("source;destination").
  if (parts.host.find_first_of(";/ ") != std::string::npos) return Senseless(address, "that is no host name");
  return parts;
}

// The numeric form of the host to bind, IPv4 first, because that is what connecting ends look names up as.
Result<std::pair<std::string, bool>> ResolveForBind(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) {
    return std::pair(host, false);  // perhaps an interface's name, which libzmq knows how to find
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
      char text[NI_MAXHOST];
      if (one->ai_family != family ||
          getnameinfo(one->ai_addr, one->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) {
        continue;
      }
      const bool ipv6 = family == AF_INET6;
      return std::pair(ipv6 ? "[" + std::string(text) + "]" : std::string(text), ipv6);
    }
  }
  return Status(Code::kInvalidArgument, "host \"" + host + "\" has no address that can be listened on");
}

// Whether a process listens on the socket file now. libzmq deletes whatever lies there, so this must come first.
Status CheckIpcPath(const std::string& address, const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path.size() >= sizeof name.sun_path) {
    return Senseless(address, "an ipc path has at most " + std::to_string(sizeof name.sun_path - 1) + " bytes");
  }
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return Status::Ok();  // also a missing folder: the bind says so
    return Senseless(address, std::strerror(errno));
  }
  if (!S_ISSOCK(info.st_mode)) return Senseless(address, "something that is not a socket lies there; remove it first");
  std::copy(path.begin(), path.end(), name.sun_path);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return {Code::kResourceExhausted, std::string("no socket to probe with: ") + std::strerror(errno)};
  const int rc = connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name);
  const int error = errno;
  close(fd);
  if (rc == 0 || error == EAGAIN || error == EINPROGRESS) {
    return {Code::kUnavailable, "address taken: a process listens on " + address + "; choose another path or end it"};
  }
  if (error != ECONNREFUSED && error != ENOENT) return Senseless(address, std::strerror(error));
  return Status::Ok();  // left behind by a process that is gone
}

}  // namespace

Result<BindPlan> PlanBind(const std::string& address) {
  EVERSTEP_ASSIGN(const Address parsed, ParseAddress(address));
  BindPlan plan;
  plan.endpoint = address;
  if (parsed.scheme == "tcp") {
    EVERSTEP_ASSIGN(const HostPort parts, SplitTcp(address, parsed.rest, /*listening=*/true));
    plan.user_host = parts.bracketed ? "[" + parts.host + "]" : parts.host;
    std::string host = plan.user_host;
    plan.ipv6 = parts.bracketed;
    if (!parts.bracketed && parts.host != "*") {
      EVERSTEP_ASSIGN(auto resolved, ResolveForBind(parts.host));
      host = resolved.first;
      plan.ipv6 = resolved.second;
    }
    plan.endpoint = "tcp://" + host + ":" + (parts.port == "0" ? "*" : parts.port);
  } else if (parsed.scheme == "ipc") {
    // libzmq would put the socket into the current folder, where others cannot find it.
    if (parsed.rest.front() == '*') return Senseless(address, "* is for tcp ports; name a path");
    if (parsed.rest.front() == '@') return plan;
    plan.path = parsed.rest;
    EVERSTEP_RETURN_IF_ERROR(CheckIpcPath(address, plan.path));
  }
  return plan;
}

Result<ConnectPlan> PlanConnect(const std::string& address) {
  EVERSTEP_ASSIGN(const Address parsed, ParseAddress(address));
  ConnectPlan plan{address, false};
  if (parsed.scheme == "tcp") {
    EVERSTEP_ASSIGN(const HostPort parts, SplitTcp(address, parsed.rest, /*listening=*/false));
    plan.ipv6 = parts.bracketed;
  } else if (parsed.scheme == "ipc" && parsed.rest.size() >= sizeof(sockaddr_un{}.sun_path)) {
    return Senseless(address,
                     "an ipc path has at most " + std::to_string(sizeof(sockaddr_un{}.sun_path) - 1) + " bytes");
  }
  return plan;
}

std::string PortOf(const std::string& endpoint) {
  const size_t colon = endpoint.rfind(':');
  return colon == std::string::npos ? "" : endpoint.substr(colon + 1);
}

FileId IdOfFile(const std::string& path) {
  struct stat info {};
  if (path.empty() || lstat(path.c_str(), &info) != 0) return {};
  return {info.st_dev, info.st_ino};
}

}  // namespace everstep::transport::zeromq
