// A small job that saves checkpoints, for tests and proofs of them: a perceptron trained by two workers, "a" and "b",
// with Adam and a schedule, so that parameters, optimizer state and schedule all matter to how it goes on.
#pragma once

#include <map>
#include <string>

#include "checkpoint/loader.h"
#include "tests/support/cluster.h"

namespace everstep::test {

// The later of two flags of one name holds.
Flags With(Flags flags, const Flags& more);

// What all jobs here have in common.
extern const Flags kSavedJob;

// Servers that share `folder` for their checkpoints, with the job of kSavedJob and `more`. Returns when all listen.
Status StartSaving(Cluster& cluster, size_t servers, const std::string& folder, const Flags& more);
// Each leaves its last parameters in NAME.bin.
Status StartSavedWorkers(Cluster& cluster, const Flags& more = {});
// SIGKILL to servers and workers.
void KillSaved(Cluster& cluster, size_t servers);

Result<FoundCheckpoint> FindSaved(const std::string& folder);
// Every byte of a checkpoint's arrays, in the order of the flat index space.
Result<std::map<std::string, std::string>> ArraysOf(Checkpoint& checkpoint);

}  // namespace everstep::test
