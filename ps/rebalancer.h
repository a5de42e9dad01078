// PURE. Where chunks should be, and which ones to copy next to bring them there. One function for every change of the
// set of servers: a copy that was lost is made again, a new server gets its share, a draining one is emptied.
//
// As few bytes as possible are moved: a chunk is copied only when it has too few copies, when a holder is draining, or
// when that brings the fullest and the emptiest server closer together. Sizes are bytes, not chunks.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "schema/shard_map.h"

namespace everstep {

struct ChunkCopy {
  ChunkId chunk;
  ServerId from;  // holds it
  ServerId to;

  friend bool operator==(const ChunkCopy&, const ChunkCopy&) = default;
};

struct MovePlan {
  std::vector<ChunkCopy> copies;  // to be made first; may be empty when only the order of holders changes
  uint64_t bytes = 0;             // of them
  ShardMap next;                  // in force afterwards; its ballot is the caller's to set
};

// The next move, or nothing when everything is where it should be. `servers`: those that can be reached, whether in the
// map or not. Draining ones are emptied as far as the others can take their chunks. Each chunk shall have `replicas`
// copies, or as many as there are servers to hold them. One plan copies at most `max_bytes`, or a single chunk.
std::optional<MovePlan> PlanMove(const ShardMap& map, const ChunkLayout& layout,
                                 const std::vector<ServerEntry>& servers, const std::set<ServerId>& draining,
                                 uint32_t replicas, uint64_t max_bytes);

}  // namespace everstep
