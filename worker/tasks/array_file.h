// Arrays of numbers as files bring them: IDX (the MNIST family's format), NumPy's .npy and comma-separated values. The
// parsers take bytes that may be anything: every length is checked before it is believed, and what does not fit exactly
// is kCorrupt, with the reason. Pure functions.
#pragma once

#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"

namespace everstep {

struct Array {
  std::vector<int64_t> shape;
  // Row-major; as many as the shape says.
  std::variant<std::vector<uint8_t>, std::vector<float>, std::vector<int64_t>> values;

  uint64_t size() const;
};

// http://yann.lecun.com/exdb/mnist: big-endian; unsigned bytes, 32-bit integers and floats.
Result<Array> ParseIdx(std::string_view bytes);

// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html, versions 1 to 3: little-endian, C order; u1,
// i4, i8, f4 and f8 (which becomes float32).
Result<Array> ParseNpy(std::string_view bytes);

// Lines of equally many numbers; an optional first line of names. The last column is split off as `labels`.
struct Table {
  Array features;              // [rows, columns - 1]
  std::vector<double> labels;  // [rows]
};
Result<Table> ParseCsv(std::string_view text);

}  // namespace everstep
