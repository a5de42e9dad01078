// CHECK for our own bugs only: what a peer, a file or a user sends must end in a Status instead.
#pragma once

#include <string>
#include <string_view>

namespace everstep {

// Prints the place, the condition and the message, and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition, std::string_view message);

#define EVERSTEP_CHECK(condition, message)                                \
  do {                                                                    \
    if (!(condition)) [[unlikely]]                                        \
      ::everstep::CheckFailed(__FILE__, __LINE__, #condition, (message)); \
  } while (false)

}  // namespace everstep
