#include "schema/ids.h"

#include <cstdio>

namespace everstep {

std::string Short(WorkerId id) {
  char text[16];
  std::snprintf(text, sizeof text, "%08x", static_cast<unsigned>(id.value >> 32));
  return text;
}

}  // namespace everstep
