// A proof: an acceptance check that runs the built programs as real processes, measures, and says whether the promise
// was kept. Its figures are one JSON object. docs/testing.md says for each what it shows and what would break it.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/cluster.h"

namespace everstep::test {

struct ProofContext {
  bool quick = false;  // fewer repetitions
  uint64_t seed = 1;
  std::string source;   // the repository, for proofs that build something
  std::string build;    // the build folder that holds bin/
  std::string control;  // what is done wrong on purpose, see Control; empty: nothing

  bool Plants(const char* name) const { return control == name; }
};

// A fault that is planted to see that a proof can fail.
struct Control {
  const char* name;
  const char* does;    // one line
  const char* breaks;  // part of what the proof must then say
};

struct Proof {
  const char* name;
  const char* shows;  // one line
  bool quick;         // part of `--quick`
  // Fills `figures`; the error says what was not kept.
  Status (*run)(const ProofContext& context, json* figures);
  std::span<const Control> controls = {};
};

Status ProveKillWorker(const ProofContext& context, json* figures);
Status ProveSameMaths(const ProofContext& context, json* figures);
Status ProveJoin(const ProofContext& context, json* figures);
Status ProveShapes(const ProofContext& context, json* figures);
Status ProveRefusals(const ProofContext& context, json* figures);
Status ProveCheckpointStall(const ProofContext& context, json* figures);
Status ProveTornCheckpoints(const ProofContext& context, json* figures);
Status ProveNToM(const ProofContext& context, json* figures);
Status ProveServerLoss(const ProofContext& context, json* figures);
Status ProveKillAnyone(const ProofContext& context, json* figures);
Status ProveKillShm(const ProofContext& context, json* figures);
Status ProveReshard(const ProofContext& context, json* figures);
Status ProveEtcd(const ProofContext& context, json* figures);
Status ProveWorkerApi(const ProofContext& context, json* figures);

// A promise that was not kept.
inline Status Broken(const std::string& what) { return {Code::kFailed, what}; }

}  // namespace everstep::test
