#include "ps/replica_host.h"

#include "base/checksum.h"

namespace everstep {
namespace {

// Bytes that are worked through faster than another thread is woken.
constexpr uint64_t kHereBytes = 64 << 10;

uint64_t BytesOf(const std::vector<Buffer>& buffers) {
  uint64_t bytes = 0;
  for (const Buffer& buffer : buffers) bytes += buffer.size();
  return bytes;
}

}  // namespace

ReplicaHost::ReplicaHost(Loop& loop, Replica::Options options, CheckpointOptions checkpoints,
                         BufferPool::Allocator allocator, std::function<void()> changed)
    : loop_(loop),
      core_(std::move(options)),
      allocator_(std::move(allocator)),
      changed_(std::move(changed)),
      checkpoint_(std::move(checkpoints)) {}

ReplicaHost::~ReplicaHost() { *alive_ = false; }

void ReplicaHost::Compute(uint64_t bytes, std::function<void()> task) {
  if (bytes <= kHereBytes && computing_ == 0) return task();
  ++computing_;
  compute_.loop().Post([this, alive = alive_, task = std::move(task)] {
    task();
    loop_.Post([this, alive] {
      if (*alive) --computing_;
    });
  });
}

kernels::ShardMath& ReplicaHost::Math() {
  if (!math_) math_ = std::make_unique<kernels::ShardMath>(core_.job_spec()->optimizer, core_.layout(), allocator_);
  return *math_;
}

void ReplicaHost::RunWork() {
  for (RestoreWork& work : core_.TakeRestores()) RunRestore(std::move(work));
  for (SumWork& work : core_.TakeSums()) RunSum(std::move(work));
  for (SnapshotWork& work : core_.TakeSnapshots()) RunSnapshot(std::move(work));
  for (ApplyWork& work : core_.TakeApplies()) RunApply(std::move(work));
  for (ExportWork& work : core_.TakeExports()) RunExport(std::move(work));
  for (ImportWork& work : core_.TakeImports()) RunImport(std::move(work));
}

void ReplicaHost::RunSum(SumWork work) {
  uint64_t bytes = 0;
  for (const std::vector<Buffer>& inputs : work.contributions) bytes += BytesOf(inputs);
  Compute(bytes, [this, &math = Math(), alive = alive_, work = std::make_shared<SumWork>(std::move(work))] {
    const size_t count = work->chunks.size();
    auto result = std::make_shared<SumResult>(SumResult{work->seal,
                                                        std::vector<Buffer>(count),
                                                        std::vector<double>(count),
                                                        std::vector<std::vector<uint32_t>>(count),
                                                        {}});
    if (work->ahead) {
      const Ahead& ahead = *work->ahead;
      const kernels::ShardMath::Version next = math.NewVersion(ahead.update);
      const kernels::ApplyOptions options{ahead.learning_rate, 1, ahead.update};
      result->ahead.resize(count);
      kernels::ForEachChunk(count, [&](size_t i) {
        kernels::ChunkUpdate update = math.SumAndApply(work->chunks[i], next, ahead.parameters[i],
                                                       work->contributions[i], work->weights, options);
        result->ahead[i] = std::move(update.parameters);
        result->squared_norms[i] = update.squared_norm;
        result->nonfinite[i] = std::move(update.nonfinite);
      });
      *work = {};  // the contributions' memory is their senders' again
      return Deliver(alive, result, &Replica::OnSummed);
    }
    kernels::ForEachChunk(count, [&](size_t i) {
      kernels::ChunkSum sum = math.Sum(work->chunks[i], work->contributions[i], work->weights);
      result->sums[i] = std::move(sum.sum);
      result->squared_norms[i] = sum.squared_norm;
      result->nonfinite[i] = std::move(sum.nonfinite);
    });
    work->contributions.clear();
    Deliver(alive, result, &Replica::OnSummed);
  });
}

void ReplicaHost::RunApply(ApplyWork work) {
  // What was worked out ahead only changes hands.
  const uint64_t bytes = work.ahead ? 0 : BytesOf(work.parameters) * 3;
  Compute(bytes, [this, &math = Math(), alive = alive_, work = std::make_shared<ApplyWork>(std::move(work))] {
    const size_t count = work->chunks.size();
    auto result = std::make_shared<ApplyResult>(
        ApplyResult{work->seal, std::vector<Buffer>(count), std::vector<uint64_t>(work->check ? count : 0)});
    if (work->ahead) {
      for (const ChunkId chunk : work->chunks) math.Adopt(chunk);
      result->parameters = std::move(work->parameters);
      return Deliver(alive, result, &Replica::OnApplied);
    }
    const kernels::ApplyOptions options{work->learning_rate, work->scale, work->update};
    const kernels::ShardMath::Version next = math.NewVersion(work->update);
    kernels::ForEachChunk(count, [&](size_t i) {
      result->parameters[i] = math.Apply(work->chunks[i], next, work->parameters[i], work->sums[i], options);
      if (work->check) result->checksums[i] = Checksum64(result->parameters[i].span());
    });
    Deliver(alive, result, &Replica::OnApplied);
  });
}

void ReplicaHost::RunExport(ExportWork work) {
  Compute(kMuch, [this, &math = Math(), alive = alive_, work = std::make_shared<ExportWork>(std::move(work))] {
    auto result = std::make_shared<ExportResult>(ExportResult{work->to, std::move(work->header), {}});
    const std::map<std::string, Buffer> state = math.ExportState(result->header.chunk);
    const size_t bytes = work->parameters.size();
    MutableBuffer payload(bytes * (1 + state.size()));
    std::byte* end = payload.data();
    const auto append = [&](const Buffer& part) {
      if (!part.empty()) std::memcpy(end, part.data(), part.size());
      end += part.size();
    };
    append(work->parameters);
    for (const auto& [name, array] : state) {
      result->header.arrays.push_back(name);
      append(array);
    }
    result->payload = std::move(payload).Freeze();
    Deliver(alive, result, &Replica::OnExported);
  });
}

void ReplicaHost::RunImport(ImportWork work) {
  Compute(kMuch, [this, &math = Math(), alive = alive_, work = std::make_shared<ImportWork>(std::move(work))] {
    const size_t bytes = work->payload.size() / (1 + work->header.arrays.size());
    std::map<std::string, Buffer> state;
    for (size_t i = 0; i < work->header.arrays.size(); ++i) {
      state.emplace(work->header.arrays[i], work->payload.Slice((1 + i) * bytes, bytes));
    }
    auto result = std::make_shared<ImportResult>();
    result->header = std::move(work->header);
    result->outcome = math.ImportState(result->header.chunk, state);
    // A copy of its own: the received buffer is several times as large as the part that is kept.
    result->parameters = Buffer::Copy(work->payload.data(), bytes);
    Deliver(alive, result, &Replica::OnImported);
  });
}

}  // namespace everstep
