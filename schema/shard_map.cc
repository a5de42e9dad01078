#include "schema/shard_map.h"

#include <algorithm>
#include <set>

#include "base/limits.h"

namespace everstep {

bool ShardMap::Holds(ServerId server, ChunkId chunk) const {
  const auto& holders = replicas[chunk.value];
  return std::any_of(holders.begin(), holders.end(), [&](uint32_t index) { return servers[index].id == server; });
}

const ServerEntry* ShardMap::Find(ServerId server) const {
  for (const ServerEntry& entry : servers) {
    if (entry.id == server) return &entry;
  }
  return nullptr;
}

std::vector<ChunkId> ShardMap::PrimaryChunks(ServerId server) const {
  std::vector<ChunkId> chunks;
  for (uint32_t i = 0; i < replicas.size(); ++i) {
    if (IsPrimary(server, {i})) chunks.push_back({i});
  }
  return chunks;
}

std::vector<ChunkId> ShardMap::HeldChunks(ServerId server) const {
  std::vector<ChunkId> chunks;
  for (uint32_t i = 0; i < replicas.size(); ++i) {
    if (Holds(server, {i})) chunks.push_back({i});
  }
  return chunks;
}

Status Validate(const ShardMap& map, const ChunkLayout& layout) {
  const auto bad = [](std::string what) { return Status(Code::kCorrupt, "shard map: " + std::move(what)); };
  if (map.servers.empty() || map.servers.size() > limits::kMaxServers) return bad("bad number of servers");
  std::set<ServerId> ids;
  for (const ServerEntry& server : map.servers) {
    if (!ids.insert(server.id).second) return bad("server " + ToString(server.id) + " is named twice");
  }
  if (map.replicas.size() != layout.size()) return bad("another number of chunks than the model has");
  for (const auto& holders : map.replicas) {
    if (holders.empty()) return bad("a chunk without a server");
    std::set<uint32_t> seen;
    for (uint32_t index : holders) {
      if (index >= map.servers.size() || !seen.insert(index).second) return bad("a chunk with an impossible server");
    }
  }
  return Status::Ok();
}

std::optional<ShardMap> WithoutServers(const ShardMap& map, const std::set<ServerId>& gone) {
  ShardMap next{map.ballot, map.spec_hash, map.chunk_bytes, {}, {}};
  std::vector<uint32_t> index(map.servers.size());
  for (size_t i = 0; i < map.servers.size(); ++i) {
    index[i] = static_cast<uint32_t>(next.servers.size());
    if (!gone.contains(map.servers[i].id)) next.servers.push_back(map.servers[i]);
  }
  if (next.servers.empty()) return std::nullopt;
  for (const auto& holders : map.replicas) {
    auto& left = next.replicas.emplace_back();
    for (uint32_t holder : holders) {
      if (!gone.contains(map.servers[holder].id)) left.push_back(index[holder]);
    }
    if (left.empty()) return std::nullopt;
  }
  return next;
}

ShardMap InitialMap(Ballot ballot, const ChunkLayout& layout, uint64_t chunk_bytes, std::vector<ServerEntry> servers,
                    uint32_t replication) {
  EVERSTEP_CHECK(!servers.empty() && replication >= 1 && replication <= servers.size(), "impossible replication");
  ShardMap map{ballot, layout.spec().hash(), chunk_bytes, std::move(servers), {}};
  const uint64_t total = std::max<uint64_t>(layout.total_bytes(), 1);
  const auto count = static_cast<uint32_t>(map.servers.size());
  uint64_t before = 0;
  for (const Chunk& chunk : layout.chunks()) {
    // The server whose equal share of all bytes this chunk's middle falls into.
    const uint64_t middle = before + chunk.bytes / 2;
    const auto primary =
        std::min(count - 1, static_cast<uint32_t>(static_cast<unsigned __int128>(middle) * count / total));
    std::vector<uint32_t> holders;
    for (uint32_t i = 0; i < replication; ++i) holders.push_back((primary + i) % count);
    map.replicas.push_back(std::move(holders));
    before += chunk.bytes;
  }
  return map;
}

}  // namespace everstep
