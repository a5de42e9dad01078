#include "tests/sim/coordinator_node.h"

#include "base/plant.h"
#include "checkpoint/loader.h"
#include "ps/checkpoint_host.h"

namespace everstep::sim {
namespace {

constexpr size_t kKeptCheckpoints = 2;

}  // namespace

void CoordinatorNode::OnStart() {
  record_.Read([this, born = life()](std::optional<Configuration> found) {
    if (!running() || life() != born) return;
    Post(Duration{0}, [this, found = std::move(found)] {
      Coordinator::Options options{job_, scenario_.job, holder_, "coordinator", found};
      if (scenario_.checkpoint_every > 0) options.checkpoint_every = scenario_.checkpoint_every;
      if (found && folder_.memory_lost) {
        options.resume = FindResumePoint(*found);
        options.found.reset();
        if (!options.resume) return;
      }
      core_.emplace(now(), std::move(options));
    });
  });
}

void CoordinatorNode::OnMessage(PeerId from, const Envelope& envelope, Buffer) {
  if (core_) core_->OnMessage(now(), from, envelope);
}

void CoordinatorNode::OnClosed(PeerId peer) {
  if (core_) core_->OnClosed(now(), peer);
}

void CoordinatorNode::OnTick() {
  if (core_) core_->OnTick(now());
}

// As ps/resume.cc does it, which wants a real folder.
std::optional<ResumePoint> CoordinatorNode::FindResumePoint(const Configuration& recorded) {
  std::optional<Manifest> manifest;
  if (EVERSTEP_PLANTED("believe-manifests")) {
    const auto entries = ListCheckpoints(*folder_.disk);
    for (const CheckpointEntry& entry : *entries) {
      if (manifest || !entry.has_manifest) continue;
      Result<Checkpoint> checkpoint = Checkpoint::Open(folder_.disk, entry.label);
      if (checkpoint.ok()) manifest = checkpoint->manifest();
    }
  } else {
    const Result<FoundCheckpoint> found = FindNewestCheckpoint(folder_.disk);
    if (found.ok() && found->newest) manifest = found->newest->manifest();
  }
  if (!manifest) {
    world_.Violate("P2", name() + " finds no checkpoint that it can load, although one was complete");
    return std::nullopt;
  }
  checkers_.disk().Resumed(name(), *manifest);
  ResumePoint point;
  point.from = {manifest->label, manifest->seal, manifest->scale};
  point.parameters = manifest->parameters;
  point.dataset_size = manifest->dataset_size;
  point.recorded = recorded.ballot;
  point.above = std::max(recorded.ballot, manifest->ballot);
  return point;
}

void CoordinatorNode::Complete(CheckpointWork work) {
  Post(Duration(world_.random().Between(0, scenario_.disk_latency.count())), [this, work = std::move(work)] {
    const Status outcome = CompleteCheckpoint(folder_.disk, job_, scenario_.job, work, kKeptCheckpoints);
    if (outcome.ok()) checkers_.disk().Reported(work.label, Next(work.seal.id.step));
    core_->OnCheckpoint(now(), outcome);
  });
}

void CoordinatorNode::Propose(Coordinator::Proposal proposal) {
  record_.CompareAndSwap(proposal.expected, std::move(proposal.next), [this, born = life()](Status outcome) {
    if (!running() || life() != born) return;
    Post(Duration{0}, [this, outcome = std::move(outcome)] { core_->OnConfigured(now(), outcome); });
  });
}

// What the checkers look at, before anything of it leaves the process.
void CoordinatorNode::Observe() {
  MemberChecker::Seen seen;
  for (const Member* member : core_->members().All()) {
    seen.members.insert(member->id);
    seen.ready += member->ready;
  }
  seen.ballot = core_->ballot();
  seen.version = core_->version();
  checkers_.members().CoordinatorIs(*this, std::move(seen));
  for (const CommitRecord& record : core_->TakeCommits())
    checkers_.chain().Decided(name(), core_->ballot(), record.seal, record.scale);
  const Coordinator::State state = core_->state();
  const bool open = state == Coordinator::State::kOpen || state == Coordinator::State::kSealed ||
                    state == Coordinator::State::kMoving;
  if (open && recovered_ != core_->ballot()) {
    recovered_ = core_->ballot();
    checkers_.chain().Recovered(name(), recovered_, core_->version());
  }
  for (const Event& event : core_->TakeEvents()) {
    world_.Trace(this, [&] { return "** " + event.kind + " " + event.target + ": " + event.detail; });
  }
  if (state != last_state_) {
    world_.Trace(this, [&] {
      return "is " + std::string(Name(state)) + " at ballot " + ToString(core_->ballot()) + ", version " +
             ToString(core_->version());
    });
    last_state_ = state;
  }
}

void CoordinatorNode::Drain() {
  if (!core_) return;
  Observe();
  if (auto proposal = core_->TakeProposal()) Propose(std::move(*proposal));
  if (auto work = core_->TakeCheckpoint()) Complete(std::move(*work));
  for (Outgoing& message : core_->TakeOutbox()) world_.Send(*this, std::move(message));
  for (PeerId peer : core_->TakeClosings()) world_.Close(*this, peer);
  finished_ |= core_->state() == Coordinator::State::kFinished;
  if (core_->failure() && !failure_) {
    failure_ = core_->failure();
    if (!InOffice())
      world_.Violate("P6",
                     name() + " gives the job up, although another coordinator is in office: " + failure_->ToString());
  }
  if (core_->state() == Coordinator::State::kDeposed) deposed_ = true;
  if (core_->Done(now())) Post(Duration{0}, [this] { Crash(false); });
}

std::string CoordinatorNode::Describe() const {
  std::string text = name() + (running() ? paused() ? " frozen" : "" : " gone");
  if (!core_) return text + " (no core)";
  Coordinator& core = const_cast<Coordinator&>(*core_);
  text += " " + std::string(Name(core.state())) + " ballot " + ToString(core.ballot()) + " version " +
          ToString(core.version()) + (core.paused() ? " PAUSED" : "") + ", members:";
  for (const Member* m : core.members().All()) {
    text += " " + m->name + "(" + Short(m->id) + (m->ready ? "" : ", not ready") +
            (m->work ? ", works on " + ToString(m->work->version) : "") +
            (m->next ? ", next " + ToString(m->next->version) : "") + ")";
  }
  if (core.has_ledger())
    text += ", free samples " + std::to_string(core.ledger().Free()) + ", epoch " +
            std::to_string(core.ledger().committed().epoch);
  return text;
}

}  // namespace everstep::sim
