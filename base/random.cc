#include "base/random.h"

#include <sys/random.h>

#include <chrono>

#include "base/check.h"

namespace everstep {

uint64_t EntropyU64() {
  uint64_t value = 0;
  while (value == 0) {
    const ssize_t n = getrandom(&value, sizeof value, 0);
    EVERSTEP_CHECK(n == static_cast<ssize_t>(sizeof value), "getrandom must work");
  }
  return value;
}

}  // namespace everstep
