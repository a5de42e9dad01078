// Strong ids of the protocol. One word, one meaning (docs/architecture.md has the glossary).
#pragma once

#include <cstdint>
#include <string>

#include "base/strong_id.h"

namespace everstep {

// A job's identity: drawn by the first server when the job starts; a reused name is another job.
using JobUid = StrongId<struct JobUidTag, uint64_t>;

// One life of a worker process (an incarnation): drawn at random by the worker for each join. Contributions, slots and
// fences go by it; names are for people.
using WorkerId = StrongId<struct WorkerIdTag, uint64_t>;

// A server: position of joining (0 is the first) in `value`; its incarnation is beside it in the shard map.
using ServerId = StrongId<struct ServerIdTag, uint32_t>;
using Incarnation = StrongId<struct IncarnationTag, uint64_t>;

// (term, map epoch) as one totally ordered number (reference: step protocol). 0 = none yet.
using Ballot = StrongId<struct BallotTag, uint64_t>;

// Parameters after so many committed steps; version 0 = not initialised, version 1 = the initial values.
// Step s leads from version s to s + 1: step 0 is the initialisation, training steps count from 1.
using Version = StrongId<struct VersionTag, uint64_t>;

// Position of a chunk in the flat index space.
using ChunkId = StrongId<struct ChunkIdTag, uint32_t>;

using LeaseId = StrongId<struct LeaseIdTag, uint64_t>;

// Chained checksum of the committed seals: names a version's history. Equal digests, equal parameters.
using Digest = StrongId<struct DigestTag, uint64_t>;

inline Version Next(Version v) { return {v.value + 1}; }

// Ids of lives are shown short, in hex: enough to tell them apart in a log.
std::string Short(WorkerId id);

}  // namespace everstep
