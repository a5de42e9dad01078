// Writes what one server holds of a committed version as one safetensors file: slice by slice, at a bounded rate, with
// its checksum on the way. The buffers are immutable and shared with the server (copy on write: ps/kernels); each is
// let go as soon as it is written. Blocks for as long as that takes: on a thread of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/status.h"
#include "checkpoint/manifest.h"
#include "checkpoint/store.h"

namespace everstep {

struct ShardSnapshot {
  std::string file;  // its name in the store
  JobUid job;
  Version version;
  Digest digest;
  std::vector<ChunkId> chunks;     // ascending
  std::vector<Buffer> parameters;  // per chunk
  // Per chunk: the optimizer's arrays by name, the same names for each.
  std::vector<std::map<std::string, Buffer>> state;
};

struct ShardWriteOptions {
  uint64_t bytes_per_second = 0;  // 0: as fast as the store takes it
  const std::atomic<bool>* cancelled = nullptr;
};

// kCancelled, or what the store said; then the store shows nothing of the file.
Result<ManifestFile> WriteShard(Store& store, ShardSnapshot snapshot, const ShardWriteOptions& options);

// Lets bytes through at a rate: after each slice, how long to rest. Pure.
class Throttle {
 public:
  Throttle(uint64_t bytes_per_second, Time start) : rate_(bytes_per_second), start_(start) {}

  // `bytes` were written by `now`: rest until this time before the next slice.
  Time After(uint64_t bytes, Time now);

 private:
  const uint64_t rate_;
  Time start_;
  uint64_t bytes_ = 0;
};

}  // namespace everstep
