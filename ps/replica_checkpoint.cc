// Replica: checkpoints. What is written of a version, and how a new life of a job gets its parameters back
// (docs/checkpoints.md).
#include "base/log.h"
#include "base/plant.h"
#include "ps/replica.h"

namespace everstep {

// ---- Saving ----

// The coordinator says this after the commit that made the version and before anything of the next step, on one link
// and in this order; so the version is here as long as the message was not lost with a link.
void Replica::Handle(PeerId from, const Snapshot& m) {
  if (writing_ == m.label) return;  // the answer comes when it is written
  if (written_ && written_->label == m.label) return Send(from, *written_);
  SnapshotDone refusal;
  refusal.server = id_;
  refusal.label = m.label;
  const bool held = m.version == version_ && m.digest == digest_;
  if ((!held && !EVERSTEP_PLANTED("save-what-is-here")) || !map_) {
    refusal.code = Code::kStale;
    refusal.message = "version " + ToString(m.version) + " is not held any more; this server has " + ToString(version_);
    return Send(from, std::move(refusal));
  }
  if (writing_) {
    refusal.code = Code::kUnavailable;
    refusal.message = "the checkpoint " + *writing_ + " is still being written";
    return Send(from, std::move(refusal));
  }
  writing_ = m.label;
  SnapshotWork work{m, job_uid_, id_, primary_chunks_, {}};
  for (ChunkId chunk : primary_chunks_) work.parameters.push_back(published_.back().chunks.at(chunk));
  snapshots_.push_back(std::move(work));
}

void Replica::OnSnapshotWritten(Time, SnapshotDone result) {
  result.server = id_;
  writing_.reset();
  written_ = std::move(result);
  Send(coordinator_, *written_);
}

// ---- Restoring ----

bool Replica::MustRestore(const std::optional<RestoreFrom>& restore) const {
  return restore && !(applied_ && applied_->digest == restore->seal.digest);
}

// Whatever is held here belongs to a life of the job whose other parts are gone. The promise is answered when the
// version is here; until then the coordinator repeats it.
void Replica::Restore(const RestoreFrom& from) {
  if (restoring_ && restoring_->seal.digest == from.seal.digest) return;
  restoring_ = from;
  restores_.push_back({from, held_chunks_});
}

void Replica::OnRestored(Time, RestoreResult result) {
  if (!restoring_ || restoring_->seal.digest != result.from.seal.digest) return;  // superseded meanwhile
  const RestoreFrom from = *std::exchange(restoring_, {});
  if (!result.outcome.ok()) {
    log::Error(result.outcome.ToString());
    SnapshotDone failed;
    failed.server = id_;
    failed.label = from.label;
    failed.code = result.outcome.code();
    failed.message = result.outcome.message();
    return Send(coordinator_, std::move(failed));
  }
  bool complete = result.parameters.size() == held_chunks_.size();
  for (ChunkId chunk : held_chunks_) complete &= result.parameters.contains(chunk);
  if (!complete) return Restore(from);  // the map has changed since
  slots_.clear();
  done_.clear();
  published_.clear();
  history_.clear();
  prepared_.reset();
  summing_.reset();
  gathering_.reset();
  early_.clear();
  move_.reset();
  nonfinite_.reset();
  applied_ = from.seal;
  applied_scale_ = from.scale;
  Publish(Next(from.seal.id.step), from.seal.digest, std::move(result.parameters));
  AnswerPromise(coordinator_);
  AnswerWaitingPulls();
}

}  // namespace everstep
