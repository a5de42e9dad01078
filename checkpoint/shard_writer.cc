#include "checkpoint/shard_writer.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/checksum.h"
#include "base/limits.h"
#include "checkpoint/safetensors.h"

namespace everstep {
namespace {

// How long a rest may last before it looks whether the writing was cancelled.
constexpr Duration kNap = std::chrono::milliseconds(50);

class SlicedWriter {
 public:
  SlicedWriter(StoreWriter& file, const ShardWriteOptions& options)
      : file_(file), options_(options), throttle_(options.bytes_per_second, SteadyNow()) {}

  Status Write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto slice = bytes.first(std::min(bytes.size(), limits::kCheckpointSliceBytes));
      EVERSTEP_RETURN_IF_ERROR(Rest());
      EVERSTEP_RETURN_IF_ERROR(file_.Append(slice));
      sum_.Add(slice);
      total_ += slice.size();
      next_ = throttle_.After(slice.size(), SteadyNow());
      bytes = bytes.subspan(slice.size());
    }
    return Status::Ok();
  }

  uint64_t total() const { return total_; }
  uint64_t checksum() const { return sum_.Value(); }

 private:
  Status Rest() {
    while (true) {
      if (options_.cancelled != nullptr && options_.cancelled->load(std::memory_order_relaxed))
        return {Code::kCancelled, "the writing of a checkpoint was given up"};
      const Duration left = next_ - SteadyNow();
      if (left <= Duration{0}) return Status::Ok();
      std::this_thread::sleep_for(std::min(left, kNap));
    }
  }

  StoreWriter& file_;
  const ShardWriteOptions& options_;
  Throttle throttle_;
  Time next_;
  ChecksumStream sum_;
  uint64_t total_ = 0;
};

}  // namespace

Time Throttle::After(uint64_t bytes, Time now) {
  if (rate_ == 0) return now;
  bytes_ += bytes;
  const Time due =
      start_ + Duration(static_cast<int64_t>(static_cast<double>(bytes_) / static_cast<double>(rate_) * 1e9));
  if (due >= now) return due;
  // The store was slower than the rate: that is no credit for later.
  start_ = now;
  bytes_ = 0;
  return now;
}

Result<ManifestFile> WriteShard(Store& store, ShardSnapshot snapshot, const ShardWriteOptions& options) {
  EVERSTEP_CHECK(
      snapshot.chunks.size() == snapshot.parameters.size() && snapshot.chunks.size() == snapshot.state.size(),
      "an array of each kind a chunk");
  // The optimizer's arrays first: as long as one is held, the server's next update of that chunk copies it.
  std::vector<StoredTensor> tensors;
  std::vector<Buffer> pieces;
  const auto add = [&](ChunkId chunk, std::string_view array, Buffer bytes) {
    tensors.push_back({ChunkTensorName(chunk, array), "U8", {bytes.size()}, 0, 0});
    pieces.push_back(std::move(bytes));
  };
  for (size_t i = 0; i < snapshot.chunks.size(); ++i) {
    for (auto& [array, bytes] : snapshot.state[i]) add(snapshot.chunks[i], array, std::move(bytes));
  }
  for (size_t i = 0; i < snapshot.chunks.size(); ++i)
    add(snapshot.chunks[i], kParametersArray, std::move(snapshot.parameters[i]));
  snapshot.state.clear();
  snapshot.parameters.clear();
  const SafetensorsMetadata metadata = {{"format", "everstep-shard"},
                                        {"job_uid", ToString(snapshot.job)},
                                        {"version", ToString(snapshot.version)},
                                        {"digest", ToString(snapshot.digest)}};
  EVERSTEP_ASSIGN(const std::string header, LayOutSafetensors(&tensors, metadata));
  EVERSTEP_ASSIGN(const std::unique_ptr<StoreWriter> file, store.Create(snapshot.file));
  SlicedWriter writer(*file, options);
  EVERSTEP_RETURN_IF_ERROR(writer.Write(std::as_bytes(std::span(header.data(), header.size()))));
  for (Buffer& piece : pieces) {
    EVERSTEP_RETURN_IF_ERROR(writer.Write(piece.span()));
    piece = {};
  }
  EVERSTEP_RETURN_IF_ERROR(file->Commit());
  return ManifestFile{snapshot.file, writer.total(), writer.checksum(), std::move(snapshot.chunks)};
}

}  // namespace everstep
