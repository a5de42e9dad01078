// The safetensors format (https://huggingface.co/docs/safetensors): 8 bytes little-endian length of the header, the
// header as JSON, then the tensors' bytes end to end. What Everstep writes, Python's safetensors loads, and the other
// way round.
//
//   bytes  0..7      N, the header's length
//   bytes  8..8+N    {"__metadata__": {"key": "text"}, "NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0,
//   24]}}
//                    padded with spaces, so that the data begins at a multiple of 8
//   the rest         data; offsets count from here
//
// Reading treats the file as hostile: lengths that overflow, overlaps, gaps, bytes that no tensor claims, duplicate
// names, sizes that do not follow from shape and dtype are kCorrupt with the tensor's name, and no more memory is taken
// than a header of that size deserves.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/store.h"
#include "schema/parameter_spec.h"

namespace everstep {

struct StoredTensor {
  std::string name;
  std::string dtype;  // "F32", "I64", "U8", ... as the format spells them
  std::vector<uint64_t> shape;
  uint64_t begin = 0;  // bytes into the data
  uint64_t end = 0;

  uint64_t bytes() const { return end - begin; }
  friend bool operator==(const StoredTensor&, const StoredTensor&) = default;
};

using SafetensorsMetadata = std::map<std::string, std::string>;

// What the format calls the dtypes that a model may have; nothing for all others.
std::string_view SafetensorsName(DType dtype);
std::optional<DType> DTypeOfSafetensors(std::string_view name);

// Bits of one element, or 0 for a dtype that the format does not know.
uint64_t SafetensorsElementBits(std::string_view dtype);

// Sets begin and end by shape and dtype, in the given order, and returns what stands before the data. kInvalidArgument:
// an unknown dtype, an overflow, a name that is there twice, or a header beyond the format's bound.
Result<std::string> LayOutSafetensors(std::vector<StoredTensor>* tensors, const SafetensorsMetadata& metadata);

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;  // by offset
  SafetensorsMetadata metadata;
  uint64_t data_begin = 0;  // of the data, in the file

  const StoredTensor* Find(std::string_view name) const;
};

// `text`: the header without its length. `data_bytes`: what the file holds after it.
Result<SafetensorsHeader> ParseSafetensorsHeader(std::string_view text, uint64_t data_bytes);

// A file of a store, its header read and checked. One thread at a time.
class SafetensorsReader {
 public:
  // `what`: the file, for messages.
  static Result<SafetensorsReader> Open(std::unique_ptr<StoreReader> file, std::string what);
  // Of any path.
  static Result<SafetensorsReader> OpenPath(const std::string& path);

  const SafetensorsHeader& header() const { return header_; }
  uint64_t file_bytes() const { return file_->size(); }
  // A part of a tensor's bytes. REQUIRES: it lies inside.
  Status Read(const StoredTensor& tensor, uint64_t offset, std::span<std::byte> out) const;
  // XXH3 of the whole file, as read now.
  Result<uint64_t> Checksum() const;

 private:
  SafetensorsReader(std::unique_ptr<StoreReader> file, std::string what, SafetensorsHeader header)
      : file_(std::move(file)), what_(std::move(what)), header_(std::move(header)) {}

  std::unique_ptr<StoreReader> file_;
  std::string what_;
  SafetensorsHeader header_;
};

}  // namespace everstep
