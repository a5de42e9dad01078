// Driver of a Replica: its numbers run on a thread of their own (and TBB's), so that the loop stays free for messages.
#pragma once

#include <functional>
#include <memory>

#include "base/loop.h"
#include "ps/checkpoint_host.h"
#include "ps/kernels/shard_math.h"
#include "ps/replica.h"

namespace everstep {

class ReplicaHost {
 public:
  // `changed` is called on the loop after a result has come back: the outbox may have something. `allocator`: where
  // what is sent to others lives; the heap by default.
  ReplicaHost(Loop& loop, Replica::Options options, CheckpointOptions checkpoints, BufferPool::Allocator allocator,
              std::function<void()> changed);
  ~ReplicaHost();  // waits for the numbers under way

  Replica& core() { return core_; }
  // Starts what the core wants computed. Loop thread.
  void RunWork();

 private:
  void RunSum(SumWork work);
  void RunApply(ApplyWork work);
  void RunExport(ExportWork work);
  void RunImport(ImportWork work);
  // replica_host_checkpoint.cc
  void RunSnapshot(SnapshotWork work);
  void RunRestore(RestoreWork work);
  void SetState(CheckpointHost::Loaded loaded);
  // Runs `task` on the thread for numbers, after those that are there; small ones here and now when none is there: two
  // switches of threads cost more than the update of a small model. Loop thread.
  static constexpr uint64_t kMuch = UINT64_MAX;
  void Compute(uint64_t bytes, std::function<void()> task);
  // Any of this host's threads: the core gets the result on the loop, if the host still lives by then (`alive`).
  template <typename T>
  void Deliver(std::shared_ptr<bool> alive, std::shared_ptr<T> result, void (Replica::*receive)(Time, T)) {
    loop_.Post([this, alive = std::move(alive), result = std::move(result), receive] {
      if (!*alive) return;
      (core_.*receive)(SteadyNow(), std::move(*result));
      changed_();
    });
  }
  kernels::ShardMath& Math();

  Loop& loop_;
  Replica core_;
  const BufferPool::Allocator allocator_;
  const std::function<void()> changed_;
  std::unique_ptr<kernels::ShardMath> math_;  // made when the model is known
  uint64_t computing_ = 0;                    // tasks on the other thread
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  CheckpointHost checkpoint_;
  LoopThread compute_;  // last: ends first
};

}  // namespace everstep
