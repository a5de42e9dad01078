// One run's processes: coordinators (one object a life), servers, workers, the record, the checkers; and a supervisor
// that starts again what failed, as an operator's would.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/coordinator_node.h"
#include "tests/sim/server_node.h"
#include "tests/sim/worker_node.h"

namespace everstep::sim {

class Cluster {
 public:
  Cluster(Scenario scenario, bool tracing);

  Scenario& scenario() { return scenario_; }
  const JobSpec& job() const { return scenario_.job; }
  World& world() { return world_; }
  RecordStore& record() { return record_; }
  Checkers& checkers() { return checkers_; }

  // Everybody's first start.
  void StartAll();
  CoordinatorNode& StartCoordinator();
  WorkerNode& AddWorker(std::string name = {});
  ServerNode& AddServer();
  // This life of the server is in the record's map.
  bool InMap(const ServerNode& server) const;
  // Every chunk of the record's map is on a server that runs, other than this one.
  bool CanLose(const ServerNode& server) const;
  // The one that took office last.
  CoordinatorNode& coordinator() { return *coordinators_.back(); }
  std::vector<std::unique_ptr<CoordinatorNode>>& coordinators() { return coordinators_; }
  std::vector<std::unique_ptr<ServerNode>>& servers() { return servers_; }
  std::vector<std::unique_ptr<WorkerNode>>& workers() { return workers_; }
  std::vector<Node*> AllNodes();

  Folder& folder() { return folder_; }
  // All servers and the coordinator die at once; the supervisor starts them again then.
  void CutPower(Time back);
  // A coordinator will be started by somebody else then; until then the supervisor waits.
  void CoordinatorComesAt(Time when) { coordinator_due_ = when; }
  void WorkerComesAt(WorkerNode& worker, Time when);
  void ServerComesAt(ServerNode& server, Time when) { server_due_[&server] = when; }
  // After the faults: everybody is kept running, and enough workers.
  void KeepEnoughWorkers() { keep_enough_ = true; }

  // The job has ended, as a coordinator in office says.
  const CoordinatorNode* Ended() const;
  std::string Describe() const;

 private:
  void Supervise();

  Scenario scenario_;
  World world_;
  RecordStore record_;
  Checkers checkers_;
  Folder folder_;
  JobUid uid_;
  std::vector<std::unique_ptr<CoordinatorNode>> coordinators_;
  std::vector<std::unique_ptr<ServerNode>> servers_;
  std::vector<std::unique_ptr<WorkerNode>> workers_;
  Time coordinator_due_;
  std::map<const ServerNode*, Time> server_due_;
  bool keep_enough_ = false;
};

}  // namespace everstep::sim
