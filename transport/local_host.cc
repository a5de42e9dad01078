#include "transport/local_host.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

namespace everstep::transport {
namespace {

// The addresses of this host's interfaces, as text.
std::vector<std::string> OwnAddresses() {
  std::vector<std::string> own;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return own;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    char text[INET6_ADDRSTRLEN] = "";
    if (one->ifa_addr->sa_family == AF_INET) {
      inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, text, sizeof text);
    } else if (one->ifa_addr->sa_family == AF_INET6) {
      inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr, text, sizeof text);
    }
    if (text[0] != '\0') own.emplace_back(text);
  }
  return own;
}

std::string OwnName() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

std::string_view HostOf(std::string_view host_and_port) {
  std::string_view host = host_and_port.substr(0, host_and_port.rfind(':'));
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return host;
}

bool IsLoopback(std::string_view host) {
  if (host == "localhost" || host == "::1") return true;
  return host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string_view::npos;
}

std::string SharedNameOf(std::string_view host_and_port) {
  const size_t colon = host_and_port.rfind(':');
  std::string host(HostOf(host_and_port));
  if (host == "*") host = "0.0.0.0";
  return "tcp/" + host + std::string(colon == std::string_view::npos ? "" : host_and_port.substr(colon));
}

std::vector<std::string> SharedNamesFor(std::string_view host_and_port) {
  const size_t colon = host_and_port.rfind(':');
  if (colon == std::string_view::npos) return {};
  const std::string port(host_and_port.substr(colon));
  const std::string host(HostOf(host_and_port));
  std::vector<std::string> hosts;
  if (host == "localhost") {
    hosts = {"127.0.0.1", "::1"};
  } else if (IsLoopback(host)) {
    hosts = {host};
  } else {
    const std::vector<std::string> own = OwnAddresses();
    if (std::find(own.begin(), own.end(), host) != own.end()) {
      hosts = {host};
    } else if (host == OwnName()) {
      hosts = own;
    } else {
      return {};
    }
  }
  // Whoever listens on all interfaces is behind each of them.
  hosts.insert(hosts.end(), {"0.0.0.0", "::"});
  std::vector<std::string> names;
  for (const std::string& one : hosts) names.push_back("tcp/" + one + port);
  return names;
}

}  // namespace everstep::transport
