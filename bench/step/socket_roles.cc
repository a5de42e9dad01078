#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "base/file.h"
#include "bench/step/control.h"
#include "bench/step/roles.h"

namespace everstep::bench {
namespace {

bool WriteAll(int fd, const std::byte* data, size_t size) {
  for (size_t done = 0; done < size;) {
    const ssize_t n = send(fd, data + done, size - done, MSG_NOSIGNAL);
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

bool ReadAll(int fd, std::byte* data, size_t size) {
  for (size_t done = 0; done < size;) {
    const ssize_t n = recv(fd, data + done, size - done, 0);
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

// "unix:PATH", or "tcp:FILE" where the hub writes the port that it got.
struct Where {
  bool unix_socket = false;
  std::string path;

  explicit Where(const std::string& address)
      : unix_socket(address.starts_with("unix:")), path(address.substr(address.find(':') + 1)) {}

  int Socket() const { return socket(unix_socket ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); }
  sockaddr_un UnixName() const {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    path.copy(name.sun_path, sizeof name.sun_path - 1);
    return name;
  }
  static sockaddr_in TcpName(uint16_t port) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    name.sin_port = htons(port);
    return name;
  }
};

int Listen(const Where& where) {
  const int fd = where.Socket();
  const sockaddr_un unix_name = where.UnixName();
  sockaddr_in tcp_name = Where::TcpName(0);
  const int bound = where.unix_socket ? bind(fd, reinterpret_cast<const sockaddr*>(&unix_name), sizeof unix_name)
                                      : bind(fd, reinterpret_cast<const sockaddr*>(&tcp_name), sizeof tcp_name);
  if (bound != 0 || listen(fd, 16) != 0) return -1;
  if (where.unix_socket) return fd;
  socklen_t size = sizeof tcp_name;
  getsockname(fd, reinterpret_cast<sockaddr*>(&tcp_name), &size);
  return WriteFileDurably(where.path, std::to_string(ntohs(tcp_name.sin_port))).ok() ? fd : -1;
}

// The hub is up before the spokes are started.
int Connect(const Where& where) {
  const int fd = where.Socket();
  int connected = -1;
  if (where.unix_socket) {
    const sockaddr_un name = where.UnixName();
    connected = connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name);
  } else {
    const Result<std::string> port = ReadFile(where.path);
    const sockaddr_in name = Where::TcpName(static_cast<uint16_t>(port.ok() ? std::atoi(port->c_str()) : 0));
    connected = connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name);
    const int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  }
  return connected == 0 ? fd : -1;
}

}  // namespace

int RunHubRole(const RoleOptions& options) {
  const int listener = Listen(Where(options.address));
  if (listener < 0) {
    std::fprintf(stderr, "cannot listen at %s: %s\n", options.address.c_str(), std::strerror(errno));
    return 4;
  }
  const std::vector<std::byte> down(options.bytes, std::byte{1});
  std::barrier all(options.workers);
  std::thread accepting([&] {
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < options.workers; ++i) {
      const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      threads.emplace_back([&, fd] {
        std::vector<std::byte> up(options.bytes);
        while (ReadAll(fd, up.data(), up.size())) {
          all.arrive_and_wait();
          if (!WriteAll(fd, down.data(), down.size())) break;
        }
        all.arrive_and_drop();
        close(fd);
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  const int code = Serve(options.control, [](uint64_t) -> Result<Span> { return Span{}; });
  _exit(code);  // whether or not its spokes are still there
}

int RunSpokeRole(const RoleOptions& options) {
  const int fd = Connect(Where(options.address));
  if (fd < 0) {
    std::fprintf(stderr, "cannot connect to %s: %s\n", options.address.c_str(), std::strerror(errno));
    return 4;
  }
  const std::vector<std::byte> up(options.bytes, std::byte{2});
  std::vector<std::byte> down(options.bytes);
  return Serve(options.control, [&](uint64_t steps) -> Result<Span> {
    Span span{SteadyNow(), {}};
    for (uint64_t i = 0; i < steps; ++i) {
      if (!WriteAll(fd, up.data(), up.size()) || !ReadAll(fd, down.data(), down.size())) {
        return Status(Code::kUnavailable, "the hub is gone");
      }
    }
    span.end = SteadyNow();
    if (down.front() != std::byte{1} || down.back() != std::byte{1}) {
      return Status(Code::kInternal, "other bytes came back than were sent");
    }
    return span;
  });
}

}  // namespace everstep::bench
