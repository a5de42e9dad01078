// The model as the servers see it: named tensors laid end to end in one flat index space, cut into chunks.
//
// A ParameterSpec is what a worker registers and what every later worker must match (by hash). A ChunkLayout is derived
// from it, the same on every process: tensor i starts at a 64-byte aligned byte offset; chunks are runs of at most
// `chunk_bytes`, aligned to 64 bytes, and may hold several tensors or a part of one. Sizes are 64-bit throughout.
// Both are immutable values once made.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "schema/ids.h"

namespace everstep {

enum class DType : uint8_t { kFloat32 = 0, kInt64 = 1 };
enum class Role : uint8_t {
  kTrainable = 0,  // contributions are gradients; the optimizer moves it
  kBuffer = 1,     // contributions are values; fp32: weighted mean over the contributors, int64: maximum
};

inline size_t ElementBytes(DType dtype) { return dtype == DType::kFloat32 ? 4 : 8; }

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;  // empty: a scalar (one element); a zero anywhere: no elements
  DType dtype = DType::kFloat32;
  Role role = Role::kTrainable;

  uint64_t elements() const;
  uint64_t bytes() const { return elements() * ElementBytes(dtype); }
  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

struct ParameterSpec {
  std::vector<TensorSpec> tensors;

  uint64_t hash() const;   // over names, shapes, dtypes, roles and order
  uint64_t bytes() const;  // of the tensors themselves, without padding
  friend bool operator==(const ParameterSpec&, const ParameterSpec&) = default;
};

// Sizes that overflow, unknown types, duplicate or empty names, int64 trainables: kInvalidArgument, naming the tensor.
Status Validate(const ParameterSpec& spec);

// The same, and that the model cut into chunks of this size has no more of them than limits::kMaxChunks.
Status Validate(const ParameterSpec& spec, uint64_t chunk_bytes);

// What differs first between two specs, in words ("tensor 2: fc1.weight [256,784] here, fc1.weight [128,784] there").
std::string FirstDifference(const ParameterSpec& here, const ParameterSpec& there);

// A run of elements of one tensor inside a chunk.
struct Segment {
  uint32_t tensor = 0;         // index into ParameterSpec::tensors
  uint64_t tensor_offset = 0;  // bytes into the tensor
  uint64_t chunk_offset = 0;   // bytes into the chunk
  uint64_t bytes = 0;
  DType dtype = DType::kFloat32;
  Role role = Role::kTrainable;
};

struct Chunk {
  uint64_t bytes = 0;             // payload size, padding between tensors included
  std::vector<Segment> segments;  // in offset order; zero-element tensors have none
};

class ChunkLayout {
 public:
  // REQUIRES: Validate(spec, chunk_bytes).ok(). `chunk_bytes` is a multiple of 64.
  static std::shared_ptr<const ChunkLayout> Make(ParameterSpec spec, uint64_t chunk_bytes);

  const ParameterSpec& spec() const { return spec_; }
  const std::vector<Chunk>& chunks() const { return chunks_; }
  const Chunk& chunk(ChunkId id) const { return chunks_[id.value]; }
  size_t size() const { return chunks_.size(); }
  uint64_t total_bytes() const { return total_bytes_; }
  // Chunks that hold a part of tensor i, in order.
  const std::vector<ChunkId>& chunks_of(size_t tensor) const { return chunks_of_[tensor]; }

 private:
  ParameterSpec spec_;
  std::vector<Chunk> chunks_;
  std::vector<std::vector<ChunkId>> chunks_of_;
  uint64_t total_bytes_ = 0;
};

}  // namespace everstep
