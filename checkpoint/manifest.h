// The manifest of a checkpoint: written last, it makes the shard files of one committed version a checkpoint. It holds
// everything that a job needs to go on bit-equal besides the numbers themselves: the seal that made the version (with
// the ledger after it), the settings, the parameter spec, and which file holds which chunk, with sizes and checksums.
//
// One JSON object on one line, docs/checkpoints.md has the fields:
//   {"checksum":"<16 hex digits>","manifest":{...}}
// The checksum is XXH3 over the bytes of the inner object, so that any changed byte is found.
//
// Plain data and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "schema/messages.h"

namespace everstep {

inline constexpr uint64_t kManifestFormat = 1;
inline constexpr std::string_view kManifestSuffix = ".manifest.json";
inline constexpr std::string_view kShardSuffix = ".safetensors";
// The array that is the model itself; the others are the optimizer's state.
inline constexpr std::string_view kParametersArray = "parameters";

struct ManifestFile {
  std::string name;
  uint64_t bytes = 0;
  uint64_t checksum = 0;        // XXH3 of the whole file
  std::vector<ChunkId> chunks;  // that it holds, ascending; every array of each

  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

struct Manifest {
  std::string label;  // what the names of all its files begin with
  JobUid job;
  JobSpec spec;
  Ballot ballot;  // in force when it was saved
  Version version;
  Seal seal;         // made `version`; its ledger_after is the ledger
  double scale = 1;  // of its update
  ParameterSpec parameters;
  uint64_t dataset_size = 0;
  uint64_t saved_at_s = 0;          // Unix time
  std::vector<std::string> arrays;  // kParametersArray first
  std::vector<ManifestFile> files;

  Digest digest() const { return seal.digest; }
  uint64_t bytes() const;  // of its files
  friend bool operator==(const Manifest&, const Manifest&) = default;
};

// "v000000000042-...": labels sort by version.
std::string CheckpointLabel(Version version, Incarnation holder, Ballot ballot);
// The version that a file's name begins with; false for names that are none of a checkpoint's.
bool ParseCheckpointName(std::string_view name, std::string* label, Version* version);
std::string ManifestName(std::string_view label);
std::string ShardFileName(std::string_view label, ServerId server);
// Name of a chunk's array in its shard file.
std::string ChunkTensorName(ChunkId chunk, std::string_view array);

// Whether it makes sense in itself: each chunk of the model in exactly one file, the seal made the version, the digest
// is the seal's, names belong to the label.
Status Validate(const Manifest& manifest);

// REQUIRES: Validate(manifest).ok().
std::string FormatManifest(const Manifest& manifest);
// kCorrupt, with a reason, for bytes that are no manifest, a wrong checksum, or contents that make no sense;
// kWrongVersion for a format of a newer build.
Result<Manifest> ParseManifest(std::string_view text);

}  // namespace everstep
