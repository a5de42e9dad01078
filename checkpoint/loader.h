// Finds the newest complete checkpoint of a store, and reads any part of it for any number of servers.
//
// What is broken (torn, flipped, truncated, missing, never completed) is named and skipped; the one before it is taken.
// Blocking calls, for a thread of their own. A Checkpoint belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/store.h"

namespace everstep {

class Checkpoint {
 public:
  // Reads the manifest and looks at every shard file: it is there and as long as it should be.
  static Result<Checkpoint> Open(std::shared_ptr<Store> store, const std::string& label);

  const Manifest& manifest() const { return manifest_; }
  const ChunkLayout& layout() const { return *layout_; }

  // Reads every byte of every file and compares checksums.
  Status Verify();

  // Fills `out` from byte `offset` of the flat index space (schema/parameter_spec.h) of one array: the parameters or a
  // state array. Padding between tensors is zero. A file is verified whole, once, before its first byte is used.
  Status Read(std::string_view array, uint64_t offset, std::span<std::byte> out);
  // A chunk of a layout of the same parameter spec, perhaps cut into chunks of another size.
  Result<Buffer> ReadChunk(std::string_view array, const ChunkLayout& layout, uint64_t chunk_bytes, ChunkId chunk);
  // All state arrays of a chunk, as kernels::ShardMath::ImportState takes them.
  Result<std::map<std::string, Buffer>> ReadState(const ChunkLayout& layout, uint64_t chunk_bytes, ChunkId chunk);

 private:
  struct File {
    SafetensorsReader reader;
    std::map<std::string_view, const StoredTensor*> tensors;
    bool verified = false;
  };

  Checkpoint(std::shared_ptr<Store> store, Manifest manifest);
  Result<File*> VerifiedFile(size_t index);
  Status CheckSizes();

  std::shared_ptr<Store> store_;
  Manifest manifest_;
  std::shared_ptr<const ChunkLayout> layout_;
  std::vector<uint32_t> file_of_;  // by chunk
  std::map<size_t, File> open_;
};

// One checkpoint of a store, whatever its state.
struct CheckpointEntry {
  std::string label;
  Version version;
  bool has_manifest = false;
  std::vector<std::string> files;  // that lie there, the manifest among them
  uint64_t bytes = 0;              // ... and their sizes together
};

// All that lie there, newest first. Unfinished writings count as parts of theirs.
Result<std::vector<CheckpointEntry>> ListCheckpoints(Store& store);

struct BrokenCheckpoint {
  std::string label;
  Status why;
};

struct FoundCheckpoint {
  std::optional<Checkpoint> newest;      // complete, every byte verified
  std::vector<BrokenCheckpoint> broken;  // newer than it, newest first; all of them when there is none
};

// Errors are the store's own; that nothing loads is not one.
Result<FoundCheckpoint> FindNewestCheckpoint(std::shared_ptr<Store> store);

// "v42-... (why); v41-... (why)".
std::string Describe(const std::vector<BrokenCheckpoint>& broken);

// After a save: deletes what is older than the newest `keep` complete checkpoints, and what dead writers left. Complete
// means here: its manifest and all its files are there with their sizes. The newest complete one always stays, and so
// does whatever is newer than it (a save under way), unless it has no manifest and is of another life than `label`, the
// one just saved: nobody will complete it, and in a crash loop such would fill the disk. The manifest goes first: what
// is half deleted is not complete.
Status PruneCheckpoints(std::shared_ptr<Store> store, size_t keep, const std::string& label = {});

}  // namespace everstep
