// Which server holds which chunk: an immutable value with a ballot. A change is a new map with a higher ballot.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "schema/ids.h"
#include "schema/parameter_spec.h"

namespace everstep {

struct ServerEntry {
  ServerId id;
  Incarnation incarnation;
  std::string address;

  friend bool operator==(const ServerEntry&, const ServerEntry&) = default;
};

struct ShardMap {
  Ballot ballot;
  uint64_t spec_hash = 0;
  uint64_t chunk_bytes = 0;
  std::vector<ServerEntry> servers;
  // For each chunk the indexes into `servers` that hold it: the primary first, then its backups. Never empty.
  std::vector<std::vector<uint32_t>> replicas;

  const ServerEntry& primary(ChunkId chunk) const { return servers[replicas[chunk.value][0]]; }
  bool IsPrimary(ServerId server, ChunkId chunk) const { return primary(chunk).id == server; }
  bool Holds(ServerId server, ChunkId chunk) const;
  const ServerEntry* Find(ServerId server) const;
  // Chunks that the server is primary of, or (all) holds at all, ascending.
  std::vector<ChunkId> PrimaryChunks(ServerId server) const;
  std::vector<ChunkId> HeldChunks(ServerId server) const;
  // True when one server is all there is: the step's phases may collapse.
  bool single() const { return servers.size() == 1; }

  friend bool operator==(const ShardMap&, const ShardMap&) = default;
};

// Indexes in range, no server twice in a chunk, unique server ids, chunk count as in the layout.
Status Validate(const ShardMap& map, const ChunkLayout& layout);

// The map without these servers; of each of their chunks the next holder becomes the primary. Nothing when a chunk
// would have no holder left.
std::optional<ShardMap> WithoutServers(const ShardMap& map, const std::set<ServerId>& gone);

// The first map: chunks dealt out in contiguous runs balanced by bytes, each with `replication` copies on different
// servers. Servers may be more than chunks; then some hold nothing. REQUIRES: 1 <= replication <= servers.size().
ShardMap InitialMap(Ballot ballot, const ChunkLayout& layout, uint64_t chunk_bytes, std::vector<ServerEntry> servers,
                    uint32_t replication);

}  // namespace everstep
