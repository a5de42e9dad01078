// What the bench's own binary does when it is started as a child: `everstep-bench-step --role NAME ...`. Each role runs
// until its control socket says "quit" (bench/step/control.h) and returns an exit code.
#pragma once

#include <cstdint>
#include <string>

namespace everstep::bench {

struct RoleOptions {
  std::string role;     // "worker", "hub" or "spoke"; empty: the bench itself
  std::string control;  // path of the control socket
  std::string address;  // worker: the coordinator's; hub and spoke: "tcp:PORT-FILE" or "unix:PATH"
  uint64_t bytes = 0;   // of the model
  unsigned index = 0;   // of this worker
  unsigned workers = 1;
  std::string sharing = "none";  // worker: "none" (sockets), "copy" (arrays of its own), "zero" (nothing is copied)
};

// A worker of a real job, through the public API: its gradient stands ready, so a step is only Commit and NextStep.
int RunWorkerRole(const RoleOptions& options);

// Plain sockets: the hub takes `bytes` from each spoke and, when it has all, gives each `bytes` back.
int RunHubRole(const RoleOptions& options);
int RunSpokeRole(const RoleOptions& options);

}  // namespace everstep::bench
