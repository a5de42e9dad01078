#include "checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/limits.h"

namespace everstep {
namespace {

using nlohmann::json;

constexpr size_t kLengthBytes = 8;
constexpr size_t kMaxDimensions = 64;
constexpr char kMetadataName[] = "__metadata__";

Status BrokenFile(const std::string& what) { return {Code::kCorrupt, what}; }

// Bytes that shape and dtype ask for; false on overflow, an unknown dtype, or a part of a byte.
bool CountBytes(const StoredTensor& tensor, uint64_t* bytes) {
  const uint64_t bits = SafetensorsElementBits(tensor.dtype);
  if (bits == 0) return false;
  unsigned __int128 product = bits;
  for (uint64_t size : tensor.shape) {
    product *= size;
    if (product > (static_cast<unsigned __int128>(1) << 63)) return false;
  }
  if (product % 8 != 0) return false;
  *bytes = static_cast<uint64_t>(product / 8);
  return true;
}

// Reads the header token by token: what does not belong there ends the reading at once, so that a hostile header costs
// no more than its own size.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  std::vector<StoredTensor> tensors;
  SafetensorsMetadata metadata;
  std::string problem;

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::kStart: return Go(State::kNames);
      case State::kTensor: return Go(State::kFields);
      case State::kMetadata: return Go(State::kMetadataKeys);
      default: return Unexpected("an object");
    }
  }
  bool end_object() override {
    switch (state_) {
      case State::kNames: return Go(State::kEnd);
      case State::kMetadataKeys: return Go(State::kNames);
      case State::kFields:
        if (fields_ != 7) return Bad("tensor \"" + tensors.back().name + "\" lacks dtype, shape or data_offsets");
        return Go(State::kNames);
      default: return Unexpected("the end of an object");
    }
  }
  bool key(string_t& text) override {
    switch (state_) {
      case State::kNames:
        if (!names_.insert(text).second) return Bad("the name \"" + text + "\" is there twice");
        if (text == kMetadataName) return Go(State::kMetadata);
        tensors.emplace_back().name = text;
        fields_ = 0;
        return Go(State::kTensor);
      case State::kMetadataKeys:
        key_ = text;
        if (metadata.contains(key_)) return Bad("the metadata \"" + text + "\" is there twice");
        return Go(State::kMetadataValue);
      case State::kFields:
        if (text == "dtype") return Field(1, State::kDtype);
        if (text == "shape") return Field(2, State::kShape);
        if (text == "data_offsets") return Field(4, State::kOffsets);
        return Bad("tensor \"" + tensors.back().name + "\" has an unknown field \"" + text + "\"");
      default: return Unexpected("a name");
    }
  }
  bool string(string_t& text) override {
    if (state_ == State::kDtype) {
      tensors.back().dtype = text;
      return Go(State::kFields);
    }
    if (state_ == State::kMetadataValue) {
      metadata.emplace(key_, text);
      return Go(State::kMetadataKeys);
    }
    return Unexpected("a text");
  }
  bool start_array(std::size_t) override {
    if (state_ == State::kShape) return Go(State::kShapeItems);
    if (state_ != State::kOffsets) return Unexpected("a list");
    offsets_ = 0;
    return Go(State::kOffsetItems);
  }
  bool end_array() override {
    if (state_ == State::kOffsetItems && offsets_ != 2)
      return Bad("tensor \"" + tensors.back().name + "\" needs two data_offsets");
    return Go(State::kFields);
  }
  bool number_unsigned(number_unsigned_t value) override {
    StoredTensor* const tensor = tensors.empty() ? nullptr : &tensors.back();
    if (state_ == State::kShapeItems) {
      if (tensor->shape.size() >= kMaxDimensions) return Bad("tensor \"" + tensor->name + "\" has too many dimensions");
      tensor->shape.push_back(value);
      return true;
    }
    if (state_ != State::kOffsetItems || offsets_ == 2) return Unexpected("a number");
    (offsets_++ == 0 ? tensor->begin : tensor->end) = value;
    return true;
  }
  bool number_integer(number_integer_t) override { return Unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return Unexpected("a fraction"); }
  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("true or false"); }
  bool binary(binary_t&) override { return Unexpected("bytes"); }
  bool parse_error(std::size_t at, const std::string&, const nlohmann::detail::exception&) override {
    return Bad("no JSON at byte " + std::to_string(at));
  }

 private:
  enum class State {
    kStart,
    kNames,
    kTensor,
    kFields,
    kDtype,
    kShape,
    kShapeItems,
    kOffsets,
    kOffsetItems,
    kMetadata,
    kMetadataKeys,
    kMetadataValue,
    kEnd,
  };

  bool Go(State next) {
    state_ = next;
    return true;
  }
  bool Bad(std::string what) {
    if (problem.empty()) problem = std::move(what);
    return false;
  }
  bool Unexpected(const char* what) {
    return Bad(std::string(what) + " where it does not belong" +
               (tensors.empty() ? "" : ", at or after tensor \"" + tensors.back().name + "\""));
  }
  bool Field(unsigned bit, State next) {
    if ((fields_ & bit) != 0) return Bad("tensor \"" + tensors.back().name + "\" has a field twice");
    fields_ |= bit;
    return Go(next);
  }

  State state_ = State::kStart;
  unsigned fields_ = 0;   // of the tensor at hand: 1 dtype, 2 shape, 4 offsets
  unsigned offsets_ = 0;  // read so far
  std::string key_;
  std::set<std::string> names_;
};

uint64_t FromLittleEndian(const std::byte* bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) value |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  return value;
}

// A file outside any store.
Result<std::unique_ptr<StoreReader>> OpenFile(const std::string& path) {
  const std::filesystem::path p(path);
  const std::string folder = p.parent_path().empty() ? "." : p.parent_path().string();
  if (!IsStoreName(p.filename().string()))
    return Status(Code::kInvalidArgument, path + ": the file's name may have letters, digits, \".\", \"_\" and \"-\"");
  std::error_code error;
  if (!std::filesystem::exists(p, error)) return Status(Code::kNotFound, "there is no file " + path);
  EVERSTEP_ASSIGN(const std::unique_ptr<Store> store, MakeDirectoryStore(folder, false));
  return store->Open(p.filename().string());
}

}  // namespace

std::string_view SafetensorsName(DType dtype) { return dtype == DType::kFloat32 ? "F32" : "I64"; }

std::optional<DType> DTypeOfSafetensors(std::string_view name) {
  for (const DType dtype : {DType::kFloat32, DType::kInt64}) {
    if (name == SafetensorsName(dtype)) return dtype;
  }
  return std::nullopt;
}

uint64_t SafetensorsElementBits(std::string_view dtype) {
  static const std::map<std::string_view, uint64_t> kBits = {
      {"BOOL", 8},  {"U8", 8},   {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"I16", 16}, {"U16", 16}, {"F16", 16},
      {"BF16", 16}, {"I32", 32}, {"U32", 32}, {"F32", 32},    {"F64", 64},    {"I64", 64}, {"U64", 64}, {"C64", 64},
  };
  const auto it = kBits.find(dtype);
  return it == kBits.end() ? 0 : it->second;
}

const StoredTensor* SafetensorsHeader::Find(std::string_view name) const {
  const auto it = std::find_if(tensors.begin(), tensors.end(), [&](const StoredTensor& t) { return t.name == name; });
  return it == tensors.end() ? nullptr : &*it;
}

Result<std::string> LayOutSafetensors(std::vector<StoredTensor>* tensors, const SafetensorsMetadata& metadata) {
  std::string text = "{";
  if (!metadata.empty()) text += json(kMetadataName).dump() + ":" + json(metadata).dump();
  std::set<std::string_view> names;
  uint64_t at = 0;
  for (StoredTensor& tensor : *tensors) {
    uint64_t bytes = 0;
    if (!CountBytes(tensor, &bytes) || at + bytes < at) {
      return Status(Code::kInvalidArgument, "tensor \"" + tensor.name + "\" has an impossible size or type");
    }
    if (tensor.name == kMetadataName || !names.insert(tensor.name).second) {
      return Status(Code::kInvalidArgument, "the name \"" + tensor.name + "\" cannot be used, or not twice");
    }
    tensor.begin = at;
    tensor.end = at += bytes;
    if (text.size() > 1) text += ",";
    text += json(tensor.name).dump(-1, ' ', false, json::error_handler_t::replace) + ":" +
            json{{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}}.dump();
  }
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > limits::kMaxSafetensorsHeaderBytes) {
    return Status(Code::kInvalidArgument, "the header of so many tensors exceeds the " +
                                              std::to_string(limits::kMaxSafetensorsHeaderBytes) +
                                              " bytes that safetensors allows; set a larger chunk-bytes");
  }
  std::string out(kLengthBytes, '\0');
  for (size_t i = 0; i < kLengthBytes; ++i) out[i] = static_cast<char>(text.size() >> (8 * i));
  return out + text;
}

Result<SafetensorsHeader> ParseSafetensorsHeader(std::string_view text, uint64_t data_bytes) {
  HeaderReader reader;
  if (!json::sax_parse(text.begin(), text.end(), &reader)) return BrokenFile("bad header: " + reader.problem);
  SafetensorsHeader header{std::move(reader.tensors), std::move(reader.metadata), kLengthBytes + text.size()};
  std::stable_sort(header.tensors.begin(), header.tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t at = 0;
  for (const StoredTensor& tensor : header.tensors) {
    const std::string name = "tensor \"" + tensor.name + "\"";
    uint64_t bytes = 0;
    if (!CountBytes(tensor, &bytes)) return BrokenFile(name + " has an impossible shape or an unknown dtype");
    if (tensor.begin < at) return BrokenFile(name + " overlaps the one before it");
    if (tensor.begin > at) return BrokenFile("a gap before " + name);
    if (tensor.end < tensor.begin || tensor.end - tensor.begin != bytes) {
      return BrokenFile(name + " has offsets that do not fit its shape of " + std::to_string(bytes) + " bytes");
    }
    if (tensor.end > data_bytes) {
      return BrokenFile(name + " ends at byte " + std::to_string(tensor.end) + " of the data, the file has " +
                        std::to_string(data_bytes) + "; it was cut off");
    }
    at = tensor.end;
  }
  if (at != data_bytes) return BrokenFile(std::to_string(data_bytes - at) + " bytes at the end belong to no tensor");
  return header;
}

Result<SafetensorsReader> SafetensorsReader::Open(std::unique_ptr<StoreReader> file, std::string what) {
  std::byte length_bytes[kLengthBytes];
  if (file->size() < kLengthBytes) return BrokenFile(what + ": too short for a safetensors file");
  EVERSTEP_RETURN_IF_ERROR(file->Read(0, length_bytes));
  const uint64_t length = FromLittleEndian(length_bytes);
  if (length > file->size() - kLengthBytes || length > limits::kMaxSafetensorsHeaderBytes) {
    return BrokenFile(what + ": a header of " + std::to_string(length) + " bytes cannot be; the file has " +
                      std::to_string(file->size()));
  }
  std::string text(length, '\0');
  EVERSTEP_RETURN_IF_ERROR(file->Read(kLengthBytes, std::as_writable_bytes(std::span(text.data(), text.size()))));
  Result<SafetensorsHeader> header = ParseSafetensorsHeader(text, file->size() - kLengthBytes - length);
  if (!header.ok()) return header.status().With(what);
  return SafetensorsReader(std::move(file), std::move(what), std::move(header).value());
}

Result<SafetensorsReader> SafetensorsReader::OpenPath(const std::string& path) {
  EVERSTEP_ASSIGN(std::unique_ptr<StoreReader> file, OpenFile(path));
  return Open(std::move(file), path);
}

Status SafetensorsReader::Read(const StoredTensor& tensor, uint64_t offset, std::span<std::byte> out) const {
  EVERSTEP_CHECK(offset <= tensor.bytes() && out.size() <= tensor.bytes() - offset, "a part of the tensor");
  return file_->Read(header_.data_begin + tensor.begin + offset, out);
}

Result<uint64_t> SafetensorsReader::Checksum() const {
  ChecksumStream sum;
  MutableBuffer block(limits::kCheckpointSliceBytes);
  for (uint64_t at = 0; at < file_->size();) {
    const size_t n = static_cast<size_t>(std::min<uint64_t>(block.size(), file_->size() - at));
    EVERSTEP_RETURN_IF_ERROR(file_->Read(at, {block.data(), n}));
    sum.Add({block.data(), n});
    at += n;
  }
  return sum.Value();
}

}  // namespace everstep
