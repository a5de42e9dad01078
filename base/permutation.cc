#include "base/permutation.h"

#include <bit>

#include "base/check.h"
#include "base/random.h"

namespace everstep {

Permutation::Permutation(uint64_t seed, uint64_t epoch, uint64_t n) : n_(n) {
  EVERSTEP_CHECK(n >= 1 && n <= (uint64_t{1} << 62), "permutation of an impossible size");
  const unsigned bits = static_cast<unsigned>(std::bit_width(n - 1));
  half_bits_ = (bits + 1) / 2;
  if (half_bits_ == 0) half_bits_ = 1;
  mask_ = (uint64_t{1} << half_bits_) - 1;
  Random random(Mix64(seed) ^ Mix64(epoch + 0x5851f42d4c957f2dull));
  for (uint64_t& key : keys_) key = random.Next();
}

uint64_t Permutation::Once(uint64_t x) const {
  uint64_t left = x >> half_bits_;
  uint64_t right = x & mask_;
  for (uint64_t key : keys_) {
    const uint64_t next = left ^ (Mix64(right ^ key) & mask_);
    left = right;
    right = next;
  }
  return (left << half_bits_) | right;
}

uint64_t Permutation::At(uint64_t position) const {
  EVERSTEP_CHECK(position < n_, "position outside the epoch");
  uint64_t x = position;
  do {
    x = Once(x);
  } while (x >= n_);
  return x;
}

}  // namespace everstep
