// The processes of `everstep demo`: two servers and some workers on this host, their logs in one folder, and how each
// of them ought to end. Belongs to one thread, which must outlive it: the kernel kills the children when it ends.
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
    std::string programs;  // folder with everstep-ps and everstep-worker
    std::string folder;    // for the job file, logs, records and the report
    std::string job;       // text of the job file
    size_t servers = 2;
    unsigned threads = 1;  // of each process
  };

  explicit Cast(Options options) : options_(std::move(options)) {}

  // Starts the coordinating server; the others once it listens, see `Listening`.
  Status StartCoordinator();
  // The coordinator's address, once it listens; "" until then.
  std::string Listening();
  Status StartOtherServers();
  Status StartWorker(const std::string& name);

  Status Kill(const std::string& name);    // SIGKILL; from here on it ought to end so
  Status Freeze(const std::string& name);  // SIGSTOP
  Status Thaw(const std::string& name);    // SIGCONT
  Status Drain(const std::string& name);   // SIGTERM; it ought to leave with exit 0

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

  std::string records_path() const { return options_.folder + "/records.jsonl"; }
  std::string report_path() const { return options_.folder + "/report.json"; }

 private:
  struct Player {
    std::string name;
    Process process;
    pid_t pid;
    Process::Exit expected;
    bool may_end_early = false;
  };

  Status Start(const std::string& name, std::vector<std::string> argv);
  Player* Find(const std::string& name);
  Status Signal(const std::string& name, int signal);
  std::string LogPath(const std::string& name) const { return options_.folder + "/" + name + ".log"; }
  std::string AddressPath() const { return options_.folder + "/address"; }

  const Options options_;
  std::string address_;
  std::vector<Player> players_;
};

}  // namespace everstep::ctl
