#include "checkpoint/export.h"

#include <algorithm>
#include <filesystem>

#include "base/bytes.h"
#include "base/limits.h"

namespace everstep {
namespace {

// Where a tensor begins in the flat index space; it lies there in one piece (schema/parameter_spec.h).
uint64_t FlatOffset(const ChunkLayout& layout, uint64_t chunk_bytes, size_t tensor) {
  const std::vector<ChunkId>& chunks = layout.chunks_of(tensor);
  if (chunks.empty()) return 0;  // without elements
  for (const Segment& segment : layout.chunk(chunks.front()).segments) {
    if (segment.tensor == tensor) return chunks.front().value * chunk_bytes + segment.chunk_offset;
  }
  EVERSTEP_CHECK(false, "a chunk of a tensor holds a part of it");
  return 0;
}

}  // namespace

Status ExportModel(Checkpoint& checkpoint, const std::string& path) {
  const std::filesystem::path target(path);
  const std::string folder = target.parent_path().empty() ? "." : target.parent_path().string();
  const std::string name = target.filename().string();
  if (!IsStoreName(name))
    return {Code::kInvalidArgument, path + ": the file's name may have letters, digits, \".\", \"_\" and \"-\""};
  const Manifest& manifest = checkpoint.manifest();
  const std::vector<TensorSpec>& specs = manifest.parameters.tensors;
  std::vector<size_t> order(specs.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return ElementBytes(specs[a].dtype) > ElementBytes(specs[b].dtype); });
  std::vector<StoredTensor> tensors;
  for (size_t i : order) {
    StoredTensor& t = tensors.emplace_back();
    t.name = specs[i].name;
    t.dtype = SafetensorsName(specs[i].dtype);
    for (int64_t size : specs[i].shape) t.shape.push_back(static_cast<uint64_t>(size));
  }
  const SafetensorsMetadata metadata = {{"format", "pt"},
                                        {"everstep_job", manifest.spec.name},
                                        {"everstep_version", ToString(manifest.version)},
                                        {"everstep_checkpoint", manifest.label}};
  EVERSTEP_ASSIGN(const std::string header, LayOutSafetensors(&tensors, metadata));
  EVERSTEP_ASSIGN(const std::unique_ptr<Store> store, MakeDirectoryStore(folder, false));
  EVERSTEP_ASSIGN(const std::unique_ptr<StoreWriter> file, store->Create(name));
  EVERSTEP_RETURN_IF_ERROR(file->Append(std::as_bytes(std::span(header.data(), header.size()))));
  MutableBuffer slice(limits::kCheckpointSliceBytes);
  for (size_t k = 0; k < order.size(); ++k) {
    const uint64_t begin = FlatOffset(checkpoint.layout(), manifest.spec.chunk_bytes, order[k]);
    const uint64_t bytes = tensors[k].bytes();
    for (uint64_t done = 0; done < bytes;) {
      const std::span<std::byte> part(slice.data(),
                                      static_cast<size_t>(std::min<uint64_t>(slice.size(), bytes - done)));
      EVERSTEP_RETURN_IF_ERROR(checkpoint.Read(kParametersArray, begin + done, part));
      EVERSTEP_RETURN_IF_ERROR(file->Append(part));
      done += part.size();
    }
  }
  return file->Commit();
}

}  // namespace everstep
