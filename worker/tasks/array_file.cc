#include "worker/tasks/array_file.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <string>

#include "base/limits.h"

namespace everstep {
namespace {

Status Corrupt(std::string what) { return {Code::kCorrupt, std::move(what)}; }

// How many elements a shape has, or kCorrupt when they could not be in `bytes` bytes of `element_bytes` each.
Result<uint64_t> Elements(const std::vector<int64_t>& shape, uint64_t element_bytes, uint64_t bytes) {
  unsigned __int128 count = 1;
  for (int64_t size : shape) {
    if (size < 0) return Corrupt("a dimension is negative");
    count *= static_cast<uint64_t>(size);
    if (count > limits::kMaxDataFileBytes) return Corrupt("the shape is impossibly large");
  }
  if (count * element_bytes != bytes) {
    return Corrupt("the shape needs " + std::to_string(static_cast<uint64_t>(count * element_bytes)) +
                   " bytes of values, but " + std::to_string(bytes) + " are there");
  }
  return static_cast<uint64_t>(count);
}

// Reads `count` values of type From, in the file's byte order, as To. REQUIRES: `bytes` holds them.
template <typename From, typename To>
std::vector<To> Convert(std::string_view bytes, uint64_t count, std::endian order) {
  std::vector<To> values(count);
  for (uint64_t i = 0; i < count; ++i) {
    char raw[sizeof(From)];
    std::memcpy(raw, bytes.data() + i * sizeof(From), sizeof(From));
    if (order != std::endian::native) std::reverse(raw, raw + sizeof(From));
    From value;
    std::memcpy(&value, raw, sizeof(From));
    values[i] = static_cast<To>(value);
  }
  return values;
}

template <typename From, typename To>
Result<Array> Fill(std::vector<int64_t> shape, std::string_view bytes, std::endian order) {
  EVERSTEP_ASSIGN(const uint64_t count, Elements(shape, sizeof(From), bytes.size()));
  return Array{std::move(shape), Convert<From, To>(bytes, count, order)};
}

// ---- .npy: the header is a Python dictionary with three entries ----

// What stands after 'key': in the header; empty when the key is missing.
std::string_view NpyEntry(std::string_view header, std::string_view key) {
  const size_t at = header.find("'" + std::string(key) + "'");
  if (at == std::string_view::npos) return {};
  std::string_view rest = header.substr(at + key.size() + 2);
  rest.remove_prefix(std::min(rest.find_first_not_of(" :"), rest.size()));
  return rest;
}

Result<std::vector<int64_t>> NpyShape(std::string_view text) {
  const Status bad = Corrupt("the .npy header has no valid 'shape'");
  if (text.empty() || text[0] != '(') return bad;
  text.remove_prefix(1);
  std::vector<int64_t> shape;
  for (;;) {
    text.remove_prefix(std::min(text.find_first_not_of(" ,"), text.size()));
    if (text.empty()) return bad;
    if (text[0] == ')') return shape;
    int64_t size = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
    if (error != std::errc() || size < 0 || shape.size() == limits::kMaxDataDimensions) return bad;
    shape.push_back(size);
    text.remove_prefix(static_cast<size_t>(end - text.data()));
  }
}

// ---- Comma-separated values ----

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

// The next line, without its end; advances `text` past it.
std::string_view NextLine(std::string_view* text) {
  const size_t end = std::min(text->find('\n'), text->size());
  const std::string_view line = text->substr(0, end);
  text->remove_prefix(std::min(end + 1, text->size()));
  return Trim(line);
}

bool ParseNumber(std::string_view cell, double* value) {
  if (!cell.empty() && cell[0] == '+') cell.remove_prefix(1);
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), *value);
  return error == std::errc() && end == cell.data() + cell.size() && std::isfinite(*value);
}

// Appends the line's numbers to `row`; false, with the cell that is none, otherwise.
bool ParseRow(std::string_view line, std::vector<double>* row, std::string_view* bad_cell) {
  row->clear();
  for (;;) {
    const size_t comma = std::min(line.find(','), line.size());
    double value = 0;
    *bad_cell = Trim(line.substr(0, comma));
    if (!ParseNumber(*bad_cell, &value)) return false;
    row->push_back(value);
    if (comma == line.size()) return true;
    line.remove_prefix(comma + 1);
  }
}

}  // namespace

uint64_t Array::size() const {
  return std::visit([](const auto& v) { return static_cast<uint64_t>(v.size()); }, values);
}

Result<Array> ParseIdx(std::string_view bytes) {
  if (bytes.size() < 4 || bytes[0] != 0 || bytes[1] != 0)
    return Corrupt("not an IDX file: it must begin with two zeros");
  const auto type = static_cast<uint8_t>(bytes[2]);
  const auto dimensions = static_cast<uint8_t>(bytes[3]);
  if (dimensions == 0 || dimensions > limits::kMaxDataDimensions) {
    return Corrupt("an IDX file of " + std::to_string(dimensions) + " dimensions");
  }
  bytes.remove_prefix(4);
  if (bytes.size() < dimensions * sizeof(uint32_t)) return Corrupt("the IDX header ends too early");
  std::vector<int64_t> shape;
  for (uint32_t size : Convert<uint32_t, uint32_t>(bytes, dimensions, std::endian::big)) shape.push_back(size);
  bytes.remove_prefix(dimensions * sizeof(uint32_t));
  switch (type) {
    case 0x08: return Fill<uint8_t, uint8_t>(std::move(shape), bytes, std::endian::big);
    case 0x0C: return Fill<int32_t, int64_t>(std::move(shape), bytes, std::endian::big);
    case 0x0D: return Fill<float, float>(std::move(shape), bytes, std::endian::big);
    default:
      return Corrupt("IDX type " + std::to_string(type) +
                     " is not supported: unsigned bytes (8), 32-bit integers (12) and floats (13) are");
  }
}

Result<Array> ParseNpy(std::string_view bytes) {
  constexpr std::string_view kMagic("\x93NUMPY", 6);
  if (bytes.size() < 10 || bytes.substr(0, 6) != kMagic) return Corrupt("not a .npy file");
  const int version = bytes[6];
  if (version < 1 || version > 3)
    return Corrupt(".npy version " + std::to_string(version) + " is not known (1 to 3 are)");
  const size_t length_bytes = version == 1 ? 2 : 4;
  uint64_t header_bytes = 0;
  bytes.remove_prefix(8);
  if (bytes.size() < length_bytes) return Corrupt("the .npy header ends too early");
  for (size_t i = length_bytes; i-- > 0;) header_bytes = header_bytes << 8 | static_cast<uint8_t>(bytes[i]);
  bytes.remove_prefix(length_bytes);
  if (header_bytes > bytes.size()) return Corrupt("the .npy header ends too early");
  const std::string_view header = bytes.substr(0, header_bytes);
  bytes.remove_prefix(header_bytes);

  if (!NpyEntry(header, "fortran_order").starts_with("False")) {
    return Corrupt("the .npy file is not in C order; save numpy.ascontiguousarray(a)");
  }
  EVERSTEP_ASSIGN(std::vector<int64_t> shape, NpyShape(NpyEntry(header, "shape")));
  const std::string_view type = NpyEntry(header, "descr");
  constexpr auto kLittle = std::endian::little;
  if (type.starts_with("'|u1'")) return Fill<uint8_t, uint8_t>(std::move(shape), bytes, kLittle);
  if (type.starts_with("'<i4'")) return Fill<int32_t, int64_t>(std::move(shape), bytes, kLittle);
  if (type.starts_with("'<i8'")) return Fill<int64_t, int64_t>(std::move(shape), bytes, kLittle);
  if (type.starts_with("'<f4'")) return Fill<float, float>(std::move(shape), bytes, kLittle);
  if (type.starts_with("'<f8'")) return Fill<double, float>(std::move(shape), bytes, kLittle);
  return Corrupt("the .npy file's values are " + std::string(type.substr(0, std::min<size_t>(type.find(','), 16))) +
                 "; save them as float32 or int64, e.g. a.astype('<f4')");
}

Result<Table> ParseCsv(std::string_view text) {
  Table table;
  std::vector<float> features;
  std::vector<double> row;
  size_t columns = 0;
  for (uint64_t number = 1; !text.empty(); ++number) {
    const std::string_view line = NextLine(&text);
    if (line.empty()) continue;
    const auto bad = [&](const std::string& what) { return Corrupt("line " + std::to_string(number) + ": " + what); };
    std::string_view cell;
    if (!ParseRow(line, &row, &cell)) {
      if (number == 1) continue;  // names of the columns
      return bad("'" + std::string(cell.substr(0, 40)) + "' is not a finite number");
    }
    if (columns == 0) columns = row.size();
    if (columns < 2) return bad("a row needs at least one feature and the label, separated by commas");
    if (row.size() != columns) {
      return bad(std::to_string(row.size()) + " columns, " + std::to_string(columns) + " in the lines before");
    }
    table.labels.push_back(row.back());
    for (size_t i = 0; i + 1 < columns; ++i) features.push_back(static_cast<float>(row[i]));
  }
  if (table.labels.empty()) return Corrupt("no line of numbers");
  table.features.shape = {static_cast<int64_t>(table.labels.size()), static_cast<int64_t>(columns - 1)};
  table.features.values = std::move(features);
  return table;
}

}  // namespace everstep
