// The processes of `everstep demo`: servers and workers on this host, their logs in one folder, and how each of them
// ought to end. Belongs to one thread, which must outlive it: the kernel kills the children when it ends.
// Whatever still runs when a Cast is destroyed is killed.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/process.h"
#include "base/status.h"

namespace everstep::ctl {

class Cast {
 public:
  struct Options {
    std::string programs;             // folder with everstep-ps and everstep-worker
    std::string folder;               // for the job file, logs, records and the report
    std::string job;                  // text of the job file
    unsigned threads = 1;             // of each process
    unsigned checkpoint_every = 400;  // steps
  };

  explicit Cast(Options options) : options_(std::move(options)) {}

  // Starts the first server, which coordinates at first.
  Status StartCoordinator(const std::string& name);
  // A further one, which joins the job. REQUIRES: some server listens.
  Status StartServer(const std::string& name);
  Status StartWorker(const std::string& name);
  // "" until it listens.
  std::string AddressOf(const std::string& name) const;
  // Of all servers that listen and were not killed.
  std::vector<std::string> Addresses() const;

  Status Kill(const std::string& name);    // SIGKILL; from here on it ought to end so
  Status Freeze(const std::string& name);  // SIGSTOP
  Status Thaw(const std::string& name);    // SIGCONT
  Status Drain(const std::string& name);   // SIGTERM; it ought to leave with exit 0
  void MayLeave(const std::string& name);  // somebody else has asked it to

  // An error when somebody has ended otherwise than expected, or, while the job is `running`, ended at all.
  Status Check(bool running);
  bool AllEnded();
  // Names of who still runs.
  std::string StillRunning();
  // Kills everybody, at once.
  void End();
  // A process of one of the children's groups that is still there, although the child itself is gone.
  Status CheckNothingLeft() const;

  size_t size() const { return players_.size(); }
  pid_t pid(const std::string& name) const;
  // The end of everybody's log, for people.
  std::string LogTails(size_t lines) const;

  std::string records_folder() const { return options_.folder + "/records"; }
  std::string checkpoints_folder() const { return options_.folder + "/checkpoints"; }
  // What the server wrote if it coordinated at the end.
  std::string ReportPath(const std::string& server) const { return options_.folder + "/" + server + ".report.json"; }

 private:
  struct Player {
    std::string name;
    Process process;
    pid_t pid;
    Process::Exit expected;
    bool may_end_early = false;
    bool server = false;
  };

  Status Start(const std::string& name, std::vector<std::string> argv);
  // `how`: as the first one, or as one that joins.
  Status StartServer(const std::string& name, const std::vector<std::string>& how);
  Player* Find(const std::string& name);
  Status Signal(const std::string& name, int signal);
  std::string LogPath(const std::string& name) const { return options_.folder + "/" + name + ".log"; }
  std::string AddressPath(const std::string& name) const { return options_.folder + "/" + name + ".address"; }

  const Options options_;
  std::vector<Player> players_;
};

}  // namespace everstep::ctl
