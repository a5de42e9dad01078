#include "checkpoint/loader.h"

#include <algorithm>
#include <cstring>

#include "base/limits.h"
#include "base/log.h"

namespace everstep {

// ---- One checkpoint ----

Checkpoint::Checkpoint(std::shared_ptr<Store> store, Manifest manifest)
    : store_(std::move(store)),
      manifest_(std::move(manifest)),
      layout_(ChunkLayout::Make(manifest_.parameters, manifest_.spec.chunk_bytes)),
      file_of_(layout_->size()) {
  for (uint32_t i = 0; i < manifest_.files.size(); ++i) {
    for (ChunkId chunk : manifest_.files[i].chunks) file_of_[chunk.value] = i;
  }
}

Result<Checkpoint> Checkpoint::Open(std::shared_ptr<Store> store, const std::string& label) {
  const std::string name = ManifestName(label);
  const Result<std::string> text = ReadFromStore(*store, name, limits::kMaxManifestBytes);
  if (text.status().code() == Code::kNotFound) {
    return Status(Code::kCorrupt, "it has no manifest " + name + ": its saving was never completed");
  }
  if (!text.ok()) return text.status();
  Result<Manifest> manifest = ParseManifest(*text);
  if (!manifest.ok()) return manifest.status().With(name);
  if (manifest->label != label) return Status(Code::kCorrupt, name + " is the manifest of " + manifest->label);
  Checkpoint checkpoint(std::move(store), std::move(manifest).value());
  EVERSTEP_RETURN_IF_ERROR(checkpoint.CheckSizes());
  return checkpoint;
}

Status Checkpoint::CheckSizes() {
  for (const ManifestFile& file : manifest_.files) {
    const auto reader = store_->Open(file.name);
    if (reader.status().code() == Code::kNotFound) return {Code::kCorrupt, "its file " + file.name + " is missing"};
    if (!reader.ok()) return reader.status();
    if ((*reader)->size() != file.bytes) {
      return {Code::kCorrupt, "its file " + file.name + " has " + std::to_string((*reader)->size()) + " bytes, " +
                                  std::to_string(file.bytes) + " were written"};
    }
  }
  return Status::Ok();
}

Result<Checkpoint::File*> Checkpoint::VerifiedFile(size_t index) {
  const ManifestFile& expected = manifest_.files[index];
  auto it = open_.find(index);
  if (it == open_.end()) {
    EVERSTEP_ASSIGN(std::unique_ptr<StoreReader> reader, store_->Open(expected.name));
    EVERSTEP_ASSIGN(SafetensorsReader file, SafetensorsReader::Open(std::move(reader), "its file " + expected.name));
    it = open_.emplace(index, File{std::move(file), {}, false}).first;
    for (const StoredTensor& tensor : it->second.reader.header().tensors)
      it->second.tensors.emplace(tensor.name, &tensor);
  }
  File& file = it->second;
  if (file.verified) return &file;
  EVERSTEP_ASSIGN(const uint64_t checksum, file.reader.Checksum());
  if (checksum != expected.checksum || file.reader.file_bytes() != expected.bytes) {
    return Status(Code::kCorrupt, "its file " + expected.name + " does not match its checksum");
  }
  for (ChunkId chunk : expected.chunks) {
    for (const std::string& array : manifest_.arrays) {
      const auto tensor = file.tensors.find(ChunkTensorName(chunk, array));
      if (tensor == file.tensors.end() || tensor->second->bytes() != layout_->chunk(chunk).bytes)
        return Status(Code::kCorrupt, "its file " + expected.name + " lacks " + array + " of chunk " + ToString(chunk));
    }
  }
  file.verified = true;
  return &file;
}

Status Checkpoint::Verify() {
  for (size_t i = 0; i < manifest_.files.size(); ++i) EVERSTEP_RETURN_IF_ERROR(VerifiedFile(i).status());
  return Status::Ok();
}

Status Checkpoint::Read(std::string_view array, uint64_t offset, std::span<std::byte> out) {
  if (std::find(manifest_.arrays.begin(), manifest_.arrays.end(), array) == manifest_.arrays.end()) {
    return {Code::kInvalidArgument, "checkpoint " + manifest_.label + " holds no array " + std::string(array)};
  }
  // Every chunk but the last is full up to padding, so a chunk begins at a multiple of the chunk size.
  const uint64_t chunk_bytes = manifest_.spec.chunk_bytes;
  while (!out.empty()) {
    const uint64_t index = offset / chunk_bytes;
    const uint64_t inside = offset % chunk_bytes;
    const size_t take = static_cast<size_t>(std::min<uint64_t>(out.size(), chunk_bytes - inside));
    const uint64_t held = index < layout_->size() ? layout_->chunks()[index].bytes : 0;
    const size_t real = inside < held ? static_cast<size_t>(std::min<uint64_t>(take, held - inside)) : 0;
    if (real > 0) {
      EVERSTEP_ASSIGN(File* const file, VerifiedFile(file_of_[index]));
      const StoredTensor* tensor = file->tensors.at(ChunkTensorName({static_cast<uint32_t>(index)}, array));
      EVERSTEP_RETURN_IF_ERROR(file->reader.Read(*tensor, inside, out.first(real)));
    }
    if (real < take) std::memset(out.data() + real, 0, take - real);
    out = out.subspan(take);
    offset += take;
  }
  return Status::Ok();
}

Result<Buffer> Checkpoint::ReadChunk(std::string_view array, const ChunkLayout& layout, uint64_t chunk_bytes,
                                     ChunkId chunk) {
  EVERSTEP_CHECK(chunk.value < layout.size() && layout.spec().hash() == layout_->spec().hash(), "the same model");
  MutableBuffer out(layout.chunk(chunk).bytes);
  EVERSTEP_RETURN_IF_ERROR(Read(array, chunk.value * chunk_bytes, {out.data(), out.size()}));
  return std::move(out).Freeze();
}

Result<std::map<std::string, Buffer>> Checkpoint::ReadState(const ChunkLayout& layout, uint64_t chunk_bytes,
                                                            ChunkId chunk) {
  std::map<std::string, Buffer> state;
  for (const std::string& array : manifest_.arrays) {
    if (array == kParametersArray) continue;
    EVERSTEP_ASSIGN(Buffer bytes, ReadChunk(array, layout, chunk_bytes, chunk));
    state.emplace(array, std::move(bytes));
  }
  return state;
}

// ---- All of a store ----

Result<std::vector<CheckpointEntry>> ListCheckpoints(Store& store) {
  EVERSTEP_ASSIGN(const std::vector<std::string> committed, store.List());
  EVERSTEP_ASSIGN(const std::vector<std::string> unfinished, store.Unfinished());
  std::map<std::string, CheckpointEntry> found;
  const auto entry = [&](const std::string& name) -> CheckpointEntry* {
    std::string label;
    Version version;
    if (!ParseCheckpointName(name, &label, &version)) return nullptr;
    CheckpointEntry& e = found[label];
    e.label = label;
    e.version = version;
    return &e;
  };
  for (const std::string& name : committed) {
    CheckpointEntry* const e = entry(name);
    if (e == nullptr) continue;
    e->files.push_back(name);
    e->has_manifest |= name == ManifestName(e->label);
    if (const auto file = store.Open(name); file.ok()) e->bytes += (*file)->size();
  }
  for (const std::string& name : unfinished) (void)entry(name);
  std::vector<CheckpointEntry> entries;
  for (auto& [label, e] : found) entries.push_back(std::move(e));
  std::sort(entries.begin(), entries.end(), [](const CheckpointEntry& a, const CheckpointEntry& b) {
    return std::pair(a.version, a.label) > std::pair(b.version, b.label);
  });
  return entries;
}

Result<FoundCheckpoint> FindNewestCheckpoint(std::shared_ptr<Store> store) {
  EVERSTEP_ASSIGN(const std::vector<CheckpointEntry> entries, ListCheckpoints(*store));
  FoundCheckpoint found;
  for (const CheckpointEntry& entry : entries) {
    Result<Checkpoint> checkpoint = Checkpoint::Open(store, entry.label);
    Status fine = checkpoint.status();
    if (fine.ok()) fine = checkpoint->Verify();
    if (fine.ok()) {
      found.newest = std::move(checkpoint).value();
      break;
    }
    found.broken.push_back({entry.label, std::move(fine)});
  }
  return found;
}

std::string Describe(const std::vector<BrokenCheckpoint>& broken) {
  std::string text;
  for (const BrokenCheckpoint& b : broken) text += (text.empty() ? "" : "; ") + b.label + " (" + b.why.message() + ")";
  return text;
}

// "v000000000042-12345678-7" -> "12345678": the coordinator's life that a label is of.
static std::string_view LifeOf(std::string_view label) {
  const size_t begin = label.find('-');
  return begin == std::string_view::npos ? std::string_view() : label.substr(begin + 1, label.rfind('-') - begin - 1);
}

Status PruneCheckpoints(std::shared_ptr<Store> store, size_t keep, const std::string& label) {
  EVERSTEP_RETURN_IF_ERROR(store->RemoveLeftovers().status());
  EVERSTEP_ASSIGN(const std::vector<CheckpointEntry> entries, ListCheckpoints(*store));
  size_t complete = 0;
  for (const CheckpointEntry& entry : entries) {
    const bool whole = Checkpoint::Open(store, entry.label).ok();
    complete += whole;
    const bool abandoned = !label.empty() && !entry.has_manifest && LifeOf(entry.label) != LifeOf(label);
    if ((complete == 0 && !abandoned) || (whole && complete <= std::max<size_t>(keep, 1))) continue;
    // Broken ones between those that stay cost their space and help nobody.
    std::vector<std::string> files = entry.files;
    std::stable_sort(files.begin(), files.end(), [](const std::string& a, const std::string& b) {
      return a.ends_with(kManifestSuffix) > b.ends_with(kManifestSuffix);
    });
    for (const std::string& file : files) EVERSTEP_RETURN_IF_ERROR(store->Delete(file));
    if (!files.empty()) log::Debug("checkpoint " + entry.label + " was removed");
  }
  return Status::Ok();
}

}  // namespace everstep
