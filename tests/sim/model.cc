#include "tests/sim/model.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace everstep::sim {
namespace {

float Noise(uint64_t seed, uint64_t index) {
  return static_cast<float>(static_cast<double>(Mix64(seed + index * 0x9e3779b97f4a7c15ull) >> 11) * 0x1.0p-52 - 1.0);
}

// Calls value(segment, element address in the chunk, index) for each element of the model.
template <typename F>
Chunks Fill(const ChunkLayout& layout, const F& fill) {
  Chunks chunks;
  uint64_t index = 0;
  for (uint32_t i = 0; i < layout.size(); ++i) {
    const Chunk& chunk = layout.chunk({i});
    MutableBuffer bytes(chunk.bytes);
    std::memset(bytes.data(), 0, chunk.bytes);
    for (const Segment& segment : chunk.segments) {
      const size_t width = ElementBytes(segment.dtype);
      for (uint64_t at = 0; at < segment.bytes; at += width) {
        fill(ChunkId{i}, segment, segment.chunk_offset + at, bytes.data() + segment.chunk_offset + at, index++);
      }
    }
    chunks.emplace(ChunkId{i}, std::move(bytes).Freeze());
  }
  return chunks;
}

uint64_t Fingerprint(const Contribution& c) {
  uint64_t seed = Mix64(c.worker.value) ^ Mix64(c.base.value + 77) ^ Mix64(c.lease.epoch + 99);
  for (const SampleRange& range : c.lease.ranges) seed = Mix64(seed ^ range.begin) ^ Mix64(range.end);
  return seed;
}

}  // namespace

Chunks InitialValues(const ChunkLayout& layout, uint64_t seed) {
  return Fill(layout, [&](ChunkId, const Segment& segment, uint64_t, std::byte* out, uint64_t index) {
    if (segment.dtype == DType::kInt64) {
      const auto value = static_cast<int64_t>(Mix64(seed ^ index) % 1000);
      std::memcpy(out, &value, sizeof value);
    } else {
      const float value = Noise(seed, index);
      std::memcpy(out, &value, sizeof value);
    }
  });
}

Chunks Gradients(const ChunkLayout& layout, const Chunks& parameters, const Contribution& c) {
  const uint64_t seed = Fingerprint(c);
  const uint64_t samples = c.lease.samples() + 1;
  return Fill(layout, [&](ChunkId id, const Segment& segment, uint64_t at, std::byte* out, uint64_t index) {
    const std::byte* const in = parameters.at(id).data() + at;
    if (segment.dtype == DType::kInt64) {
      int64_t value;
      std::memcpy(&value, in, sizeof value);
      value += static_cast<int64_t>((samples + Mix64(seed ^ index)) % 7);
      std::memcpy(out, &value, sizeof value);
      return;
    }
    float p;
    std::memcpy(&p, in, sizeof p);
    const float value =
        segment.role == Role::kBuffer ? 0.9f * p + Noise(seed, index) : 0.1f * p + 0.3f * Noise(seed, index);
    std::memcpy(out, &value, sizeof value);
  });
}

bool Poison(const ChunkLayout& layout, Random& random, Chunks* chunks) {
  std::vector<std::pair<ChunkId, uint64_t>> places;
  for (uint32_t i = 0; i < layout.size(); ++i) {
    for (const Segment& segment : layout.chunk({i}).segments) {
      if (segment.dtype != DType::kFloat32) continue;
      for (uint64_t at = 0; at < segment.bytes; at += 4) places.emplace_back(ChunkId{i}, segment.chunk_offset + at);
    }
  }
  if (places.empty()) return false;
  const auto [id, at] = places[random.Below(places.size())];
  const Buffer& old = chunks->at(id);
  MutableBuffer bytes(old.size());
  std::memcpy(bytes.data(), old.data(), old.size());
  const float values[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()};
  std::memcpy(bytes.data() + at, &values[random.Below(3)], sizeof(float));
  (*chunks)[id] = std::move(bytes).Freeze();
  return true;
}

}  // namespace everstep::sim
