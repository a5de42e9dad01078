// CORE. Whom a seal holds, and when: the step policies. Pure functions of what the coordinator knows; the protocol
// around them is the same for every mode (docs/protocol.md).
//
//   sync   all live members that were given work for this step; with `quorum` < 1 a share of them, after `grace`
//   ssp    one whole contribution at a time; a member may be at most `staleness` contributions ahead of the slowest
//   async  one whole contribution at a time, weighted (1 + staleness)^-power
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "schema/messages.h"

namespace everstep {

// One contribution that the current step could hold.
struct Candidate {
  Contribution contribution;
  bool whole = false;  // staged on the primaries of all chunks
  bool live = false;   // its worker is a member now
  Time whole_at;
};

struct SealView {
  Time now;
  Version step;
  size_t ready_members = 0;
  size_t granted = 0;                 // members that were given work for this step (sync)
  size_t refused = 0;                 // contributions to this step that were refused: they count as made (sync)
  std::vector<Candidate> candidates;  // refused and void ones left out
};

struct SealDecision {
  std::vector<size_t> chosen;    // positions in view.candidates; empty: not now
  bool paused = false;           // not now, because there are fewer than min_workers
  Time recheck = Time::Never();  // when time alone may change the answer
};

SealDecision DecideSeal(const JobSpec& job, const SealView& view);

// The weights of a seal, in the order of its contributors. sync: samples / all samples (equal shares for jobs without a
// dataset), so that the update is the gradient of the mean over the step's samples whoever computed it (promise P5).
std::vector<double> SealWeights(const JobSpec& job, Version step, const std::vector<Contribution>& contributors);

// The order of summation: by the first leased position, then by worker. Never by arrival (promise P5).
void SortContributors(std::vector<Contribution>* contributors);

// ssp: whether a member whose clock is `clock` may start another contribution while the slowest is at `slowest`.
inline bool MayRunAhead(const JobSpec& job, uint64_t clock, uint64_t slowest) {
  return job.mode != Mode::kSsp || clock <= slowest + job.staleness;
}

// Splits `total` samples over `members` as evenly as possible: the share of member i of them.
inline uint64_t Share(uint64_t total, size_t members, size_t i) {
  const auto part = [&](uint64_t k) {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(total) * k / members);
  };
  return part(i + 1) - part(i);
}

}  // namespace everstep
