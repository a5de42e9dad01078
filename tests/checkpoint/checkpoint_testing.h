// A small model saved as a checkpoint by any number of servers, for the tests of manifest, writer and loader.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "base/random.h"
#include "checkpoint/loader.h"
#include "checkpoint/manifest.h"
#include "checkpoint/shard_writer.h"
#include "checkpoint/store.h"

namespace everstep::test {

// Tensors with padding, a scalar, one without elements, an int64 buffer.
inline ParameterSpec OddSpec() {
  return {{{"w", {37, 11}, DType::kFloat32, Role::kTrainable},
           {"empty", {0, 4}, DType::kFloat32, Role::kTrainable},
           {"scalar", {}, DType::kFloat32, Role::kTrainable},
           {"count", {3}, DType::kInt64, Role::kBuffer},
           {"v", {500}, DType::kFloat32, Role::kTrainable}}};
}

inline JobSpec SavedJob(uint64_t chunk_bytes = 256) {
  JobSpec job;
  job.verify_replicas = 5;
  job.name = "saved";
  job.optimizer.momentum = 0.9;
  job.chunk_bytes = chunk_bytes;
  job.max_steps = 100;
  return job;
}

// What stands at a byte of an array in the flat index space; anything that depends on all three.
inline std::byte ByteAt(Version version, std::string_view array, uint64_t flat) {
  return static_cast<std::byte>(Mix64(version.value * 1000003 + flat * 31 + array.size()) & 0xff);
}

// A chunk of the model at `version`: padding is zero.
inline Buffer MakeChunk(const ChunkLayout& layout, uint64_t chunk_bytes, ChunkId id, Version version,
                        std::string_view array) {
  const Chunk& chunk = layout.chunk(id);
  MutableBuffer out(chunk.bytes);
  std::memset(out.data(), 0, out.size());
  for (const Segment& s : chunk.segments) {
    for (uint64_t i = 0; i < s.bytes; ++i)
      out.data()[s.chunk_offset + i] = ByteAt(version, array, id.value * chunk_bytes + s.chunk_offset + i);
  }
  return std::move(out).Freeze();
}

inline Manifest MakeManifest(Version version, uint64_t chunk_bytes = 256) {
  Manifest m;
  m.job = {0xabcdef0123456789};
  m.spec = SavedJob(chunk_bytes);
  m.ballot = {3};
  m.version = version;
  m.label = CheckpointLabel(version, {0x1234567890}, m.ballot);
  m.seal.id = {{2}, {version.value - 1}};
  m.seal.contributors = {{{0xfeed}, {version.value - 1}, {0x77}, {{0x22}, 1, {{0, 32}, {40, 64}}}}};
  m.seal.weights = {1.0};
  m.seal.learning_rate = 0.1 / 3;
  m.seal.ledger_after = {1, {{0, 32}, {40, 64}}};
  m.seal.previous = {0x77};
  m.seal.digest = SealDigest(m.seal);
  m.scale = 1.0 / 3;
  m.parameters = OddSpec();
  m.dataset_size = 60000;
  m.saved_at_s = 1700000000;
  m.arrays = {std::string(kParametersArray), "momentum"};
  return m;
}

// What each of `servers` would write: contiguous runs of chunks.
inline std::vector<ShardSnapshot> MakeShards(const Manifest& m, uint32_t servers) {
  const auto layout = ChunkLayout::Make(m.parameters, m.spec.chunk_bytes);
  std::vector<ShardSnapshot> shards;
  for (uint32_t s = 0; s < servers; ++s) {
    ShardSnapshot& shard =
        shards.emplace_back(ShardSnapshot{ShardFileName(m.label, {s}), m.job, m.version, m.digest(), {}, {}, {}});
    for (uint32_t c = 0; c < layout->size(); ++c) {
      if (c * servers / layout->size() != s) continue;
      shard.chunks.push_back({c});
      shard.parameters.push_back(MakeChunk(*layout, m.spec.chunk_bytes, {c}, m.version, kParametersArray));
      auto& state = shard.state.emplace_back();
      for (size_t i = 1; i < m.arrays.size(); ++i)
        state[m.arrays[i]] = MakeChunk(*layout, m.spec.chunk_bytes, {c}, m.version, m.arrays[i]);
    }
  }
  return shards;
}

// The label of what was saved, or the first error.
inline Result<std::string> Save(Store& store, uint64_t version, uint32_t servers = 2, uint64_t chunk_bytes = 256) {
  Manifest m = MakeManifest({version}, chunk_bytes);
  for (ShardSnapshot& shard : MakeShards(m, servers)) {
    EVERSTEP_ASSIGN(ManifestFile file, WriteShard(store, std::move(shard), {}));
    m.files.push_back(std::move(file));
  }
  EVERSTEP_RETURN_IF_ERROR(Validate(m));
  EVERSTEP_RETURN_IF_ERROR(WriteToStore(store, ManifestName(m.label), FormatManifest(m)));
  return m.label;
}

// Every chunk of a layout cut into `chunk_bytes` is as it was saved.
inline void ExpectContents(Checkpoint& checkpoint, uint64_t chunk_bytes) {
  const Version version = checkpoint.manifest().version;
  const auto layout = ChunkLayout::Make(checkpoint.manifest().parameters, chunk_bytes);
  for (uint32_t c = 0; c < layout->size(); ++c) {
    const auto parameters = checkpoint.ReadChunk(kParametersArray, *layout, chunk_bytes, {c});
    ASSERT_TRUE(parameters.ok()) << parameters.status().ToString();
    EXPECT_EQ(parameters->text(), MakeChunk(*layout, chunk_bytes, {c}, version, kParametersArray).text()) << c;
    const auto state = checkpoint.ReadState(*layout, chunk_bytes, {c});
    ASSERT_TRUE(state.ok()) << state.status().ToString();
    EXPECT_EQ(state->at("momentum").text(), MakeChunk(*layout, chunk_bytes, {c}, version, "momentum").text()) << c;
  }
}

}  // namespace everstep::test
