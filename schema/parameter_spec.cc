#include "schema/parameter_spec.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "base/checksum.h"
#include "base/limits.h"

namespace everstep {
namespace {

uint64_t AlignUp(uint64_t bytes) {
  return (bytes + limits::kChunkAlignment - 1) / limits::kChunkAlignment * limits::kChunkAlignment;
}

std::string Describe(const TensorSpec& tensor) {
  std::string text = tensor.name + " [";
  for (size_t i = 0; i < tensor.shape.size(); ++i) text += (i ? "," : "") + std::to_string(tensor.shape[i]);
  text += tensor.dtype == DType::kInt64 ? "] int64" : "]";
  return tensor.role == Role::kBuffer ? text + " buffer" : text;
}

// Elements, or false on overflow or a negative size.
bool CountElements(const TensorSpec& tensor, uint64_t* count) {
  unsigned __int128 product = 1;
  bool zero = false;
  for (int64_t size : tensor.shape) {
    if (size < 0) return false;
    if (size == 0) zero = true;
    if (size > 0) product *= static_cast<uint64_t>(size);
    if (product > (uint64_t{1} << 56)) return false;
  }
  *count = zero ? 0 : static_cast<uint64_t>(product);
  return true;
}

// How many chunks there are at most: tensors are padded to the alignment, and only the last chunk is not full.
uint64_t ChunkBound(const ParameterSpec& spec, uint64_t chunk_bytes) {
  uint64_t bytes = 0;
  for (const TensorSpec& tensor : spec.tensors) bytes += AlignUp(tensor.bytes());
  return bytes / chunk_bytes + 1;
}

void CutIntoChunks(uint64_t chunk_bytes, const TensorSpec& tensor, uint32_t index, std::vector<Chunk>* chunks,
                   std::vector<ChunkId>* chunks_of) {
  uint64_t done = 0;
  const uint64_t bytes = tensor.bytes();
  while (done < bytes) {
    const uint64_t used = chunks->empty() ? chunk_bytes : AlignUp(chunks->back().bytes);
    if (used >= chunk_bytes) {
      chunks->emplace_back();
      continue;
    }
    Chunk& chunk = chunks->back();
    const uint64_t take = std::min(bytes - done, chunk_bytes - used);
    chunk.segments.push_back({index, done, used, take, tensor.dtype, tensor.role});
    chunk.bytes = used + take;
    chunks_of->push_back({static_cast<uint32_t>(chunks->size() - 1)});
    done += take;
  }
}

}  // namespace

uint64_t TensorSpec::elements() const {
  uint64_t count = 0;
  EVERSTEP_CHECK(CountElements(*this, &count), "validated before use");
  return count;
}

uint64_t ParameterSpec::hash() const {
  std::string text;
  for (const TensorSpec& tensor : tensors) {
    text += Describe(tensor);
    text += '\n';
  }
  return Checksum64(text);
}

uint64_t ParameterSpec::bytes() const {
  uint64_t sum = 0;
  for (const TensorSpec& tensor : tensors) sum += tensor.bytes();
  return sum;
}

Status Validate(const ParameterSpec& spec) {
  const auto bad = [](std::string what) {
    return Status(Code::kInvalidArgument, "parameter spec: " + std::move(what));
  };
  if (spec.tensors.empty()) return bad("the model has no tensors");
  if (spec.tensors.size() > limits::kMaxTensors) return bad("too many tensors");
  std::set<std::string_view> names;
  uint64_t total = 0;
  for (const TensorSpec& tensor : spec.tensors) {
    if (tensor.name.empty() || tensor.name.size() > limits::kMaxNameBytes) {
      return bad("a tensor's name is empty or longer than " + std::to_string(limits::kMaxNameBytes) + " bytes");
    }
    if (std::any_of(tensor.name.begin(), tensor.name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; })) {
      return bad("a tensor's name has a control character");  // the hash goes line by line
    }
    if (!names.insert(tensor.name).second) return bad("two tensors are named " + tensor.name);
    if (tensor.dtype != DType::kFloat32 && tensor.dtype != DType::kInt64) return bad(tensor.name + ": unknown type");
    if (tensor.role != Role::kTrainable && tensor.role != Role::kBuffer) return bad(tensor.name + ": unknown role");
    if (tensor.role == Role::kTrainable && tensor.dtype != DType::kFloat32) {
      return bad(tensor.name + " is trainable and not float32; convert the model with model->to(torch::kFloat)");
    }
    uint64_t elements = 0;
    if (!CountElements(tensor, &elements)) return bad(tensor.name + ": impossible shape");
    total += elements * ElementBytes(tensor.dtype);
    if (total > (uint64_t{1} << 58)) return bad("the model is too large");
  }
  if (total == 0) return bad("no tensor has any element; there is nothing to train");
  return Status::Ok();
}

Status Validate(const ParameterSpec& spec, uint64_t chunk_bytes) {
  EVERSTEP_RETURN_IF_ERROR(Validate(spec));
  const uint64_t chunks = ChunkBound(spec, chunk_bytes);
  if (chunks <= limits::kMaxChunks) return Status::Ok();
  return {Code::kInvalidArgument, "parameter spec: " + std::to_string(spec.bytes()) + " bytes are " +
                                      std::to_string(chunks) + " chunks of " + std::to_string(chunk_bytes) + ", and " +
                                      std::to_string(limits::kMaxChunks) + " is the most; set a larger chunk-bytes"};
}

std::string FirstDifference(const ParameterSpec& here, const ParameterSpec& there) {
  const size_t common = std::min(here.tensors.size(), there.tensors.size());
  for (size_t i = 0; i < common; ++i) {
    if (here.tensors[i] == there.tensors[i]) continue;
    return "tensor " + std::to_string(i) + ": " + Describe(here.tensors[i]) + " here, " + Describe(there.tensors[i]) +
           " there";
  }
  if (here.tensors.size() == there.tensors.size()) return "no difference";
  return std::to_string(here.tensors.size()) + " tensors here, " + std::to_string(there.tensors.size()) + " there";
}

std::shared_ptr<const ChunkLayout> ChunkLayout::Make(ParameterSpec spec, uint64_t chunk_bytes) {
  EVERSTEP_CHECK(chunk_bytes >= limits::kMinChunkBytes && chunk_bytes % limits::kChunkAlignment == 0,
                 "chunk size must be a multiple of 64");
  EVERSTEP_CHECK(ChunkBound(spec, chunk_bytes) <= limits::kMaxChunks, "validated before use");
  auto layout = std::make_shared<ChunkLayout>();
  layout->chunks_of_.resize(spec.tensors.size());
  for (uint32_t i = 0; i < spec.tensors.size(); ++i) {
    CutIntoChunks(chunk_bytes, spec.tensors[i], i, &layout->chunks_, &layout->chunks_of_[i]);
  }
  for (const Chunk& chunk : layout->chunks_) layout->total_bytes_ += chunk.bytes;
  layout->spec_ = std::move(spec);
  return layout;
}

}  // namespace everstep
