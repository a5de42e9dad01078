// The disk's side of checkpoints: what a server writes and reads, and how the coordinator makes a whole of the parts.
// All calls block for as long as a disk does; CheckpointHost has a thread for them, which yields to everything else.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/loop.h"
#include "checkpoint/manifest.h"
#include "checkpoint/store.h"
#include "ps/coordinator.h"
#include "ps/replica.h"

namespace everstep {

struct CheckpointOptions {
  std::string folder;   // of the store; empty: this server takes part in no checkpoint
  uint64_t every = 0;   // steps; 0: only the last version
  size_t keep = 3;      // complete ones
  double mb_per_s = 0;  // bound of this server's background writer; 0: none
  std::string init;     // safetensors file of initial values; empty: the first worker's
};

using StateArrays = std::map<std::string, Buffer>;

class CheckpointHost {
 public:
  explicit CheckpointHost(CheckpointOptions options) : options_(std::move(options)) {}
  ~CheckpointHost() { cancelled_ = true; }  // a writing under way is given up

  // Runs `task` on the host's thread.
  void Post(Loop::Task task) { thread_.loop().Post(std::move(task)); }

  // On the host's thread. `state`: per chunk of the work.
  SnapshotDone Write(SnapshotWork work, std::vector<StateArrays> state);
  struct Loaded {
    RestoreResult result;
    std::map<ChunkId, StateArrays> state;  // empty for initial values
  };
  Loaded Load(const RestoreWork& work, const ChunkLayout& layout, uint64_t chunk_bytes);

 private:
  Result<ManifestFile> WriteFile(SnapshotWork& work, std::vector<StateArrays> state);
  Status LoadCheckpoint(const RestoreWork& work, const ChunkLayout& layout, uint64_t chunk_bytes, Loaded* out);
  Status LoadInitial(const RestoreWork& work, const ChunkLayout& layout, Loaded* out);

  const CheckpointOptions options_;
  std::atomic<bool> cancelled_{false};
  LoopThread thread_;  // last: ends first
};

// Writes the manifest, which makes the parts a checkpoint, and deletes what is older than the newest `keep`.
Status CompleteCheckpoint(const std::shared_ptr<Store>& store, JobUid job, const JobSpec& spec,
                          const CheckpointWork& work, size_t keep);

// The tensors of a file of initial values; kInvalidArgument for dtypes that cannot be trained here.
Result<std::vector<TensorSpec>> ReadInitialFile(const std::string& path);

}  // namespace everstep
