#include "tests/sim/world.h"

#include <algorithm>
#include <cstdio>

#include "base/checksum.h"
#include "schema/codec.h"

namespace everstep::sim {
namespace {

// More events than any run needs: whoever reaches it talks for ever.
constexpr uint64_t kMaxEvents = 4'000'000;
// What one link may hold back behind a partition (promise P7).
constexpr size_t kMaxBlocked = 4096;
constexpr Duration kTimerGrain = std::chrono::microseconds(20);
constexpr Duration kConnectTimeout = std::chrono::seconds(2);

}  // namespace

// ---- Node ----

Time Node::now() const { return world_.now(); }

void Node::Start() {
  EVERSTEP_CHECK(!running_, "a process is started once");
  ++life_;
  running_ = true;
  paused_ = doomed_ = false;
  armed_ = Time::Never();
  world_.Mix(life_);
  Run([this] { OnStart(); });
}

void Node::Crash(bool silent) {
  if (!running_) return;
  world_.Trace(this, [&] { return std::string(silent ? "dies, and its host with it" : "dies"); });
  world_.Mix(0xdead);
  running_ = false;
  paused_ = doomed_ = false;
  held_.clear();
  OnStop();
  world_.CloseAll(*this, silent);
}

void Node::Pause() {
  if (!running_ || paused_) return;
  world_.Trace(this, [&] { return std::string("is frozen"); });
  paused_ = true;
}

void Node::Resume() {
  if (!running_ || !paused_) return;
  world_.Trace(this, [&] { return "wakes up, " + std::to_string(held_.size()) + " events wait"; });
  paused_ = false;
  std::deque<std::function<void()>> held;
  held.swap(held_);
  // Timers are due as well; which comes first is anybody's guess.
  if (world_.random().Chance(0.5)) Run([this] { OnTick(); });
  const uint64_t life = life_;
  for (auto& action : held) {
    if (life_ != life || !running_) return;
    if (paused_) {
      held_.push_back(std::move(action));
    } else {
      Run(action);
    }
  }
  Run([] {});
}

void Node::Doom() {
  doomed_ = true;
  world_.Trace(this, [&] { return std::string("is doomed: what it says from now on does not leave"); });
}

void Node::Run(const std::function<void()>& action) {
  if (!running_) return;
  action();
  if (running_) Drain();
  Arm();
}

void Node::Post(Duration delay, std::function<void()> action) {
  world_.At(now() + delay, [this, life = life_, action = std::move(action)] {
    if (life != life_ || !running_) return;
    if (paused_) {
      held_.push_back(action);
    } else {
      Run(action);
    }
  });
}

void Node::Arm() {
  if (!running_ || paused_) return;
  const Time deadline = NextDeadline();
  if (deadline == Time::Never()) return;
  const Time next = std::max(deadline, now() + kTimerGrain);
  if (armed_ <= next) return;
  armed_ = next;
  world_.At(next, [this, life = life_, next] {
    if (life != life_ || armed_ != next) return;
    armed_ = Time::Never();
    if (paused_) return;
    Run([this] {
      if (NextDeadline() <= now()) OnTick();
    });
  });
}

// ---- Events ----

World::World(uint64_t seed, bool tracing)
    : random_(Mix64(seed)), network_random_(Mix64(seed ^ 0x6e6574)), tracing_(tracing), hash_(seed) {}

namespace {
struct Later {
  template <typename E>
  bool operator()(const E& a, const E& b) const {
    return std::tie(a.at, a.sequence) > std::tie(b.at, b.sequence);
  }
};
}  // namespace

void World::At(Time when, std::function<void()> action) {
  queue_.push_back({std::max(when, now_), next_sequence_++, std::move(action)});
  std::push_heap(queue_.begin(), queue_.end(), Later());
}

bool World::RunUntil(Time until, const std::function<bool()>& done) {
  while (!violation_ && !done()) {
    if (queue_.empty() || queue_.front().at > until) {
      now_ = until;
      return false;
    }
    std::pop_heap(queue_.begin(), queue_.end(), Later());
    const Event event = std::move(queue_.back());
    queue_.pop_back();
    now_ = event.at;
    Mix(static_cast<uint64_t>(now_.ns));
    event.action();
    if (++events_ > kMaxEvents) Violate("P7", "the event queue does not come to rest: somebody talks for ever");
  }
  return true;
}

// ---- Links ----

Node* World::Resolve(const std::string& address) const {
  const auto it = addresses_.find(address);
  return it == addresses_.end() ? nullptr : it->second;
}

Duration World::Latency() {
  const double u = network_random_.Uniform();
  return network_.latency + Duration(static_cast<int64_t>(static_cast<double>(network_.jitter.count()) * u * u * 2));
}

void World::Connect(Node& from, PeerId peer, const std::string& address) {
  auto link = std::make_shared<Link>();
  link->ends[0] = {&from, from.life_, peer, true, now_};
  from.links_[peer] = {link, 0};
  At(now_ + Latency() * 2, [this, link, address] { Establish(link, address); });
}

void World::Establish(const std::shared_ptr<Link>& link, const std::string& address) {
  Link::End& opener = link->ends[0];
  if (!opener.open || link->broken) return;
  Node* target = Resolve(address);
  if (target == nullptr || !target->Listening()) return TellClosed(link, 0, Latency(), false);
  if (Cut(*opener.node, *target)) return TellClosed(link, 0, kConnectTimeout, false);
  const PeerId accepted = NewPeer();
  link->ends[1] = {target, target->life_, accepted, true, now_};
  target->links_[accepted] = {link, 1};
  link->connected = true;
  for (Link::Frame& frame : link->early) Transmit(link, 0, std::move(frame));
  link->early.clear();
}

void World::Send(Node& from, Outgoing message) {
  const auto it = from.links_.find(message.to);
  if (from.doomed_ || it == from.links_.end()) return;
  const auto& [link, side] = it->second;
  Node* to = link->ends[1 - side].node;
  Trace(&from, [&] { return "-> " + (to ? to->name() : std::string("?")) + "  " + Describe(message.envelope); });
  for (Tap* tap : taps_) tap->OnSent(from, to, message.envelope);
  if (from.doomed_) return;  // a listener wanted it to die here
  Link::Frame frame{Encode(message.envelope), std::move(message.payload)};
  if (!link->connected) {
    link->early.push_back(std::move(frame));
  } else {
    Transmit(link, side, std::move(frame));
  }
}

void World::Transmit(const std::shared_ptr<Link>& link, int side, Link::Frame frame) {
  if (link->broken) return;
  ++messages_;
  Node& a = *link->ends[0].node;
  Node& b = *link->ends[1].node;
  if (Cut(a, b)) {
    auto& blocked = link->blocked[1 - side];
    if (network_.drop == 0) blocked.push_back(std::move(frame));
    if (blocked.size() > kMaxBlocked)
      Violate("P7", "more than 4096 messages wait for " + link->ends[1 - side].node->name());
    return;
  }
  Random& r = network_random_;
  const Network& n = network_;
  if (n.drop > 0 && r.Chance(n.drop)) {
    ++dropped_;
    return;
  }
  if (n.garble > 0 && r.Chance(n.garble)) Garble(*link->ends[1 - side].node, frame);
  Duration extra{0};
  if (n.spike > 0 && r.Chance(n.spike) && !(a.Anchored() && b.Anchored())) {
    ++spiked_;
    extra = Duration(r.Between(0, n.spike_length.count()));
    for (Node* node : {&a, &b}) node->Disturb(now_ + extra + std::chrono::seconds(3));
  }
  bool in_order = true;
  if (n.reorder > 0 && r.Chance(n.reorder)) {
    ++reordered_;
    in_order = false;
    extra += Duration(r.Between(0, 20 * (n.latency + n.jitter).count()));
  }
  if (n.duplicate > 0 && r.Chance(n.duplicate)) {
    ++duplicated_;
    Schedule(link, side, frame,
             extra + Duration(r.Between(0, r.Chance(0.3) ? 500'000'000 : 100 * (n.latency + n.jitter).count())), false);
  }
  Schedule(link, side, std::move(frame), extra, in_order);
}

void World::Schedule(const std::shared_ptr<Link>& link, int side, Link::Frame frame, Duration extra, bool in_order) {
  Link::End& end = link->ends[1 - side];
  Time at = now_ + Latency() + extra;
  if (!network_.held.empty()) {
    const auto held = network_.held.find({link->ends[side].node, end.node});
    if (held != network_.held.end()) at = std::max(at, held->second);
  }
  if (in_order) end.last = at = std::max(at, end.last);
  At(at, [this, link, side, frame = std::move(frame)] { Deliver(link, side, frame); });
}

void World::Deliver(const std::shared_ptr<Link>& link, int side, const Link::Frame& frame) {
  Link::End& end = link->ends[1 - side];
  if (link->broken || !end.open) return;
  Node& to = *end.node;
  if (to.paused_) {
    to.held_.push_back([this, link, side, frame] { Deliver(link, side, frame); });
    return;
  }
  const Result<Envelope> envelope = Decode(frame.header);
  if (!envelope.ok()) return Violate("P8", "a message of ours cannot be decoded: " + envelope.status().ToString());
  Node& from = *link->ends[side].node;
  Mix(Checksum64(frame.header.span()));
  Trace(&to, [&] { return "<- " + from.name() + "  " + Describe(*envelope); });
  for (Tap* tap : taps_) tap->OnDelivered(from, to, *envelope);
  to.Run([&] { to.OnMessage(end.peer, *envelope, frame.payload); });
}

// Damaged, cut or invented bytes at a node's door: the decoder refuses them, whatever they are. What still decodes by
// chance is not given to the node: forgery by insiders is not modelled.
void World::Garble(Node& node, const Link::Frame& frame) {
  Random& r = network_random_;
  std::string bytes(frame.header.text());
  switch (r.Below(3)) {
    case 0: bytes.resize(r.Below(bytes.size() + 1)); break;
    case 1:
      for (uint64_t i = r.Between(1, 8); i > 0 && !bytes.empty(); --i)
        bytes[r.Below(bytes.size())] ^= static_cast<char>(1 << r.Below(8));
      break;
    default:
      bytes.assign(r.Below(200), '\0');
      for (char& c : bytes) c = static_cast<char>(r.Next());
  }
  const bool refused = !Decode(Buffer::Copy(bytes)).ok();
  garbled_ += refused;
  Mix(refused);
  Trace(&node, [&] {
    return std::string("damaged bytes at the door, ") + (refused ? "refused" : "by chance a message: dropped");
  });
}

void World::TellClosed(const std::shared_ptr<Link>& link, int side, Duration delay, bool in_order) {
  Link::End& end = link->ends[side];
  if (end.node == nullptr || !end.open) return;
  Time at = now_ + delay;
  if (in_order) end.last = at = std::max(at, end.last);
  At(at, [this, link, side] {
    Link::End& told = link->ends[side];
    const auto tell = [this, link, side] {
      Link::End& it = link->ends[side];
      if (!it.open) return;
      it.open = false;
      it.node->links_.erase(it.peer);
      Trace(it.node, [&] { return "link closed: " + ToString(it.peer); });
      it.node->OnClosed(it.peer);
    };
    if (!told.open) return;
    if (told.node->paused_) {
      told.node->held_.push_back(tell);
    } else {
      told.node->Run(tell);
    }
  });
}

void World::Close(Node& from, PeerId peer) {
  const auto it = from.links_.find(peer);
  if (it == from.links_.end()) return;
  const auto [link, side] = it->second;
  from.links_.erase(it);
  link->ends[side].open = false;
  if (!link->connected || link->broken) return;
  const bool cut = Cut(*link->ends[0].node, *link->ends[1].node);
  TellClosed(link, 1 - side, Latency() + (cut ? Duration(std::chrono::seconds(1)) : Duration{0}), true);
}

void World::CloseAll(Node& node, bool silent) {
  auto links = std::exchange(node.links_, {});
  for (auto& [peer, at] : links) {
    const auto& [link, side] = at;
    link->ends[side].open = false;
    if (!silent && link->connected && !link->broken) TellClosed(link, 1 - side, Latency(), true);
  }
}

void World::Break(const std::shared_ptr<Link>& link, Duration notice) {
  if (link->broken) return;
  link->broken = true;
  Trace(nullptr, [&] {
    return "the link " + link->ends[0].node->name() + " - " + (link->ends[1].node ? link->ends[1].node->name() : "?") +
           " breaks";
  });
  Mix(0xb0);
  for (int side : {0, 1}) TellClosed(link, side, Duration(random_.Between(0, notice.count())), false);
}

std::vector<std::shared_ptr<Link>> World::LinksOf(const Node& node) const {
  std::vector<std::shared_ptr<Link>> links;
  for (const auto& [peer, at] : node.links_) {
    if (at.first->connected && !at.first->broken) links.push_back(at.first);
  }
  return links;
}

std::vector<std::shared_ptr<Link>> World::LinksBetween(const Node& a, const Node& b) const {
  std::vector<std::shared_ptr<Link>> links = LinksOf(a);
  std::erase_if(links, [&](const auto& link) { return link->ends[0].node != &b && link->ends[1].node != &b; });
  return links;
}

void World::SetCut(const Node& a, const Node& b, bool cut) {
  if (cut) {
    network_.cut.insert({&a, &b});
    network_.cut.insert({&b, &a});
    return;
  }
  network_.cut.erase({&a, &b});
  network_.cut.erase({&b, &a});
  for (const auto& link : LinksBetween(a, b)) {
    for (int to : {0, 1}) {
      for (Link::Frame& frame : std::exchange(link->blocked[to], {})) Transmit(link, 1 - to, std::move(frame));
    }
  }
}

// ---- Reports ----

void World::Violate(std::string promise, std::string what) {
  if (violation_) return;
  Trace(nullptr, [&] { return "VIOLATED " + promise + ": " + what; });
  violation_ = Violation{std::move(promise), std::move(what)};
}

void World::AddLine(const Node* node, std::string text) {
  char stamp[40];
  std::snprintf(stamp, sizeof stamp, "%12.6f %-7s ", static_cast<double>(now_.ns) / 1e9,
                node ? node->name().c_str() : "world");
  lines_.push_back(stamp + std::move(text));
  if (lines_.size() > line_limit_) lines_.pop_front();
}

}  // namespace everstep::sim
