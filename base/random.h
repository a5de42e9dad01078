// Random numbers: a small seeded generator for cores and tests (same seed, same numbers, on every machine), and
// entropy from the kernel for incarnations.
#pragma once

#include <cstdint>

namespace everstep {

// Mixes 64 bits (the finaliser of splitmix64, Steele et al. 2014).
constexpr uint64_t Mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// splitmix64 as a stream. Not for secrets.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    const uint64_t value = Mix64(state_);
    state_ += 0x9e3779b97f4a7c15ull;
    return value;
  }
  // In [0, bound). REQUIRES: bound > 0.
  uint64_t Below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(Next()) * bound) >> 64);
  }
  // In [low, high].
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Below(static_cast<uint64_t>(high - low) + 1));
  }
  // In [0, 1).
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }
  bool Chance(double probability) { return Uniform() < probability; }

 private:
  uint64_t state_;
};

// 64 bits from the kernel, never 0. For ids that must differ between lives of a process.
uint64_t EntropyU64();

}  // namespace everstep
