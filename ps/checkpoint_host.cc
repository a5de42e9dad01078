#include "ps/checkpoint_host.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "base/log.h"
#include "checkpoint/loader.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shard_writer.h"

namespace everstep {
namespace {

constexpr int kNice = 10;

// On Linux a thread's own priority: sums and updates come first.
void YieldToOthers() {
  thread_local bool done = false;
  if (!std::exchange(done, true)) (void)setpriority(PRIO_PROCESS, 0, kNice);
}

bool AllFinite(const std::byte* bytes, uint64_t size) {
  for (uint64_t i = 0; i + sizeof(float) <= size; i += sizeof(float)) {
    float value = 0;
    std::memcpy(&value, bytes + i, sizeof value);
    if (!std::isfinite(value)) return false;
  }
  return true;
}

}  // namespace

// ---- A server's part ----

Result<ManifestFile> CheckpointHost::WriteFile(SnapshotWork& work, std::vector<StateArrays> state) {
  YieldToOthers();
  if (options_.folder.empty()) {
    return Status(Code::kInvalidArgument, "this server was started without --checkpoints; give it the job's folder");
  }
  EVERSTEP_ASSIGN(const std::unique_ptr<Store> store, MakeDirectoryStore(options_.folder, true));
  const Snapshot& s = work.snapshot;
  ShardSnapshot shard{ShardFileName(s.label, work.server), work.job,        s.version, s.digest, std::move(work.chunks),
                      std::move(work.parameters),          std::move(state)};
  return WriteShard(*store, std::move(shard), {static_cast<uint64_t>(options_.mb_per_s * 1e6), &cancelled_});
}

SnapshotDone CheckpointHost::Write(SnapshotWork work, std::vector<StateArrays> state) {
  SnapshotDone done;
  done.label = work.snapshot.label;
  if (!state.empty()) {
    for (const auto& [name, array] : state.front()) done.arrays.push_back(name);
  }
  Result<ManifestFile> written = WriteFile(work, std::move(state));
  if (!written.ok()) {
    done.code = written.status().code();
    done.message = written.status().message();
    return done;
  }
  done.file = written->name;
  done.bytes = written->bytes;
  done.checksum = written->checksum;
  done.chunks = std::move(written->chunks);
  return done;
}

CheckpointHost::Loaded CheckpointHost::Load(const RestoreWork& work, const ChunkLayout& layout, uint64_t chunk_bytes) {
  Loaded loaded;
  loaded.result.from = work.from;
  loaded.result.outcome =
      work.from.label.empty() ? LoadInitial(work, layout, &loaded) : LoadCheckpoint(work, layout, chunk_bytes, &loaded);
  return loaded;
}

Status CheckpointHost::LoadCheckpoint(const RestoreWork& work, const ChunkLayout& layout, uint64_t chunk_bytes,
                                      Loaded* out) {
  if (options_.folder.empty())
    return {Code::kInvalidArgument, "it was started without --checkpoints; give every server the job's folder"};
  EVERSTEP_ASSIGN(std::unique_ptr<Store> store, MakeDirectoryStore(options_.folder, false));
  Result<Checkpoint> opened = Checkpoint::Open(std::move(store), work.from.label);
  if (!opened.ok()) return opened.status().With("checkpoint " + work.from.label);
  Checkpoint& checkpoint = *opened;
  const Manifest& manifest = checkpoint.manifest();
  if (manifest.digest() != work.from.seal.digest || manifest.parameters.hash() != layout.spec().hash())
    return {Code::kCorrupt, "checkpoint " + work.from.label + " here is another one than the coordinator's"};
  const auto read = [&]() -> Status {
    for (ChunkId chunk : work.chunks) {
      EVERSTEP_ASSIGN(Buffer parameters, checkpoint.ReadChunk(kParametersArray, layout, chunk_bytes, chunk));
      EVERSTEP_ASSIGN(StateArrays state, checkpoint.ReadState(layout, chunk_bytes, chunk));
      out->result.parameters.emplace(chunk, std::move(parameters));
      out->state.emplace(chunk, std::move(state));
    }
    return Status::Ok();
  };
  const Status fine = read();
  return fine.ok() ? fine : fine.With("checkpoint " + work.from.label);
}

Status CheckpointHost::LoadInitial(const RestoreWork& work, const ChunkLayout& layout, Loaded* out) {
  if (options_.init.empty())
    return {Code::kInvalidArgument, "it was started without --init; give every server the file of initial values"};
  EVERSTEP_ASSIGN(const SafetensorsReader file, SafetensorsReader::OpenPath(options_.init));
  for (ChunkId id : work.chunks) {
    const Chunk& chunk = layout.chunk(id);
    MutableBuffer bytes(chunk.bytes);
    std::memset(bytes.data(), 0, bytes.size());
    for (const Segment& segment : chunk.segments) {
      const TensorSpec& tensor = layout.spec().tensors[segment.tensor];
      const StoredTensor* const stored = file.header().Find(tensor.name);
      if (stored == nullptr || stored->dtype != SafetensorsName(tensor.dtype) || stored->bytes() != tensor.bytes())
        return {Code::kWrongSpec, options_.init + " has no tensor \"" + tensor.name + "\" like the model's"};
      std::byte* const to = bytes.data() + segment.chunk_offset;
      EVERSTEP_RETURN_IF_ERROR(file.Read(*stored, segment.tensor_offset, {to, static_cast<size_t>(segment.bytes)}));
      if (segment.dtype == DType::kFloat32 && !AllFinite(to, segment.bytes))
        return {Code::kNonFinite, options_.init + ": tensor \"" + tensor.name + "\" holds NaN or Inf"};
    }
    out->result.parameters.emplace(id, std::move(bytes).Freeze());
  }
  return Status::Ok();
}

// ---- The coordinator's part ----

Status CompleteCheckpoint(const std::shared_ptr<Store>& store, JobUid job, const JobSpec& spec,
                          const CheckpointWork& work, size_t keep) {
  Manifest manifest;
  manifest.label = work.label;
  manifest.job = job;
  manifest.spec = spec;
  manifest.ballot = work.ballot;
  manifest.version = Next(work.seal.id.step);
  manifest.seal = work.seal;
  manifest.scale = work.scale;
  manifest.parameters = work.parameters;
  manifest.dataset_size = work.dataset_size;
  manifest.saved_at_s = static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count());
  manifest.arrays = {std::string(kParametersArray)};
  bool first = true;
  for (const SnapshotDone& part : work.parts) {
    if (!part.chunks.empty() && std::exchange(first, false))
      manifest.arrays.insert(manifest.arrays.end(), part.arrays.begin(), part.arrays.end());
    if (!part.chunks.empty() &&
        !std::equal(part.arrays.begin(), part.arrays.end(), manifest.arrays.begin() + 1, manifest.arrays.end()))
      return {Code::kInternal, "the servers saved different optimizer states"};
    // Another server's folder would be a checkpoint that nobody finds.
    const auto file = store->Open(part.file);
    if (!file.ok() || (*file)->size() != part.bytes)
      return {Code::kNotFound, "server ps" + ToString(part.server) + " saved " + part.file + ", and it is not in " +
                                   store->place() + "; give all servers the same folder"};
    manifest.files.push_back({part.file, part.bytes, part.checksum, part.chunks});
  }
  EVERSTEP_RETURN_IF_ERROR(Validate(manifest));
  EVERSTEP_RETURN_IF_ERROR(WriteToStore(*store, ManifestName(work.label), FormatManifest(manifest)));
  if (const Status pruned = PruneCheckpoints(store, keep, work.label); !pruned.ok())
    log::Warning("old checkpoints cannot be removed: " + pruned.message());
  return Status::Ok();
}

Result<std::vector<TensorSpec>> ReadInitialFile(const std::string& path) {
  EVERSTEP_ASSIGN(const SafetensorsReader file, SafetensorsReader::OpenPath(path));
  std::vector<TensorSpec> tensors;
  for (const StoredTensor& stored : file.header().tensors) {
    const std::optional<DType> dtype = DTypeOfSafetensors(stored.dtype);
    if (!dtype) {
      return Status(Code::kInvalidArgument, path + ": tensor \"" + stored.name + "\" is " + stored.dtype +
                                                "; initial values are F32 (or I64 for counters), convert it first");
    }
    TensorSpec tensor{stored.name, {}, *dtype, Role::kTrainable};
    for (uint64_t size : stored.shape) tensor.shape.push_back(static_cast<int64_t>(size));
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

}  // namespace everstep
