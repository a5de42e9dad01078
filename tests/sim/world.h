// The simulated world: virtual time, an event queue ordered by (time, sequence), processes (nodes) and the links
// between them. Everything that happens, happens as an event of this queue, and every random choice comes from the
// seed: the same seed gives the same run, bit for bit (TraceHash).
//
// A link behaves like a TCP connection between two processes: in order, nothing lost while it lives, and when it ends
// each side learns it at its own time. Network makes it worse: drop, duplicate, reorder, spikes, partitions. Messages
// travel as encoded bytes.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/random.h"
#include "schema/messages.h"
#include "schema/peer.h"

namespace everstep::sim {

class Node;
class World;

// Told of every message; the checkers and the fault schedule listen.
class Tap {
 public:
  virtual ~Tap() = default;
  virtual void OnSent(Node& from, Node* to, const Envelope& envelope) = 0;
  virtual void OnDelivered(Node& from, Node& to, const Envelope& envelope) = 0;
};

struct Link {
  struct End {
    Node* node = nullptr;
    uint64_t life = 0;
    PeerId peer;
    bool open = false;
    Time last;  // of the newest delivery to this end: what comes later is delivered later
  };
  struct Frame {
    Buffer header;
    Buffer payload;
  };
  End ends[2];  // 0 opened it, 1 accepted it
  bool connected = false;
  bool broken = false;            // nothing gets through any more
  std::vector<Frame> early;       // sent by end 0 before the connection stood
  std::vector<Frame> blocked[2];  // towards that end, kept by a partition
};

// How the network behaves now. The fault schedule changes it.
struct Network {
  Duration latency{std::chrono::microseconds(200)};
  Duration jitter{std::chrono::microseconds(200)};
  double drop = 0;
  double duplicate = 0;
  double reorder = 0;  // a message that is not kept in order
  double spike = 0;    // a message that is late, and all that is behind it
  Duration spike_length{0};
  double garble = 0;                                         // a damaged copy comes along
  std::set<std::pair<const Node*, const Node*>> cut;         // pairs that do not hear each other
  std::map<std::pair<const Node*, const Node*>, Time> held;  // what the first says reaches the second not before then
};

struct Violation {
  std::string promise;
  std::string what;
};

// One process. It lives, may be frozen, dies, and may live again; what is said to an earlier life is lost.
class Node {
 public:
  Node(World& world, std::string name) : world_(world), name_(std::move(name)) {}
  virtual ~Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const std::string& name() const { return name_; }
  bool running() const { return running_; }
  bool paused() const { return paused_; }
  uint64_t life() const { return life_; }
  // Nothing that happened to it or around it explains trouble after this time.
  Time disturbed_until() const { return disturbed_until_; }
  void Disturb(Time until) { disturbed_until_ = std::max(disturbed_until_, until); }

  void Start();
  // The process is gone. `silent`: its host too, so that nobody is told.
  void Crash(bool silent);
  void Pause();
  void Resume();
  // It dies in the middle of what it is doing: nothing it sends from now on leaves.
  void Doom();

  virtual bool Listening() const { return running_; }
  virtual std::string Describe() const = 0;
  // Not one of ours: what it says proves nothing.
  virtual bool Stranger() const { return false; }
  // Messages between two such are never late by a lease: the job would rightly be given up.
  virtual bool Anchored() const { return false; }

 protected:
  friend class World;
  // The driver's side. Called while the process runs.
  virtual void OnStart() = 0;
  virtual void OnStop() = 0;
  virtual void OnMessage(PeerId from, const Envelope& envelope, Buffer payload) = 0;
  virtual void OnClosed(PeerId peer) = 0;
  virtual void OnTick() = 0;
  virtual Time NextDeadline() const = 0;
  // Moves what the core has produced; after every event.
  virtual void Drain() = 0;

  // Runs `action` in this life of the process, after `delay`, and later if it is frozen then.
  void Post(Duration delay, std::function<void()> action);
  Time now() const;

  World& world_;

 private:
  void Run(const std::function<void()>& action);
  void Arm();

  const std::string name_;
  bool running_ = false;
  bool paused_ = false;
  bool doomed_ = false;
  uint64_t life_ = 0;
  Time armed_ = Time::Never();
  Time disturbed_until_;
  std::deque<std::function<void()>> held_;  // while frozen
  std::map<PeerId, std::pair<std::shared_ptr<Link>, int>> links_;
};

class World {
 public:
  World(uint64_t seed, bool tracing);

  Time now() const { return now_; }
  Random& random() { return random_; }
  Network& network() { return network_; }
  // Latencies come from a stream of their own, so that a run can be repeated with other arrival times.
  void ReseedNetwork(uint64_t seed) { network_random_ = Random(seed); }
  void AddTap(Tap* tap) { taps_.push_back(tap); }

  void At(Time when, std::function<void()> action);
  void After(Duration delay, std::function<void()> action) { At(now_ + delay, std::move(action)); }
  // Runs events until `done`, a violation, or `until`. False: `until` was reached.
  bool RunUntil(Time until, const std::function<bool()>& done);

  // ---- Links ----
  // Who answers at an address; the newest binding counts.
  void Bind(const std::string& address, Node* node) { addresses_[address] = node; }
  Node* Resolve(const std::string& address) const;
  PeerId NewPeer() { return {next_peer_++}; }
  void Connect(Node& from, PeerId peer, const std::string& address);
  void Send(Node& from, Outgoing message);
  void Close(Node& from, PeerId peer);
  // The network loses the connection: what is under way is gone, and each side is told within `notice`.
  void Break(const std::shared_ptr<Link>& link, Duration notice);
  // Live links of a node, oldest first.
  std::vector<std::shared_ptr<Link>> LinksOf(const Node& node) const;
  size_t OpenEnds(const Node& node) const { return node.links_.size(); }
  std::vector<std::shared_ptr<Link>> LinksBetween(const Node& a, const Node& b) const;
  bool Cut(const Node& a, const Node& b) const { return network_.cut.contains({&a, &b}); }
  void SetCut(const Node& a, const Node& b, bool cut);
  // What `from` says to `to` is late, in order: nothing of it arrives before `until`.
  void HoldBack(const Node& from, const Node& to, Time until) { network_.held[{&from, &to}] = until; }

  // ---- What went wrong, and what happened ----
  void Violate(std::string promise, std::string what);
  const std::optional<Violation>& violation() const { return violation_; }
  bool tracing() const { return tracing_; }
  template <typename F>
  void Trace(const Node* node, const F& text) {
    if (tracing_) AddLine(node, text());
  }
  const std::deque<std::string>& lines() const { return lines_; }
  void SetLineLimit(size_t lines) { line_limit_ = lines; }
  uint64_t trace_hash() const { return hash_; }
  void Mix(uint64_t value) { hash_ = Mix64(hash_ ^ value); }
  uint64_t events() const { return events_; }
  uint64_t messages() const { return messages_; }
  uint64_t dropped() const { return dropped_; }
  uint64_t duplicated() const { return duplicated_; }
  uint64_t reordered() const { return reordered_; }
  uint64_t spiked() const { return spiked_; }
  uint64_t garbled() const { return garbled_; }

 private:
  friend class Node;
  struct Event {
    Time at;
    uint64_t sequence;
    std::function<void()> action;
  };

  void Establish(const std::shared_ptr<Link>& link, const std::string& address);
  void Transmit(const std::shared_ptr<Link>& link, int side, Link::Frame frame);
  void Schedule(const std::shared_ptr<Link>& link, int side, Link::Frame frame, Duration extra, bool in_order);
  void Deliver(const std::shared_ptr<Link>& link, int side, const Link::Frame& frame);
  void Garble(Node& node, const Link::Frame& frame);
  void TellClosed(const std::shared_ptr<Link>& link, int side, Duration delay, bool in_order);
  void CloseAll(Node& node, bool silent);
  Duration Latency();
  void AddLine(const Node* node, std::string text);

  Time now_{1'000'000'000};
  uint64_t next_sequence_ = 0;
  std::vector<Event> queue_;  // a heap, earliest first
  Random random_;
  Random network_random_;
  Network network_;
  std::map<std::string, Node*> addresses_;
  uint64_t next_peer_ = 1'000'000;
  std::vector<Tap*> taps_;
  std::optional<Violation> violation_;
  const bool tracing_;
  size_t line_limit_ = 40;
  std::deque<std::string> lines_;
  uint64_t hash_ = 0;
  uint64_t events_ = 0;
  uint64_t messages_ = 0;
  uint64_t dropped_ = 0;
  uint64_t duplicated_ = 0;
  uint64_t reordered_ = 0;
  uint64_t spiked_ = 0;
  uint64_t garbled_ = 0;
};

// A message in one line, for traces.
std::string Describe(const Envelope& envelope);

}  // namespace everstep::sim
