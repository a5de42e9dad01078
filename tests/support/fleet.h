// The servers of one job that die, join and leave while it runs, the coordinating one among them: a Cluster, and the
// knowledge of who is alive and who coordinates. Any of them may take office, for they share the configuration record.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/cluster.h"

namespace everstep::test {

class Fleet {
 public:
  // `record`: the flag that names the configuration record; empty: a state folder of its own.
  explicit Fleet(std::string record = {});

  Cluster& cluster() { return cluster_; }

  // Server 0 coordinates the job at first, the others join it.
  Status Start(size_t count, Flags job);
  // One more server, which joins the running job; its index. It need not have joined yet.
  Result<size_t> Add();
  // SIGKILL.
  void Kill(size_t server);
  // It has ended or will end by itself (drained).
  void Forget(size_t server) { probes_.erase(server), std::erase(alive_, server); }
  const std::vector<size_t>& alive() const { return alive_; }
  std::string name(size_t server) const { return "ps" + std::to_string(server); }
  // everstep-plain-worker, given the addresses of all servers that are alive.
  Result<Program*> StartWorker(const std::string& name, Flags flags);

  // The status by whoever coordinates now, who is then coordinator().
  Result<json> Ask(Duration patience = kPatience);
  size_t coordinator() const { return coordinator_; }
  Status WaitFor(const std::string& what, const std::function<bool(const json&)>& holds, Duration patience = kPatience);
  // So many more steps are committed.
  Status WaitSteps(uint64_t more, Duration patience = kPatience);
  // Two copies of everything exist, and every server that is alive is linked and holds a share. The job must have begun
  // with two copies.
  Status WaitWhole(Duration patience = std::chrono::seconds(60));
  // Bytes of one copy of everything; 0 before WaitWhole.
  uint64_t total_bytes() const { return total_bytes_; }

  // What all coordinators together have recorded, in order; an error when two of them tell different histories.
  Result<std::vector<CommitLine>> Commits() const;

 private:
  Cluster cluster_;
  const std::string record_;
  std::vector<size_t> alive_;
  size_t started_ = 0;
  size_t coordinator_ = 0;
  uint64_t total_bytes_ = 0;
  std::map<size_t, std::unique_ptr<Probe>> probes_;
};

}  // namespace everstep::test
