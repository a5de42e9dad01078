#include "base/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace everstep {

uint64_t Checksum64(std::span<const std::byte> bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace everstep
