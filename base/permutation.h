// A fixed pseudo-random permutation of [0, n) in O(1) memory: the order in which one epoch's samples are read.
//
// A balanced Feistel network of four rounds over the smallest even number of bits that holds n, with cycle walking
// (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002): a position that falls outside is permuted again,
// fewer than four times on average. The same (seed, epoch, n) gives the same order on every machine. Immutable.
#pragma once

#include <cstdint>

namespace everstep {

class Permutation {
 public:
  // REQUIRES: n >= 1.
  Permutation(uint64_t seed, uint64_t epoch, uint64_t n);

  // The sample at `position`. REQUIRES: position < n.
  uint64_t At(uint64_t position) const;

 private:
  uint64_t Once(uint64_t x) const;

  uint64_t n_;
  unsigned half_bits_;
  uint64_t mask_;
  uint64_t keys_[4];
};

}  // namespace everstep
