// Which tcp:// addresses lead to this very host, and how a listener there is found through shared memory.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace everstep::transport {

// "[::1]:70" -> "::1", "ps0:70" -> "ps0".
std::string_view HostOf(std::string_view host_and_port);

// 127.0.0.0/8 and ::1 as literals, and localhost. A name such as "127.example.org" may lead anywhere.
bool IsLoopback(std::string_view host);

// The shm:// name of whoever listens at tcp://`host_and_port`, as the listener itself reports it.
std::string SharedNameOf(std::string_view host_and_port);

// The shm:// names under which a listener that tcp://`host_and_port` leads to may be found: none when it leads to
// another host, or to nobody knows where (a name that is not this host's own; it is not looked up).
std::vector<std::string> SharedNamesFor(std::string_view host_and_port);

}  // namespace everstep::transport
