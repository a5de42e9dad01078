// A child process: started, signalled, waited for with a deadline, and never left behind. POSIX (Linux).
//
//   Process::Options options;
//   options.output_path = folder + "/ps.log";
//   EVERSTEP_ASSIGN(Process server, Process::Start({program, "--listen", "tcp://127.0.0.1:0"}, options));
//   ...
//   (void)server.Signal(SIGTERM);
//   EVERSTEP_ASSIGN(const Process::Exit exit, server.Wait(std::chrono::seconds(10)));
//
// The child leads a process group of its own, so that a terminal's Ctrl-C reaches only us and a kill reaches all that
// it started. It is killed by the kernel when the thread that started it ends: start children from a thread that
// outlives them. One thread at a time uses a Process.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace everstep {

class Process {
 public:
  struct Options {
    // Files that are created or emptied; "": as ours. The same path twice is one stream. Standard input is empty.
    std::string output_path;
    std::string error_path;
    // "NAME=value": added to our own environment, or in place of what is there.
    std::vector<std::string> environment;
    std::string folder;  // working directory; "": ours
    bool own_group = true;
    bool dies_with_parent = true;  // SIGKILL when the starting thread is gone
  };

  // How a process ended.
  struct Exit {
    int code = 0;  // when signal is 0
    int signal = 0;

    bool ok() const { return code == 0 && signal == 0; }
    std::string ToString() const;  // "exit 3", "signal 9"
    friend bool operator==(const Exit&, const Exit&) = default;
  };

  // `argv[0]` is a path, or a name that PATH knows. kNotFound when there is no such program, kInvalidArgument when a
  // path of the options cannot be opened, kUnavailable when the system has no process left.
  static Result<Process> Start(const std::vector<std::string>& argv, const Options& options);

  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  // Kills (the whole group, if it has one) when it has not been seen to end.
  ~Process();

  pid_t pid() const { return pid_; }
  // For messages: the program's file name.
  const std::string& name() const { return name_; }

  // kUnavailable when it has ended. SIGSTOP and SIGCONT too; a stopped child counts as running.
  Status Signal(int signal);

  // How it ended; nothing while it runs.
  std::optional<Exit> Poll();
  // Waits for its end; kDeadlineExceeded when it still runs after `patience`.
  Result<Exit> Wait(Duration patience);
  // Kills the group and waits. How it ended, which may have been before.
  Exit Kill();

 private:
  Process(pid_t pid, int pid_fd, bool own_group, std::string name)
      : pid_(pid), pid_fd_(pid_fd), own_group_(own_group), name_(std::move(name)) {}
  void Forget();

  pid_t pid_ = -1;   // -1: moved from
  int pid_fd_ = -1;  // readable at the end; -1 where the kernel has no such thing
  bool own_group_ = false;
  std::string name_;
  std::optional<Exit> exit_;
};

// The folder of the running program, where its siblings lie.
Result<std::string> ProgramFolder();

}  // namespace everstep
