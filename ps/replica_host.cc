#include "ps/replica_host.h"

namespace everstep {

ReplicaHost::ReplicaHost(Loop& loop, Replica::Options options, CheckpointOptions checkpoints,
                         std::function<void()> changed)
    : loop_(loop), core_(std::move(options)), changed_(std::move(changed)), checkpoint_(std::move(checkpoints)) {}

ReplicaHost::~ReplicaHost() { *alive_ = false; }

kernels::ShardMath& ReplicaHost::Math() {
  if (!math_) math_ = std::make_unique<kernels::ShardMath>(core_.job_spec()->optimizer, core_.layout());
  return *math_;
}

void ReplicaHost::RunWork() {
  for (RestoreWork& work : core_.TakeRestores()) RunRestore(std::move(work));
  for (SumWork& work : core_.TakeSums()) RunSum(std::move(work));
  for (SnapshotWork& work : core_.TakeSnapshots()) RunSnapshot(std::move(work));
  for (ApplyWork& work : core_.TakeApplies()) RunApply(std::move(work));
}

void ReplicaHost::RunSum(SumWork work) {
  compute_.loop().Post([this, &math = Math(), alive = alive_, work = std::make_shared<SumWork>(std::move(work))] {
    const size_t count = work->chunks.size();
    auto result = std::make_shared<SumResult>(SumResult{
        work->seal, std::vector<Buffer>(count), std::vector<double>(count), std::vector<std::vector<uint32_t>>(count)});
    kernels::ForEachChunk(count, [&](size_t i) {
      kernels::ChunkSum sum = math.Sum(work->chunks[i], work->contributions[i], work->weights);
      result->sums[i] = std::move(sum.sum);
      result->squared_norms[i] = sum.squared_norm;
      result->nonfinite[i] = std::move(sum.nonfinite);
    });
    work->contributions.clear();
    loop_.Post([this, alive, result] {
      if (!*alive) return;
      core_.OnSummed(SteadyNow(), std::move(*result));
      changed_();
    });
  });
}

void ReplicaHost::RunApply(ApplyWork work) {
  compute_.loop().Post([this, &math = Math(), alive = alive_, work = std::make_shared<ApplyWork>(std::move(work))] {
    const size_t count = work->chunks.size();
    auto result = std::make_shared<ApplyResult>(ApplyResult{work->seal, std::vector<Buffer>(count)});
    const kernels::ApplyOptions options{work->learning_rate, work->scale, work->update};
    kernels::ForEachChunk(count, [&](size_t i) {
      result->parameters[i] = math.Apply(work->chunks[i], work->parameters[i], work->sums[i], options);
    });
    loop_.Post([this, alive, result] {
      if (!*alive) return;
      core_.OnApplied(SteadyNow(), std::move(*result));
      changed_();
    });
  });
}

}  // namespace everstep
