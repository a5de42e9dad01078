#include "tests/sim/stranger.h"

#include <algorithm>

namespace everstep::sim {
namespace {

constexpr size_t kRemembered = 96;
constexpr uint64_t kListenEvery = 5;
// Of the pushes that it hears, once it is there, it tries to outrun so many.
constexpr double kOutrun = 0.002;

}  // namespace

void StrangerNode::OnSent(Node& from, Node* to, const Envelope& envelope) {
  if (from.Stranger()) return;
  if (std::holds_alternative<Push>(envelope.body)) {
    newest_push_ = envelope;
    if (running() && to != nullptr && random_.Chance(kOutrun))
      world_.After(Duration(0), [this, address = to->name(), envelope] { Outrun(address, envelope); });
  }
  if (std::holds_alternative<ChunkData>(envelope.body) || ++passed_ % kListenEvery != 0) return;
  heard_.push_back(envelope);
  if (heard_.size() > kRemembered) heard_.pop_front();
}

Envelope StrangerNode::Overheard(std::initializer_list<std::string_view> names) {
  std::vector<const Envelope*> fitting;
  for (const Envelope& e : heard_) {
    if (std::find(names.begin(), names.end(), Name(e.body)) != names.end()) fitting.push_back(&e);
  }
  if (fitting.empty()) return {{}, {}, StatusRequest{}};
  Envelope envelope = *fitting[random_.Below(fitting.size())];
  if (random_.Chance(0.5)) envelope.ballot.value += random_.Below(1000);
  if (random_.Chance(0.1)) envelope.job.value ^= 1;
  return envelope;
}

std::pair<Envelope, Buffer> StrangerNode::BadPush(Envelope envelope) {
  auto* push = std::get_if<Push>(&envelope.body);
  if (push == nullptr) return {envelope, {}};
  const std::string bytes(random_.Below(1000) * 8 + 4, 'x');  // no chunk's size
  switch (random_.Below(4)) {
    case 0: push->chunk.value += static_cast<uint32_t>(random_.Below(4)); break;  // before its real sender gets to it
    case 1: push->chunk.value = static_cast<uint32_t>(random_.Next()); break;
    case 2: push->contribution.base.value += 1000; break;
    default: push->contribution.worker.value = random_.Next(); break;
  }
  return {envelope, Buffer::Copy(bytes)};
}

// The chunk that is just on its way, in a size that it cannot have.
void StrangerNode::Outrun(const std::string& address, Envelope push) {
  const PeerId peer = world_.NewPeer();
  world_.Connect(*this, peer, address);
  world_.Send(*this, {peer, std::move(push), Buffer::Copy(std::string(random_.Below(1000) * 8 + 4, 'x'))});
  world_.After(Duration(random_.Between(1, 50'000'000)), [this, peer] { world_.Close(*this, peer); });
}

std::pair<Envelope, Buffer> StrangerNode::ForServer() {
  switch (random_.Below(3)) {
    case 0: return BadPush(newest_push_ ? *newest_push_ : Overheard({"Push"}));
    case 1: {
      Pull pull{
          {random_.Next()}, {random_.Below(4)}, random_.Chance(0.5), {{static_cast<uint32_t>(random_.Next())}}, {}};
      return {{Overheard({"Push", "Pull"}).job, {}, pull}, {}};
    }
    default:
      return {Overheard({"Promise", "SealStep", "Commit", "Finish", "Welcome", "JobFailed", "HeartbeatAck"}), {}};
  }
}

std::pair<Envelope, Buffer> StrangerNode::ForCoordinator() {
  switch (random_.Below(4)) {
    case 0: {
      Hello hello;
      hello.name = "w1";
      hello.job_name = random_.Chance(0.5) ? "another job" : "";
      hello.worker = {random_.Chance(0.2) ? 0 : random_.Next()};
      hello.spec.tensors.push_back({"other", {2}, DType::kFloat32, Role::kTrainable});
      return {{{}, {}, hello}, {}};
    }
    case 1: {
      Hello hello;
      hello.role = random_.Chance(0.5) ? PeerRole::kServer : PeerRole::kObserver;
      hello.name = "ps0";
      hello.incarnation = {random_.Next()};
      return {{{}, {}, hello}, {}};
    }
    case 2: {
      const WorkerId nobody{random_.Next()};
      const Body bodies[] = {Ready{nobody, {3}, {}}, Heartbeat{nobody, Phase::kWaiting, 1, 1}, Leave{nobody, "bye"},
                             Report{nobody, {}, {}, true, {}}};
      return {{Overheard({"Staged", "Ready"}).job, {}, bodies[random_.Below(std::size(bodies))]}, {}};
    }
    default: return {Overheard({"Promised", "Staged", "Prepared", "Applied", "NonFinite", "StaleBallot"}), {}};
  }
}

void StrangerNode::Visit(const std::string& address, bool coordinator) {
  const PeerId peer = world_.NewPeer();
  world_.Connect(*this, peer, address);
  for (uint64_t i = random_.Below(8); i > 0; --i) {
    auto [envelope, payload] = coordinator ? ForCoordinator() : ForServer();
    world_.Send(*this, {peer, std::move(envelope), std::move(payload)});
  }
  world_.After(Duration(random_.Between(1, 50'000'000)), [this, peer] { world_.Close(*this, peer); });
}

}  // namespace everstep::sim
