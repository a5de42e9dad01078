#include "tests/sim/cluster.h"

#include <algorithm>

namespace everstep::sim {
namespace {

using std::chrono::milliseconds;

constexpr Duration kSupervise = milliseconds(40);
// Far enough apart that workers join in the order of their names when nothing goes wrong.
constexpr Duration kCalmStagger = milliseconds(300);

}  // namespace

Cluster::Cluster(Scenario scenario, bool tracing)
    : scenario_(std::move(scenario)),
      world_(scenario_.seed, tracing),
      record_(world_, scenario_),
      checkers_(world_, scenario_),
      folder_{std::make_shared<Disk>(Mix64(scenario_.seed ^ 0xd15c)), false},
      uid_{Mix64(scenario_.seed) | 1} {
  folder_.disk->SetFailing(scenario_.disk_failing);
  world_.network() = scenario_.network;
  world_.AddTap(&checkers_);
  record_.OnChange([this](const Configuration& c) {
    checkers_.chain().Configured(c.map);
    // A change of before the power cut may arrive after it.
    if (std::any_of(servers_.begin(), servers_.end(), [&](const auto& server) { return InMap(*server); }))
      folder_.memory_lost = false;
  });
}

void Cluster::StartAll() {
  StartCoordinator();
  for (uint32_t i = 0; i < scenario_.job.servers; ++i) {
    servers_.push_back(std::make_unique<ServerNode>(world_, "ps" + std::to_string(i), scenario_, checkers_, folder_));
  }
  const bool calm = scenario_.story == Story::kCalm;
  for (auto& server : servers_) {
    world_.After(calm ? Duration{0} : Duration(world_.random().Between(0, 100'000'000)),
                 [&node = *server] { node.Start(); });
  }
  for (size_t i = 0; i < scenario_.workers; ++i) {
    const Duration delay =
        calm ? kCalmStagger * static_cast<int64_t>(i + 1) : Duration(world_.random().Between(0, 200'000'000));
    world_.After(delay, [this] { AddWorker(); });
  }
  world_.After(kSupervise, [this] { Supervise(); });
}

CoordinatorNode& Cluster::StartCoordinator() {
  const std::string name = "coord" + std::to_string(coordinators_.size() + 1);
  coordinators_.push_back(
      std::make_unique<CoordinatorNode>(world_, name, scenario_, record_, checkers_, folder_, uid_));
  world_.Bind("coordinator", coordinators_.back().get());
  coordinators_.back()->Start();
  return *coordinators_.back();
}

WorkerNode& Cluster::AddWorker(std::string name) {
  if (name.empty()) name = "w" + std::to_string(workers_.size() + 1);
  const bool slow = world_.random().Chance(scenario_.slow_worker);
  workers_.push_back(std::make_unique<WorkerNode>(world_, std::move(name), scenario_, checkers_, slow));
  workers_.back()->Start();
  return *workers_.back();
}

ServerNode& Cluster::AddServer() {
  const std::string name = "ps" + std::to_string(servers_.size());
  servers_.push_back(std::make_unique<ServerNode>(world_, name, scenario_, checkers_, folder_));
  servers_.back()->Start();
  return *servers_.back();
}

bool Cluster::InMap(const ServerNode& server) const {
  const auto& record = record_.record();
  if (!record || server.core() == nullptr) return false;
  const auto& servers = record->map.servers;
  return std::any_of(servers.begin(), servers.end(),
                     [&](const ServerEntry& entry) { return entry.incarnation == server.core()->incarnation(); });
}

bool Cluster::CanLose(const ServerNode& server) const {
  const auto& record = record_.record();
  if (!record || server.core() == nullptr) return false;
  std::set<Incarnation> alive;
  for (const auto& other : servers_) {
    if (other.get() != &server && other->running() && !other->paused()) alive.insert(other->core()->incarnation());
  }
  return std::all_of(record->map.replicas.begin(), record->map.replicas.end(), [&](const auto& holders) {
    return std::any_of(holders.begin(), holders.end(),
                       [&](uint32_t index) { return alive.contains(record->map.servers[index].incarnation); });
  });
}

void Cluster::CutPower(Time back) {
  world_.Trace(nullptr, [] { return std::string("==== the power of all servers is cut"); });
  const bool silent = world_.random().Chance(0.3);
  CoordinatorComesAt(back);
  for (auto& node : coordinators_) node->Crash(silent);
  for (auto& server : servers_) {
    server->Crash(silent);
    ServerComesAt(*server, back);
  }
  folder_.disk->PowerCut();
  folder_.memory_lost = true;
  checkers_.disk().AfterPowerCut(folder_.disk);
}

void Cluster::WorkerComesAt(WorkerNode& worker, Time when) {
  world_.At(when, [&worker] {
    if (!worker.running()) worker.Start();
  });
}

std::vector<Node*> Cluster::AllNodes() {
  std::vector<Node*> all;
  for (auto& node : coordinators_) all.push_back(node.get());
  for (auto& node : servers_) all.push_back(node.get());
  for (auto& node : workers_) all.push_back(node.get());
  return all;
}

const CoordinatorNode* Cluster::Ended() const {
  for (const auto& node : coordinators_) {
    // Whoever gave the job up and was followed by another has not ended it: the other one found every server.
    if (node->finished() || (node->failure() && !node->deposed() && node->InOffice())) return node.get();
  }
  return nullptr;
}

void Cluster::Supervise() {
  world_.After(kSupervise, [this] { Supervise(); });
  if (Ended() != nullptr && !coordinator().finished()) {
    // A coordinator that died after the end must say once more how it ended; one that failed must not.
    if (coordinator().failure()) return;
  }
  if (!coordinator().running() && !coordinator().finished() && world_.now() >= coordinator_due_) StartCoordinator();
  const bool restarts = scenario_.story == Story::kReplicas || scenario_.story == Story::kPowerCuts;
  if (restarts && Ended() == nullptr) {
    // A server that was taken out of the map, or died, comes back empty.
    for (auto& server : servers_) {
      if (!server->running() && !server->left() && record_.record() && server_due_[server.get()] <= world_.now())
        server->Start();
    }
  }
  size_t enough = 0;
  for (auto& worker : workers_) {
    const bool left = worker->end() == WorkerNode::End::kLeft || worker->end() == WorkerNode::End::kFinished;
    enough += !left;
    if (worker->running() || left || Ended() != nullptr) continue;
    if (worker->end() == WorkerNode::End::kFailed || keep_enough_) worker->Start();
  }
  if (keep_enough_ && workers_.size() >= scenario_.workers && enough < scenario_.job.min_workers && Ended() == nullptr)
    AddWorker();
}

std::string Cluster::Describe() const {
  std::string text;
  for (const auto& node : coordinators_) {
    if (node->running() || node == coordinators_.back()) text += "  " + node->Describe() + "\n";
  }
  for (const auto& node : servers_) text += "  " + node->Describe() + "\n";
  for (const auto& node : workers_) text += "  " + node->Describe() + "\n";
  const auto& record = record_.record();
  text += "  record: " + (record ? "ballot " + ToString(record->ballot) : std::string("empty")) + "\n";
  return text;
}

}  // namespace everstep::sim
