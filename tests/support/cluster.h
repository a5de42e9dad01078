// Real processes of one job in a folder of their own: everstep-ps servers, workers, whatever else a test starts. All of
// them are ended when the Cluster goes, however the test ends. Waiting is polling with a deadline; every error names
// whom it concerns and shows the end of their log.
//
//   Cluster cluster;
//   EVERSTEP_RETURN_IF_ERROR(cluster.StartServers(2, {"--max-steps=100", "--batch=32"}));
//   EVERSTEP_ASSIGN(Program* a, cluster.StartWorker("a", {"--compute-ms=5"}));
//   EVERSTEP_RETURN_IF_ERROR(cluster.WaitForStep(10));
//   a->Kill();
//
// Belongs to one thread, which must outlive it (its children die with that thread).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/process.h"
#include "tests/support/probe.h"
#include "tests/support/records.h"

namespace everstep::test {

using nlohmann::json;
using Flags = std::vector<std::string>;

inline constexpr Duration kPatience = std::chrono::seconds(20);

// One process that a Cluster has started. Standard output and error go to files.
class Program {
 public:
  Program(std::string name, const std::string& folder, Process process);

  const std::string& name() const { return name_; }
  pid_t pid() const { return process_.pid(); }
  bool running() { return !process_.Poll(); }
  void Signal(int signal) { (void)process_.Signal(signal); }
  void Kill() {
    killed_ = true;
    (void)process_.Kill();
  }
  bool killed() const { return killed_; }  // by Kill()

  // What it has written so far.
  std::string output() const;
  std::string log() const;
  // The last line of its output that is JSON; a null value when there is none.
  json result() const;

  // How it ended, as the shell would say it: its exit code, or 128 + the signal that ended it.
  Result<int> Wait(Duration patience = kPatience);

 private:
  const std::string name_;
  const std::string base_;  // path of its files, without ".out" and ".log"
  Process process_;
  bool killed_ = false;
};

class Cluster {
 public:
  struct Options {
    std::string scheme = "tcp";  // or "ipc"
    std::string programs;        // folder of the programs; empty: of the running one
  };

  Cluster() : Cluster(Options{}) {}
  explicit Cluster(Options options);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  const std::string& folder() const { return folder_; }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  // Leave the folder for a look.
  void Keep() { keep_ = true; }

  // The server's listening address to give: a free port, or a socket in the folder.
  std::string FreeAddress();

  // ---- Starting ----

  // Server 0 coordinates the job that `job` describes, the others join it. Returns when all listen.
  Status StartServers(size_t count, Flags job);
  // One more server, named psN. Without --join among its flags, it must be the first.
  Result<Program*> StartServer(Flags flags);
  Status WaitForAddress(size_t server, Duration patience = kPatience);
  // everstep-plain-worker, given the coordinating server's address.
  Result<Program*> StartWorker(const std::string& name, Flags flags = {});
  // Any program of the programs' folder, or with a path.
  Result<Program*> Start(const std::string& name, const std::string& program, Flags flags);

  Program& server(size_t index) { return *servers_.at(index); }
  Program& worker(const std::string& name) { return *programs_.at(name); }
  const std::string& address(size_t server = 0) const { return addresses_.at(server); }

  // ---- Watching ----

  // The coordinating server's status (docs/reports.md).
  Result<json> AskStatus(Duration patience = kPatience);
  // Asks again and again until `holds`.
  Status WaitFor(const std::string& what, const std::function<bool(const json&)>& holds, Duration patience = kPatience);
  Status WaitForStep(uint64_t committed, Duration patience = kPatience);
  Status WaitForReady(size_t workers, Duration patience = kPatience);
  Status WaitForEvent(const std::string& kind, const std::string& target, Duration patience = kPatience);
  // The worker (started with --announce) has begun a step that it had not begun at the call.
  Result<uint64_t> WaitForBegin(const std::string& worker, Duration patience = kPatience);

  std::vector<CommitLine> commits() const { return ReadCommits(path("records.jsonl")); }
  // A null value while there is none.
  json report() const;

  // ---- The end ----

  // Every program that was not killed ends by itself, with exit code 0.
  Status WaitForCleanEnd(Duration patience = kPatience);
  // Socket files in the folder.
  std::vector<std::string> Sockets() const;

 private:
  Result<Program*> Keep(const std::string& name, Result<Process> started);

  const Options options_;
  std::string folder_;
  bool keep_ = false;
  size_t sockets_ = 0;
  std::vector<Program*> servers_;
  std::vector<std::string> addresses_;
  std::map<std::string, std::unique_ptr<Program>> programs_;  // by name; a new one replaces an ended one
  std::vector<std::unique_ptr<Program>> past_;
  std::unique_ptr<Probe> probe_;
};

// Events of a status or report, in order.
std::vector<json> EventsOf(const json& status, const std::string& kind, const std::string& target = {});

}  // namespace everstep::test
