// CORE. What `everstep demo` does to a running job, and when: each act at a fraction of the job's steps, and never
// before the effect of the one ahead of it has been seen in the job's status. Pure: fed with time and status, it
// answers with acts; the demo's command performs them.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "ctl/json.h"

namespace everstep::ctl {

// kThaw is the second half of a freeze.
enum class Act { kKill, kJoin, kFreeze, kThaw, kDrain };

// "kill", "join", "freeze", "thaw" or "drain".
const char* Name(Act act);

// What the target is. Of a coordinator the plan names nobody: it is who coordinates when the time has come.
enum class Role { kWorker, kServer, kCoordinator };

// "worker", "server" or "coordinator".
const char* Name(Role role);

struct PlannedAct {
  double at = 0;  // fraction of the job's steps
  Act act = Act::kKill;
  std::string target;
  Role role = Role::kWorker;
};

// What was done to whom. Times are on the steady clock, as in the reports of the servers of this host.
struct DoneAct {
  Act act = Act::kKill;
  std::string target;
  double at_ms = 0;
  double thawed_at_ms = 0;  // of a freeze
  Role role = Role::kWorker;
  double whole_at_ms = 0;  // servers: the effect was seen, and two copies of everything exist
};

class DemoScript {
 public:
  // `freeze`: how long a frozen worker sleeps.
  DemoScript(std::vector<PlannedAct> plan, Duration freeze) : plan_(std::move(plan)), freeze_(freeze) {}

  struct Cue {
    Act act;
    std::string target;
    Role role = Role::kWorker;
  };
  // What is to be done now, given the status of docs/reports.md; it is taken as done at `now`. Its `events` must be
  // those of all coordinators so far.
  std::optional<Cue> Next(Time now, const json& status);

  // Every act is done and its effect was seen.
  bool Complete() const { return next_ == plan_.size() && !waiting_; }
  // What it waits for, for people: "worker w2 to be reported lost".
  std::string WaitsFor() const;
  // Without the thaws, which are in their freezes.
  const std::vector<DoneAct>& done() const { return done_; }

 private:
  bool EffectSeen(const json& status) const;
  bool ServersWhole(const json& status) const;

  const std::vector<PlannedAct> plan_;
  const Duration freeze_;
  size_t next_ = 0;       // of the plan
  bool waiting_ = false;  // for the effect of done_.back()
  std::vector<DoneAct> done_;
  uint64_t full_bytes_ = 0;  // that the servers held when the job began, in as many copies as it keeps
};

// When an event of one of these kinds about `target` (about anything, if that is empty) was first reported at or after
// `after_ms`; events as in a status or a report.
std::optional<double> FirstEvent(const json& events, const std::vector<std::string>& kinds, const std::string& target,
                                 double after_ms);

// The kinds by which the coordinator tells that it has noticed an act; of its own death, the next one.
std::vector<std::string> KindsOf(Act act, Role role = Role::kWorker);

// When it told.
std::optional<double> Noticed(const json& events, const DoneAct& act);

}  // namespace everstep::ctl
