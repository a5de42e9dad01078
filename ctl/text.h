// Numbers and columns of what the commands print.
#pragma once

#include <cstdio>
#include <string>

namespace everstep::ctl {

// A printf conversion of one number, e.g. "%.1f s".
inline std::string Format(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

}  // namespace everstep::ctl
