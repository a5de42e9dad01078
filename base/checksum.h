// XXH3, the one checksum of the project (the only door to libxxhash).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace everstep {

uint64_t Checksum64(std::span<const std::byte> bytes, uint64_t seed = 0);
inline uint64_t Checksum64(std::string_view text, uint64_t seed = 0) {
  return Checksum64(std::as_bytes(std::span(text.data(), text.size())), seed);
}

}  // namespace everstep
