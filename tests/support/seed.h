// Seeds of random tests: fresh in each run, or the one given by EVERSTEP_SEED to replay a failure. The seed is printed
// with every assertion that fails in its scope:
//
//   const uint64_t seed = test::Seed();
//   EVERSTEP_SEEDED(seed);
//   Random random(seed);
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <string>

#include "base/random.h"

namespace everstep::test {

inline uint64_t Seed() {
  const char* given = getenv("EVERSTEP_SEED");
  return given != nullptr ? strtoull(given, nullptr, 0) : EntropyU64();
}

}  // namespace everstep::test

#define EVERSTEP_SEEDED(seed) SCOPED_TRACE("replay with EVERSTEP_SEED=" + std::to_string(seed))
