#include "tests/sim/plants.h"

#include <algorithm>
#include <string>

#include "base/plant.h"

namespace everstep {
namespace sim {
namespace {

std::string g_active;  // set before anything runs

// The bug shows wherever it is looked for.
constexpr Ambush kAny = Ambush::kNone;

constexpr Plant kPlants[] = {
    {"no-promise", "T3", "P6", kAny, "a replica does not remember what it promised and obeys any coordinator"},
    {"accept-stale", "", "P6", kAny, "a contribution that was computed on an old version is taken"},
    {"slot-by-name", "T16", "P1", kAny, "chunks of two contributions of one worker to one step share a slot"},
    {"staged-early", "", "P1", kAny, "a server announces a contribution when its first chunk is there"},
    {"sum-what-is-here", "", "P1", kAny, "a server sums the contributions that it has, whatever the seal names"},
    {"arrival-order", "", "P5", kAny, "contributions are summed in the order of their arrival"},
    {"let-nan-in", "", "P9", kAny, "a sum with NaN or Inf is prepared like any other"},
    {"commit-by-step", "T6", "P1", kAny, "a COMMIT applies whatever is prepared, without a look at the digest"},
    {"keep-slots", "", "P7", kAny, "contributions whose step is over stay in the server's memory"},
    {"lease-check", "T15", "P4", kAny, "samples are lent and sealed without a look at what is lent and consumed"},
    {"ignore-minimum", "", "minimum", kAny, "steps go on with fewer members than the job's minimum"},
    {"seal-early", "", "P5", kAny, "a step is sealed with its first whole contribution"},
    {"decide-early", "", "P1", kAny, "a recovered coordinator decides on the first answer"},
    {"never-roll-forward", "", "P2", kAny, "a recovered coordinator drops a step that all servers hold prepared"},
    {"prepared-any-seal", "T7", "P1", kAny, "PREPARED of another seal of the step counts"},
    {"whole-on-first-shard", "", "P1", kAny, "a contribution counts as whole when one server has its part"},
    {"seal-the-fenced", "", "P6", kAny, "contributions of excluded workers are sealed"},
    {"commit-on-first-prepared", "", "P1", kAny, "the first PREPARED decides the step"},
    {"mix-versions", "", "P10", kAny, "a worker takes chunks of different versions for one"},
    {"fence-on-join", "", "P3", kAny, "a join makes everybody else start again"},
    {"never-retransmit", "", "P7", kAny, "the coordinator says everything once"},
    {"messages-put-off-ticks", "", "P7", kAny, "the coordinator's timers start anew with each message"},
    {"stay-in-office", "", "P6", kAny, "a coordinator that lost the record goes on"},
    {"fail-out-of-office", "", "P6", kAny, "a coordinator that lost the record ends the job"},
    {"late-duplicate", "", "P7", kAny, "a contribution that comes once more after its step is staged again"},
    {"trust-the-sender", "", "P8", kAny, "a server takes chunks of any size"},
    {"prepared-early", "T5", "P1", Ambush::kPublisherDies,
     "a server is prepared although sums of chunks that it backs up are missing"},
    {"old-sums", "T3b", "P1", Ambush::kTornSeal, "a backup takes sums of other seals of the step"},
    {"copy-without-state", "", "P1", kAny, "a server that is given a chunk does not take over its optimizer's state"},
    {"keep-departed", "", "P7", Ambush::kWorkerAndServer,
     "samples of contributions that a lost server makes incomplete are never lent again"},
    {"forget-the-receiver", "", "P7", Ambush::kReceiverDies,
     "a server that dies while the map with it is being written is forgotten"},
    {"believe-in-copies", "", "P7", Ambush::kTwoSilences,
     "a server is given up for a copy on one that nobody has heard of"},
    {"one-survivor-is-enough", "T1", "P1", Ambush::kTornSeal,
     "a seal that one of the servers holds prepared is rolled forward"},
    {"any-record-counts", "T2", "P1", Ambush::kTornSeal,
     "prepared records of different seals of the step are rolled forward"},
    {"map-without-record", "T4", "P1", Ambush::kNone,
     "a lost server is taken out of the map without asking the record"},
    {"restart-unnoticed", "T8", "P2", Ambush::kQuickRestart,
     "a server that is started again, empty, is taken for its earlier life"},
    {"drop-is-final", "T9", "P1", Ambush::kTornSeal, "the contributions of a dropped seal are declared void"},
    {"rolled-forward-anew", "T10", "P1", Ambush::kPublisherDies, "a seal that is rolled forward gets a new id"},
    {"staged-at-any-ballot", "T11", "P7", Ambush::kWorkerAndServer, "what was staged at an earlier ballot counts"},
    {"slots-announced-once", "T12", "P7", Ambush::kNone, "contributions that servers hold are not announced anew"},
    {"collapse-degraded", "T13", "P1", Ambush::kNone,
     "one message seals and commits as soon as some chunk has a single copy"},
    {"add-mid-step", "T14", "P2", Ambush::kLateCommit, "a server is filled while a commit is not confirmed by all"},
    {"file-not-synced", "", "P2", kAny, "a checkpoint's file gets its name before its contents are durable", true},
    {"folder-not-synced", "", "P2", kAny, "the names of a checkpoint's files are not made durable", true},
    {"believe-manifests", "", "P2", kAny, "a manifest is believed without a look at the files", true},
    {"resume-without-ledger", "", "P4", kAny, "a job that resumes forgets which samples are consumed", true},
    {"resume-without-state", "", "P1", kAny, "a job that resumes forgets the optimizer's state", true},
    {"save-what-is-here", "", "P2", kAny, "a server saves the version it has, whichever was asked for", true},
    {"early-staged-is-lost", "", "P7", kAny, "what is announced while a ballot waits for its last promise is forgotten",
     false, true},
    {"dropped-pull-is-lost", "", "P7", kAny,
     "a worker does not ask again where its pull was dropped with the server's old map", false, true},
    {"equal-weights", "", "P5", kAny, "contributions count the same, however many samples they are made of"},
};

}  // namespace

std::span<const Plant> Plants() { return kPlants; }

const Plant* FindPlant(std::string_view name) {
  const auto it = std::find_if(std::begin(kPlants), std::end(kPlants), [&](const Plant& p) { return p.name == name; });
  return it == std::end(kPlants) ? nullptr : it;
}

void SetPlant(std::string_view name) { g_active = name; }
std::string_view ActivePlant() { return g_active; }

}  // namespace sim

bool plant::On(std::string_view name) { return !sim::g_active.empty() && sim::g_active == name; }

}  // namespace everstep
