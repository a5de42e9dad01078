// XXH3, the one checksum of the project (the only door to libxxhash).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace everstep {

uint64_t Checksum64(std::span<const std::byte> bytes, uint64_t seed = 0);
inline uint64_t Checksum64(std::string_view text, uint64_t seed = 0) {
  return Checksum64(std::as_bytes(std::span(text.data(), text.size())), seed);
}

// The same checksum of bytes that come in pieces. One thread at a time.
class ChecksumStream {
 public:
  ChecksumStream();
  ChecksumStream(ChecksumStream&&) noexcept;
  ChecksumStream& operator=(ChecksumStream&&) noexcept;
  ~ChecksumStream();

  void Add(std::span<const std::byte> bytes);
  // Of everything added so far: Checksum64 of the whole.
  uint64_t Value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace everstep
