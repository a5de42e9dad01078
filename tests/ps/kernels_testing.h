// What the tests of ps/kernels share: models with awkward tails, random contributions at odd addresses, bit comparison.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/random.h"
#include "schema/parameter_spec.h"

namespace everstep::kernels {

using Bytes = std::vector<std::byte>;

// Elements per tensor that end blocks, vectors and groups of lanes in all ways.
inline const std::vector<int64_t> kSizes = {1,  2,  3,   4,   5,    7,    8,    9,    15,   16,   17,   31,   33,   63,
                                            64, 65, 100, 255, 1000, 1023, 4095, 4096, 4097, 4111, 8192, 8193, 10007};

inline std::shared_ptr<const ChunkLayout> OneTensor(int64_t elements, uint64_t chunk_bytes = 1 << 20) {
  return ChunkLayout::Make({{{"w", {elements}, DType::kFloat32, Role::kTrainable}}}, chunk_bytes);
}

// Trainables, buffers of both types, scalars and empty tensors, with padding behind most of them.
inline std::shared_ptr<const ChunkLayout> MixedModel(uint64_t chunk_bytes) {
  ParameterSpec spec;
  spec.tensors = {{"conv.weight", {3, 37}, DType::kFloat32, Role::kTrainable},
                  {"empty", {0, 5}, DType::kFloat32, Role::kTrainable},
                  {"bn.weight", {7}, DType::kFloat32, Role::kTrainable},
                  {"bn.mean", {7}, DType::kFloat32, Role::kBuffer},
                  {"bn.batches", {}, DType::kInt64, Role::kBuffer},
                  {"scale", {}, DType::kFloat32, Role::kTrainable},
                  {"table", {11}, DType::kInt64, Role::kBuffer},
                  {"fc.weight", {123, 71}, DType::kFloat32, Role::kTrainable},
                  {"stats", {5003}, DType::kFloat32, Role::kBuffer},
                  {"fc.bias", {1}, DType::kFloat32, Role::kTrainable}};
  return ChunkLayout::Make(std::move(spec), chunk_bytes);
}

// A buffer that starts `shift` bytes behind an aligned address and ends where its allocation ends.
inline Buffer At(const Bytes& bytes, size_t shift) {
  std::shared_ptr<std::byte[]> memory(new std::byte[bytes.size() + shift]);
  std::copy(bytes.begin(), bytes.end(), memory.get() + shift);
  return {memory, memory.get() + shift, bytes.size()};
}

inline Bytes ToBytes(const Buffer& buffer) { return {buffer.span().begin(), buffer.span().end()}; }

template <typename T>
T Load(const Bytes& bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

template <typename T>
void Store(Bytes* bytes, size_t offset, T value) {
  std::memcpy(bytes->data() + offset, &value, sizeof value);
}

// Values of very different sizes, negative zeros and subnormals among them.
inline float RandomFloat(Random* random) {
  switch (random->Below(20)) {
    case 0: return 0.0f;
    case 1: return -0.0f;
    case 2: return std::ldexp(static_cast<float>(random->Uniform()), -140);
    default: break;
  }
  const float value = static_cast<float>(random->Uniform() * 2 - 1);
  return std::ldexp(value, static_cast<int>(random->Between(-12, 12)));
}

// Random elements; padding is all ones, which would be NaN if anybody read it.
inline Bytes RandomPayload(const Chunk& chunk, Random* random) {
  Bytes bytes(chunk.bytes, std::byte{0xff});
  for (const Segment& segment : chunk.segments) {
    const size_t width = ElementBytes(segment.dtype);
    for (size_t at = segment.chunk_offset; at < segment.chunk_offset + segment.bytes; at += width) {
      if (segment.dtype == DType::kInt64) {
        Store(&bytes, at, static_cast<int64_t>(random->Next()));
      } else {
        Store(&bytes, at, RandomFloat(random));
      }
    }
  }
  return bytes;
}

// The first byte offset at which two payloads differ, in words; empty when they are equal.
inline std::string Difference(const Bytes& got, const Bytes& want) {
  if (got.size() != want.size()) return "sizes differ";
  const auto at = std::mismatch(got.begin(), got.end(), want.begin()).first;
  if (at == got.end()) return "";
  const size_t word = static_cast<size_t>(at - got.begin()) / 4 * 4;
  return "byte " + std::to_string(word) + ": " + std::to_string(Load<float>(got, word)) + " instead of " +
         std::to_string(Load<float>(want, word));
}

inline std::string Difference(const Buffer& got, const Buffer& want) { return Difference(ToBytes(got), ToBytes(want)); }

}  // namespace everstep::kernels
