// Driver of a Replica: its checkpoints. Work goes from thread to thread by way of the loop, which outlives them all.
#include "ps/replica_host.h"

namespace everstep {

// In the order of the compute thread: after the update that made the version, before the next one. Nothing is copied
// here; what the next update finds still held it leaves alone (ShareState).
void ReplicaHost::RunSnapshot(SnapshotWork work) {
  Compute(kMuch, [this, &math = Math(), alive = alive_, work = std::make_shared<SnapshotWork>(std::move(work))] {
    auto state = std::make_shared<std::vector<StateArrays>>();
    for (ChunkId chunk : work->chunks) state->push_back(math.ShareState(chunk));
    loop_.Post([this, alive, work, state] {
      if (!*alive) return;
      checkpoint_.Post([this, alive, work, state] {
        auto done = std::make_shared<SnapshotDone>(checkpoint_.Write(std::move(*work), std::move(*state)));
        Deliver(alive, done, &Replica::OnSnapshotWritten);
      });
    });
  });
}

void ReplicaHost::RunRestore(RestoreWork work) {
  const auto layout = core_.layout();
  const uint64_t chunk_bytes = core_.map()->chunk_bytes;
  checkpoint_.Post([this, alive = alive_, layout, chunk_bytes, work = std::make_shared<RestoreWork>(std::move(work))] {
    auto loaded = std::make_shared<CheckpointHost::Loaded>(checkpoint_.Load(*work, *layout, chunk_bytes));
    loop_.Post([this, alive, loaded] {
      if (*alive) SetState(std::move(*loaded));
    });
  });
}

void ReplicaHost::SetState(CheckpointHost::Loaded loaded) {
  Compute(kMuch,
          [this, &math = Math(), alive = alive_, loaded = std::make_shared<CheckpointHost::Loaded>(std::move(loaded))] {
            RestoreResult& result = loaded->result;
            for (const auto& [chunk, arrays] : loaded->state) {
              if (result.outcome.ok()) result.outcome = math.ImportState(chunk, arrays);
            }
            Deliver(alive, std::shared_ptr<RestoreResult>(loaded, &result), &Replica::OnRestored);
          });
}

}  // namespace everstep
