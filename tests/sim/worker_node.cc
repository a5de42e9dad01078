#include "tests/sim/worker_node.h"

namespace everstep::sim {

void WorkerNode::OnStart() {
  Session::Options options;
  options.servers = {"coordinator"};
  options.name = name();
  options.spec = scenario_.spec;
  options.dataset_size = scenario_.dataset_size;
  options.timeout = scenario_.job.timeout;
  options.seed = Mix64(scenario_.seed ^ Mix64(std::hash<std::string>()(name()) + life()));
  core_.emplace(now(), std::move(options));
  model_.clear();
  model_version_ = {};
  busy_ = result_taken_ = false;
  end_.reset();
  failure_.reset();
}

void WorkerNode::OnMessage(PeerId from, const Envelope& envelope, Buffer payload) {
  core_->OnMessage(now(), from, envelope, std::move(payload));
}

void WorkerNode::OnClosed(PeerId peer) { core_->OnClosed(now(), peer, {Code::kUnavailable, "closed"}); }

void WorkerNode::OnTick() { core_->OnTick(now()); }

void WorkerNode::AskToLeave() {
  if (!running() || !core_) return;
  Post(Duration{0}, [this] { core_->Leave(now(), "asked to"); });
}

void WorkerNode::Exit(End end) {
  end_ = end;
  failure_ = core_->failure();
  world_.Trace(this, [&] {
    return "ends: " + (failure_ ? failure_->ToString() : std::string(end == End::kLeft ? "left" : "finished"));
  });
  Crash(false);
}

// ---- The user's training loop ----

Duration WorkerNode::ComputeTime() {
  const Duration time = Duration(world_.random().Between(scenario_.compute_min.count(), scenario_.compute_max.count()));
  return slow_ ? time * 8 : time;
}

void WorkerNode::TakeStep() {
  std::optional<Session::StepWork> step = core_->TakeStep(now());
  if (!step) return;
  if (step->fresh) {
    model_ = std::move(step->parameters);
    model_version_ = step->version;
  }
  world_.Trace(this,
               [&] { return "takes step " + ToString(step->version) + (step->initialise ? " (initial values)" : ""); });
  if (!step->initialise) {
    if (model_version_ != step->version)
      world_.Violate("P10", name() + " computes on version " + ToString(model_version_) + ", told it was " +
                                ToString(step->version));
    checkers_.chain().Read(name(), step->version, model_, history_);
  }
  busy_ = true;
  const Digest digest = checkers_.chain().DigestOf(step->version);
  Contribution contribution{core_->id(), step->version, digest, step->lease};
  Post(ComputeTime(), [this, serial = step->serial, contribution, initialise = step->initialise] {
    Contribute(serial, contribution, initialise);
  });
}

void WorkerNode::Contribute(uint64_t serial, const Contribution& contribution, bool initialise) {
  const ChunkLayout& layout = *checkers_.chain().layout();
  if (!initialise && world_.random().Chance(scenario_.abandon / 2)) {
    core_->AbandonStep(now(), serial);
    busy_ = false;
    return;
  }
  Chunks chunks =
      initialise ? InitialValues(layout, contribution.worker.value) : Gradients(layout, model_, contribution);
  const bool poisoned =
      !initialise && world_.random().Chance(scenario_.poison) && Poison(layout, world_.random(), &chunks);
  checkers_.chain().Made(contribution, chunks, poisoned);
  PushNext(serial, std::move(chunks), 0);
}

// One chunk after the other, as a backward pass makes them.
void WorkerNode::PushNext(uint64_t serial, Chunks chunks, uint32_t next) {
  if (next > 0 && world_.random().Chance(scenario_.abandon / 4)) {
    core_->AbandonStep(now(), serial);
    busy_ = false;
    return;
  }
  const auto size = static_cast<uint32_t>(chunks.size());
  if (next == size) {
    (void)core_->CommitStep(now(), serial, {{"loss", 1.0}});  // stale: the next one is on its way
    busy_ = false;
    ++steps_;
    return;
  }
  core_->PushChunk(now(), serial, {next}, chunks.at({next}));
  const Duration gap = world_.random().Chance(0.5) ? Duration{0} : ComputeTime() / size;
  Post(gap, [this, serial, chunks = std::move(chunks), next] { PushNext(serial, chunks, next + 1); });
}

void WorkerNode::TakeResult() {
  result_taken_ = true;
  Chunks result = core_->TakeFinal();
  if (result.empty()) {
    checkers_.chain().Read(name(), core_->held(), model_, history_);
  } else {
    checkers_.chain().Read(name(), core_->held(), result, history_);
  }
  done_ = true;
  if (core_->evaluate()) core_->ReportEvaluation({{"accuracy", 0.5}});
  core_->Leave(now(), "the job is complete");
}

// ---- The driver ----

void WorkerNode::Drain() {
  if (!core_) return;
  if (std::exchange(known_, core_->id()) != core_->id()) history_ = checkers_.chain().history();
  if (!busy_) TakeStep();
  if (core_->finished() && !result_taken_ && !busy_) TakeResult();
  checkers_.members().WorkerIs(*this, core_->id(), core_->leaving() || core_->failure().has_value());
  for (const Session::Opening& opening : core_->TakeOpenings()) world_.Connect(*this, opening.peer, opening.address);
  for (Outgoing& message : core_->TakeOutbox()) world_.Send(*this, std::move(message));
  for (PeerId peer : core_->TakeClosings()) world_.Close(*this, peer);
  if (core_->failure()) return Exit(End::kFailed);
  if (core_->left()) return Exit(result_taken_ ? End::kFinished : End::kLeft);
}

std::string WorkerNode::Describe() const {
  std::string text = name() + (running() ? paused() ? " frozen" : "" : " gone");
  if (end_) text += *end_ == End::kFinished ? ", finished" : *end_ == End::kLeft ? ", left" : ", failed";
  if (failure_) text += ": " + failure_->ToString();
  if (!core_) return text;
  const Session::Stats& stats = core_->stats();
  return text + " life " + Short(core_->id()) + " holds version " + ToString(core_->held()) + ", lives " +
         std::to_string(stats.lives) + ", contributed " + std::to_string(stats.contributed) + ", dropped " +
         std::to_string(stats.dropped) + (busy_ ? ", computing" : "");
}

}  // namespace everstep::sim
