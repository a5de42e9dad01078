#include "base/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace everstep {

uint64_t Checksum64(std::span<const std::byte> bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

struct ChecksumStream::State {
  XXH3_state_t xxh;  // 64-byte aligned by its type
};

ChecksumStream::ChecksumStream() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->xxh); }
ChecksumStream::ChecksumStream(ChecksumStream&&) noexcept = default;
ChecksumStream& ChecksumStream::operator=(ChecksumStream&&) noexcept = default;
ChecksumStream::~ChecksumStream() = default;

void ChecksumStream::Add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(&state_->xxh, bytes.data(), bytes.size());
}

uint64_t ChecksumStream::Value() const { return XXH3_64bits_digest(&state_->xxh); }

}  // namespace everstep
