#include "tests/sim/server_node.h"

#include "base/checksum.h"
#include "base/plant.h"
#include "checkpoint/loader.h"
#include "checkpoint/shard_writer.h"

namespace everstep::sim {
namespace {

constexpr Duration kFirstBackoff = std::chrono::milliseconds(20);

}  // namespace

void ServerNode::OnStart() {
  Incarnation incarnation{world_.random().Next() | 1};
  if (EVERSTEP_PLANTED("restart-unnoticed")) incarnation = {std::hash<std::string>()(name()) | 1};
  core_.emplace(Replica::Options{incarnation, name(), name()});
  math_.reset();
  coordinator_ = {};
  backoff_ = Duration{0};
  published_ = {};
  leaving_ = left_ = false;
  world_.Bind(name(), this);
  ConnectToCoordinator();
}

void ServerNode::OnStop() {
  core_.reset();
  math_.reset();
}

void ServerNode::ConnectToCoordinator() {
  coordinator_ = world_.NewPeer();
  heard_at_ = now();
  world_.Connect(*this, coordinator_, "coordinator");
  core_->OnCoordinatorLink(now(), coordinator_);
}

void ServerNode::LinkLost() {
  coordinator_ = {};
  backoff_ = std::min<Duration>(scenario_.job.lease() / 4, backoff_ == Duration{0} ? kFirstBackoff : backoff_ * 2);
  Post(backoff_, [this] {
    if (coordinator_ == PeerId{}) ConnectToCoordinator();
  });
}

void ServerNode::OnMessage(PeerId from, const Envelope& envelope, Buffer payload) {
  if (from == coordinator_) {
    heard_at_ = now();
    backoff_ = Duration{0};
  }
  const Body& body = envelope.body;
  if (std::holds_alternative<Hello>(body) || std::holds_alternative<Heartbeat>(body) ||
      std::holds_alternative<Ready>(body) || std::holds_alternative<Leave>(body)) {
    return world_.Send(*this, {from, {envelope.job, {}, NotCoordinator{"coordinator"}}, {}});
  }
  core_->OnMessage(now(), from, envelope, std::move(payload));
}

void ServerNode::OnClosed(PeerId peer) {
  core_->OnClosed(now(), peer);
  if (peer == coordinator_) LinkLost();
}

Time ServerNode::NextDeadline() const {
  if (!core_) return Time::Never();
  // A coordinator that answers no heartbeats is gone, whatever its link looks like.
  const Time silent = coordinator_ == PeerId{} ? Time::Never() : heard_at_ + scenario_.job.lease();
  return std::min(core_->NextDeadline(), silent);
}

void ServerNode::OnTick() {
  core_->OnTick(now());
  if (coordinator_ == PeerId{} || now() < heard_at_ + scenario_.job.lease()) return;
  world_.Close(*this, coordinator_);
  core_->OnClosed(now(), coordinator_);
  LinkLost();
}

kernels::ShardMath& ServerNode::Math() {
  if (!math_) math_ = std::make_unique<kernels::ShardMath>(core_->job_spec()->optimizer, core_->layout());
  return *math_;
}

void ServerNode::RunSum(SumWork work) {
  Post(WorkTime(), [this, work = std::move(work)] {
    SumResult result{work.seal, {}, {}, {}, {}};
    for (size_t i = 0; i < work.chunks.size() && work.ahead; ++i) {
      const Ahead& ahead = *work.ahead;
      kernels::ChunkUpdate update =
          Math().SumAndApply(work.chunks[i], Math().NewVersion(ahead.update), ahead.parameters[i],
                             work.contributions[i], work.weights, {ahead.learning_rate, 1, ahead.update});
      result.ahead.push_back(std::move(update.parameters));
      result.squared_norms.push_back(update.squared_norm);
      result.nonfinite.push_back(std::move(update.nonfinite));
    }
    for (size_t i = 0; i < work.chunks.size() && !work.ahead; ++i) {
      kernels::ChunkSum sum = Math().Sum(work.chunks[i], work.contributions[i], work.weights);
      result.sums.push_back(std::move(sum.sum));
      result.squared_norms.push_back(sum.squared_norm);
      result.nonfinite.push_back(std::move(sum.nonfinite));
    }
    core_->OnSummed(now(), std::move(result));
  });
}

void ServerNode::RunApply(ApplyWork work) {
  Post(WorkTime(), [this, work = std::move(work)] {
    ApplyResult result{work.seal, {}, {}};
    for (size_t i = 0; i < work.chunks.size(); ++i) {
      if (work.ahead) {
        Math().Adopt(work.chunks[i]);
        result.parameters.push_back(work.parameters[i]);
        continue;
      }
      result.parameters.push_back(Math().Apply(work.chunks[i], work.parameters[i], work.sums[i],
                                               {work.learning_rate, work.scale, work.update}));
      if (work.check) result.checksums.push_back(Checksum64(result.parameters.back().span()));
    }
    core_->OnApplied(now(), std::move(result));
  });
}

void ServerNode::RunExport(ExportWork work) {
  Post(WorkTime(), [this, work = std::move(work)] {
    std::string payload(work.parameters.text());
    ExportResult result{work.to, work.header, {}};
    for (const auto& [array, bytes] : Math().ExportState(work.header.chunk)) {
      result.header.arrays.push_back(array);
      payload += bytes.text();
    }
    result.payload = Buffer::Copy(payload);
    core_->OnExported(now(), std::move(result));
  });
}

void ServerNode::RunImport(ImportWork work) {
  Post(WorkTime(), [this, work = std::move(work)] {
    const size_t bytes = work.payload.size() / (1 + work.header.arrays.size());
    std::map<std::string, Buffer> state;
    for (size_t i = 0; i < work.header.arrays.size(); ++i)
      state.emplace(work.header.arrays[i], work.payload.Slice((1 + i) * bytes, bytes));
    Status outcome;
    if (!EVERSTEP_PLANTED("copy-without-state")) outcome = Math().ImportState(work.header.chunk, state);
    core_->OnImported(now(), {work.header, work.payload.Slice(0, bytes), std::move(outcome)});
  });
}

// ---- Checkpoints (as ps/checkpoint_host.cc does it, on a thread of its own) ----

void ServerNode::RunSnapshot(SnapshotWork work) {
  std::vector<std::map<std::string, Buffer>> state;
  for (ChunkId chunk : work.chunks) state.push_back(Math().ShareState(chunk));
  const Duration time(world_.random().Between(0, scenario_.disk_latency.count()));
  Post(time, [this, work = std::move(work), state = std::move(state)] {
    const Snapshot& s = work.snapshot;
    SnapshotDone done;
    done.label = s.label;
    if (!state.empty()) {
      for (const auto& [name, array] : state.front()) done.arrays.push_back(name);
    }
    ShardSnapshot shard{
        ShardFileName(s.label, work.server), work.job, s.version, s.digest, work.chunks, work.parameters, state};
    const Result<ManifestFile> written = WriteShard(*folder_.disk, std::move(shard), {});
    if (written.ok()) {
      done.file = written->name;
      done.bytes = written->bytes;
      done.checksum = written->checksum;
      done.chunks = written->chunks;
    } else {
      done.code = written.status().code();
      done.message = written.status().message();
    }
    core_->OnSnapshotWritten(now(), std::move(done));
  });
}

void ServerNode::RunRestore(RestoreWork work) {
  const Duration time(world_.random().Between(0, scenario_.disk_latency.count()));
  Post(time, [this, work = std::move(work)] { core_->OnRestored(now(), Load(work)); });
}

RestoreResult ServerNode::Load(const RestoreWork& work) {
  RestoreResult result{work.from, {}, {}};
  const auto layout = core_->layout();
  const uint64_t chunk_bytes = core_->map()->chunk_bytes;
  const auto read = [&]() -> Status {
    EVERSTEP_ASSIGN(Checkpoint checkpoint, Checkpoint::Open(folder_.disk, work.from.label));
    for (ChunkId chunk : work.chunks) {
      EVERSTEP_ASSIGN(Buffer parameters, checkpoint.ReadChunk(kParametersArray, *layout, chunk_bytes, chunk));
      EVERSTEP_ASSIGN(const auto state, checkpoint.ReadState(*layout, chunk_bytes, chunk));
      if (!EVERSTEP_PLANTED("resume-without-state")) EVERSTEP_RETURN_IF_ERROR(Math().ImportState(chunk, state));
      result.parameters.emplace(chunk, std::move(parameters));
    }
    return Status::Ok();
  };
  result.outcome = read();
  return result;
}

void ServerNode::AskToLeave() {
  leaving_ = true;
  core_->Drain(now());
}

void ServerNode::CheckPublished() {
  if (core_->version() == published_) return;
  published_ = core_->version();
  world_.Trace(this, [&] { return "publishes version " + ToString(published_); });
  checkers_.chain().Published(name(), core_->incarnation(), published_, core_->digest(), *core_->Parameters(published_),
                              core_->stats().slots);
}

void ServerNode::Drain() {
  CheckPublished();
  for (SumWork& work : core_->TakeSums()) RunSum(std::move(work));
  for (ApplyWork& work : core_->TakeApplies()) RunApply(std::move(work));
  for (ExportWork& work : core_->TakeExports()) RunExport(std::move(work));
  for (ImportWork& work : core_->TakeImports()) RunImport(std::move(work));
  for (SnapshotWork& work : core_->TakeSnapshots()) RunSnapshot(std::move(work));
  for (RestoreWork& work : core_->TakeRestores()) RunRestore(std::move(work));
  for (const Replica::Opening& opening : core_->TakeOpenings()) world_.Connect(*this, opening.peer, opening.address);
  for (PeerId peer : core_->TakeClosings()) world_.Close(*this, peer);
  for (Outgoing& message : core_->TakeOutbox()) world_.Send(*this, std::move(message));
  // Emptied: it goes. Taken out of the map: it comes back as a new life.
  const bool fenced = core_->failure() && core_->failure()->code() == Code::kFenced;
  left_ |= core_->drained() || (fenced && leaving_);
  if (left_ || fenced) Post(Duration{0}, [this] { Crash(false); });
  if (++drains_ % 16 != 0) return;
  const size_t readers = world_.OpenEnds(*this);
  const uint64_t waiting = core_->stats().waiting_pulls;
  if (waiting > readers) {
    world_.Violate("P7", name() + " keeps " + std::to_string(waiting) + " waiting pulls for " +
                             std::to_string(readers) + " links");
  }
}

std::string ServerNode::Describe() const {
  std::string text = name() + (running() ? paused() ? " frozen" : "" : " gone");
  if (!core_) return text;
  const Replica::Stats stats = core_->stats();
  return text + " server " + ToString(core_->id()) + " promised " + ToString(core_->promised()) + " version " +
         ToString(core_->version()) + ", slots " + std::to_string(stats.slots) + ", waiting pulls " +
         std::to_string(stats.waiting_pulls) + (coordinator_ == PeerId{} ? ", no coordinator" : "") +
         (core_->failure() ? ", failed: " + core_->failure()->ToString() : "");
}

}  // namespace everstep::sim
