// Coordinator: checkpoints. When a version is saved, how its parts become a whole, and how a new life of a job begins
// from a checkpoint or from a file of initial values (docs/checkpoints.md).
#include <algorithm>

#include "base/log.h"
#include "base/plant.h"
#include "checkpoint/manifest.h"
#include "ps/coordinator.h"

namespace everstep {
namespace {

std::string ShapeOf(const TensorSpec& tensor) {
  std::string text = "[";
  for (size_t i = 0; i < tensor.shape.size(); ++i) text += (i ? "," : "") + std::to_string(tensor.shape[i]);
  return text + (tensor.dtype == DType::kInt64 ? "] int64" : "] float32");
}

}  // namespace

// ---- Resuming ----

void Coordinator::BeginResume() {
  const ResumePoint& resume = *options_.resume;
  ballot_ = resume.recorded;
  next_grant_ = ((resume.above.value + 1) << 32) + 1;
  parameters_ = resume.parameters;
  dataset_size_ = resume.dataset_size;
  layout_ = ChunkLayout::Make(*parameters_, options_.spec.chunk_bytes);
  ledger_.emplace(dataset_size_, options_.spec.epochs);
  if (!EVERSTEP_PLANTED("resume-without-ledger")) ledger_->Restore(resume.from.seal.ledger_after);
  version_ = Next(resume.from.seal.id.step);
  digest_ = resume.from.seal.digest;
  restore_ = resume.from;
}

// A worker that outlived the servers holds versions that are lost; it joins again, with nothing in hand.
bool Coordinator::IsOfALostLife(const Hello& m) const { return options_.resume && m.version.value > 0; }

Status Coordinator::CheckInitialFile(const ParameterSpec& spec) const {
  if (!options_.initial) return Status::Ok();
  for (const TensorSpec& tensor : spec.tensors) {
    const auto found = std::find_if(options_.initial->begin(), options_.initial->end(),
                                    [&](const TensorSpec& t) { return t.name == tensor.name; });
    if (found == options_.initial->end()) {
      return {Code::kWrongSpec, "the file of initial values (--init) has no tensor \"" + tensor.name +
                                    "\"; give one of this model, or start without --init"};
    }
    if (found->shape != tensor.shape || found->dtype != tensor.dtype) {
      return {Code::kWrongSpec, "tensor \"" + tensor.name + "\" is " + ShapeOf(*found) +
                                    " in the file of initial values (--init), " + ShapeOf(tensor) + " in the model"};
    }
  }
  return Status::Ok();
}

// Step 0 as it would have been committed, with nobody as its contributor.
void Coordinator::RestoreInitialFile() {
  if (!options_.initial) return;
  Seal seal;
  seal.id = {{1}, {0}};
  seal.contributors = {Contribution{}};
  seal.weights = {1.0};
  seal.clip_norm = options_.spec.clip_norm;
  seal.ledger_after = ledger_->committed();
  seal.digest = SealDigest(seal);
  restore_ = RestoreFrom{"", std::move(seal), 1};
}

// ---- Saving ----

// Called at the commit: the servers hear of it before they hear of the next step. While a checkpoint is being written
// none is begun: a slow disk makes them rarer and never holds up a step.
void Coordinator::MaybeCheckpoint(Time now, const Seal& seal, double scale) {
  if (!options_.checkpoint_every || version_.value < 2) return;
  last_made_ = seal;
  last_scale_ = scale;
  if (saving_) return;
  const uint64_t every = *options_.checkpoint_every;
  const bool due = every > 0 && (version_.value - 1) % every == 0;
  if (!due && !LastStepDone()) return;
  Saving saving{{version_, digest_, CheckpointLabel(version_, options_.holder, ballot_)}, seal, scale, {}, false, now};
  for (const ServerEntry& entry : map_->servers) {
    saving.parts.emplace(entry.id, std::nullopt);
    if (const Server* server = FindServer(entry.id)) Send(server->peer, saving.snapshot);
  }
  saving_ = std::move(saving);
}

void Coordinator::Handle(Time now, PeerId from, const SnapshotDone& m) {
  const Server* const server = FindServerByPeer(from);
  if (server == nullptr || server->id != m.server) return;
  if (restore_ && m.label == restore_->label && m.code != Code::kOk) {
    return Fail(now, {m.code, "server " + server->name + " cannot restore the job: " + m.message});
  }
  if (!saving_ || saving_->sealing || m.label != saving_->snapshot.label || !saving_->parts.contains(m.server)) return;
  if (m.code != Code::kOk) return EndSaving(now, Status(m.code, m.message).With("server " + server->name));
  saving_->parts[m.server] = m;
  CheckpointWork work{m.label, ballot_, saving_->seal, saving_->scale, *parameters_, dataset_size_, {}};
  for (const auto& [id, part] : saving_->parts) {
    if (!part) return;
    work.parts.push_back(*part);
  }
  saving_->sealing = true;
  checkpoint_ = std::move(work);
}

// A server that is gone, or has another life, will not answer.
void Coordinator::CheckSaving(Time now) {
  if (!saving_) return;
  const bool over = state_ == State::kFinished || state_ == State::kFailed;
  if (over && now - std::max(ended_at_, saving_->began) > options_.spec.progress_deadline())
    return EndSaving(now, {Code::kDeadlineExceeded, "it took too long, and the job has ended"});
  for (const auto& [id, part] : saving_->parts) {
    const Server* const server = FindServer(id);
    const bool gone = server == nullptr || state_ == State::kFailed ||
                      (server->peer == PeerId{} && now - server->down_since > options_.spec.lease());
    if (!part && gone) return EndSaving(now, {Code::kUnavailable, "server ps" + ToString(id) + " is lost"});
  }
}

void Coordinator::OnCheckpoint(Time now, const Status& outcome) {
  if (!saving_ || !saving_->sealing) return;
  EndSaving(now, outcome);
  Reschedule();
}

void Coordinator::EndSaving(Time now, const Status& outcome) {
  const Saving saved = *std::exchange(saving_, {});
  if (outcome.ok()) {
    ++counters_.checkpoints;
    uint64_t bytes = 0;
    for (const auto& [id, part] : saved.parts) bytes += part->bytes;
    Note(now, "checkpoint", saved.snapshot.label,
         std::to_string(bytes) + " bytes in " + std::to_string(static_cast<int>(Milliseconds(now - saved.began))) +
             " ms");
  } else {
    ++counters_.failed_checkpoints;
    Note(now, "checkpoint-failed", saved.snapshot.label, outcome.ToString() + "; the job goes on");
  }
  if (state_ == State::kFinished) ended_at_ = now;
  // The last version is worth a checkpoint even if another was being written when it came.
  if (state_ == State::kOpen || state_ == State::kFinished) {
    if (LastStepDone() && saved.snapshot.version != version_ && last_made_)
      MaybeCheckpoint(now, Seal(*last_made_), last_scale_);
  }
}

}  // namespace everstep
