// How a seed becomes a job, a model, a cluster and a mix of faults. Everything about a run that is chosen before it
// starts is in here; what goes wrong and when is then up to faults.h.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/random.h"
#include "schema/job.h"
#include "schema/parameter_spec.h"
#include "tests/sim/world.h"

namespace everstep::sim {

enum class Story : uint8_t {
  kCalm,        // no faults; the run is repeated with other arrival times and must give the same bits
  kProcesses,   // processes die, freeze, leave, join; links break; the network itself is in order
  kLossy,       // the same, and messages get lost, doubled, late and out of order
  kTakeover,    // a second coordinator takes office while the first is frozen, and wakes up
  kServerLost,  // a server dies that nobody has a copy of: the job must end with a clear error
  kPowerCuts,   // the power of all servers goes at once, also in the middle of a write: the job resumes from a
                // checkpoint
  kReplicas,    // chunks have copies: servers die, come and go as well, and nothing is lost
};

std::string_view Name(Story story);

// A moment of the protocol in which faults strike, again and again (ambush.h).
enum class Ambush : uint8_t {
  kNone,
  kTornSeal,         // a seal is on some of the servers when the coordinator dies
  kPublisherDies,    // the first server to publish a version dies, and the others have yet to hear of the commit
  kWorkerAndServer,  // a worker dies after its contribution was whole, and a server in the same step
  kQuickRestart,     // a server is back, empty, before anybody has missed it
  kTwoSilences,      // one server is frozen for longer than a lease, another dies meanwhile
  kReceiverDies,     // a server that is given chunks dies while the map with it is being written
  kLateCommit,       // a commit comes late to one server while another joins
};

std::string_view Name(Ambush ambush);

// How often what goes wrong, as weights; 0 = never.
struct FaultMix {
  Duration every{0};  // mean time between two faults; 0 = none
  int crash_worker = 0;
  int crash_in_the_act = 0;  // in the middle of what it sends
  int leave = 0;
  int join = 0;
  int flapper = 0;
  int freeze_worker = 0;
  int freeze_server = 0;
  int freeze_coordinator = 0;
  int break_control = 0;  // worker - coordinator
  int break_bulk = 0;     // worker - server
  int break_server = 0;   // server - coordinator
  int cut_worker = 0;     // partitions: from the coordinator, a server, or everybody
  int cut_server = 0;     // from the coordinator
  int crash_coordinator = 0;
  int takeover = 0;
  int crash_server = 0;
  int join_server = 0;
  int drain_server = 0;
  int cut_power = 0;
  int record_outage = 0;
  int stranger = 0;
};

struct Scenario {
  uint64_t seed = 0;
  Story story = Story::kProcesses;
  JobSpec job;
  ParameterSpec spec;
  uint64_t dataset_size = 0;
  size_t workers = 1;  // at the start
  Network network;
  bool lossy = false;  // messages get lost, doubled, late and out of order
  FaultMix faults;
  Ambush ambush = Ambush::kNone;
  Duration fault_phase{0};
  Duration compute_min{0};  // of one contribution
  Duration compute_max{0};
  double slow_worker = 0;         // chance that a worker takes much longer
  Duration server_work{0};        // longest sum or update
  double poison = 0;              // chance that a contribution holds NaN or Inf
  double abandon = 0;             // chance that the user's code gives a step up
  uint64_t checkpoint_every = 0;  // steps; 0: none are taken
  Duration disk_latency{0};       // longest write
  double disk_failing = 0;        // chance that a step of a write fails
  double disk_damage = 0;         // chance that the newest checkpoint is damaged when the power goes
  Duration record_latency{0};
  double record_unknown = 0;  // chance that a change's answer is lost
};

Scenario MakeScenario(uint64_t seed);
// One line for the trace's head.
std::string Describe(const Scenario& scenario);

}  // namespace everstep::sim
