#include "tests/sim/planned.h"

#include "tests/sim/cluster.h"

namespace everstep::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

// A heartbeat is twelve times as long, and no step has that much to do: tens of ms of work, tens of messages.
constexpr Duration kLongestStep = milliseconds(800);
constexpr Duration kLookEvery = milliseconds(1);
constexpr int kChanges = 60;

Scenario MakePlanned(uint64_t seed) {
  Random r(Mix64(seed ^ 0x91a44ed));
  Scenario s;
  s.seed = seed;
  s.story = Story::kReplicas;
  JobSpec& job = s.job;
  job.name = "planned";
  job.mode = r.Chance(0.8) ? Mode::kSync : r.Chance(0.5) ? Mode::kSsp : Mode::kAsync;
  job.staleness = 4;
  job.timeout = seconds(600);
  job.servers = static_cast<uint32_t>(r.Between(1, 3));
  job.replication = r.Chance(0.3) ? 1 : 0;
  job.chunk_bytes = 64;
  job.batch = 8;
  job.epochs = 0;
  job.max_steps = 1'000'000;  // it is stopped when the changes are over
  job.optimizer.momentum = 0.9;
  s.workers = static_cast<size_t>(r.Between(1, 3));
  job.min_workers = static_cast<uint32_t>(s.workers);
  s.spec.tensors.push_back({"w", {r.Between(1, 20) * 16}, DType::kFloat32, Role::kTrainable});
  s.network.latency = microseconds(r.Chance(0.5) ? 50 : 500);
  s.network.jitter = microseconds(r.Chance(0.3) ? 30 : r.Chance(0.5) ? 1000 : 6000);
  s.compute_min = microseconds(500);
  s.compute_max = milliseconds(r.Between(1, 20));
  s.server_work = microseconds(r.Between(10, 3000));
  s.record_latency = microseconds(r.Chance(0.5) ? 100 : 6000);
  return s;
}

class Planned {
 public:
  Planned(uint64_t seed, const RunOptions& options)
      : cluster_(MakePlanned(seed), options.tracing), world_(cluster_.world()), random_(Mix64(seed ^ 0x301dd)) {
    world_.SetLineLimit(options.trace_lines);
  }

  RunResult Go(uint64_t seed) {
    const Time start = world_.now();
    world_.Trace(nullptr, [&] { return Describe(cluster_.scenario()); });
    cluster_.StartAll();
    Look();
    const bool done = world_.RunUntil(start + seconds(120), [&] { return changes_ == kChanges; });
    if (!done && !world_.violation()) world_.Violate("P7", "the changes of the map did not come to their end");
    RunResult result;
    result.seed = seed;
    result.violation = world_.violation();
    result.scenario = "planned changes: " + Describe(cluster_.scenario());
    if (result.violation) result.states = cluster_.Describe();
    result.lines = world_.lines();
    result.faults = counts_;
    result.steps = cluster_.checkers().chain().training_steps();
    result.messages = world_.messages();
    result.events = world_.events();
    result.coordinators = cluster_.coordinators().size();
    result.virtual_time = world_.now() - start;
    result.trace_hash = world_.trace_hash();
    return result;
  }

 private:
  void Look() {
    world_.After(kLookEvery, [this] { Look(); });
    const Coordinator* core = cluster_.coordinator().core();
    if (core == nullptr) return;
    if (core->version() != version_) {
      version_ = core->version();
      since_ = world_.now();
    }
    if (version_.value < 3) return;  // the job has yet to get going
    const Duration stood = world_.now() - since_;
    if (stood > kLongestStep) {
      return world_.Violate("P7", "step " + ToString(version_) + " has taken " +
                                      std::to_string(static_cast<int>(Milliseconds(stood))) +
                                      " ms, although nothing went wrong: something waits for a timer");
    }
    if (world_.now() >= next_change_) Change();
  }

  // Joins and drains in turn; the one before need not be over.
  void Change() {
    next_change_ = world_.now() + milliseconds(random_.Between(1, 150));
    std::vector<ServerNode*> in_map;
    for (auto& server : cluster_.servers()) {
      if (server->running() && !server->left() && !drained_.contains(server.get())) in_map.push_back(server.get());
    }
    ++changes_;
    if (in_map.size() < 3 || (in_map.size() < 5 && random_.Chance(0.5))) {
      ++counts_["servers joined"];
      cluster_.AddServer();
      return;
    }
    ServerNode* server = in_map[random_.Below(in_map.size())];
    drained_.insert(server);
    ++counts_["servers drained"];
    server->AskToLeave();
  }

  Cluster cluster_;
  World& world_;
  Random random_;
  Version version_;
  Time since_;
  Time next_change_;
  int changes_ = 0;
  std::set<const ServerNode*> drained_;
  std::map<std::string, uint64_t> counts_;
};

}  // namespace

RunResult RunPlanned(uint64_t seed, const RunOptions& options) { return Planned(seed, options).Go(seed); }

}  // namespace everstep::sim
