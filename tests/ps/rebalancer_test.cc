// Where chunks go when servers come, go and die: enough copies, few bytes, balance, an end. Random jobs print their
// seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/random.h"
#include "ps/rebalancer.h"
#include "tests/support/seed.h"

namespace everstep {
namespace {

constexpr uint64_t kChunkBytes = 1024;
constexpr uint64_t kNoBound = UINT64_MAX;

std::shared_ptr<const ChunkLayout> LayoutOf(uint64_t floats) {
  const ParameterSpec spec{{{"w", {static_cast<int64_t>(floats)}, DType::kFloat32, Role::kTrainable}}};
  return ChunkLayout::Make(spec, kChunkBytes);
}

std::vector<ServerEntry> Servers(uint32_t count, uint32_t first = 0) {
  std::vector<ServerEntry> servers;
  for (uint32_t i = first; i < first + count; ++i) servers.push_back({{i}, {100 + i}, "tcp://ps" + std::to_string(i)});
  return servers;
}

std::map<ServerId, uint64_t> Loads(const ShardMap& map, const ChunkLayout& layout, bool primaries = false) {
  std::map<ServerId, uint64_t> loads;
  for (const ServerEntry& server : map.servers) loads[server.id] = 0;
  for (uint32_t i = 0; i < map.replicas.size(); ++i) {
    for (uint32_t index : map.replicas[i]) {
      loads[map.servers[index].id] += layout.chunk({i}).bytes;
      if (primaries) break;
    }
  }
  return loads;
}

// Each copy is made from a holder to a server that lacks the chunk, and the map afterwards gives nobody a chunk that it
// neither held nor was copied.
void CheckPlan(const ShardMap& before, const MovePlan& plan, const ChunkLayout& layout) {
  ASSERT_TRUE(Validate(plan.next, layout).ok());
  std::set<std::pair<ChunkId, ServerId>> copied;
  uint64_t bytes = 0;
  for (const ChunkCopy& copy : plan.copies) {
    ASSERT_TRUE(before.Holds(copy.from, copy.chunk));
    ASSERT_FALSE(before.Holds(copy.to, copy.chunk));
    ASSERT_TRUE(copied.insert({copy.chunk, copy.to}).second);
    bytes += layout.chunk(copy.chunk).bytes;
  }
  ASSERT_EQ(bytes, plan.bytes);
  for (uint32_t i = 0; i < plan.next.replicas.size(); ++i) {
    for (uint32_t index : plan.next.replicas[i]) {
      const ServerId id = plan.next.servers[index].id;
      ASSERT_TRUE(before.Holds(id, {i}) || copied.contains({{i}, id}));
    }
  }
}

// Carries out plans until there are none; returns the bytes moved.
uint64_t Settle(ShardMap* map, const ChunkLayout& layout, const std::vector<ServerEntry>& servers,
                const std::set<ServerId>& draining, uint32_t replicas, uint64_t max_bytes) {
  uint64_t moved = 0;
  for (int round = 0; round < 10'000; ++round) {
    const auto plan = PlanMove(*map, layout, servers, draining, replicas, max_bytes);
    if (!plan) return moved;
    CheckPlan(*map, *plan, layout);
    if (testing::Test::HasFatalFailure()) return moved;
    EXPECT_TRUE(plan->bytes <= max_bytes || plan->copies.size() == 1);
    moved += plan->bytes;
    *map = plan->next;
  }
  ADD_FAILURE() << "it never ends";
  return moved;
}

void ExpectBalanced(const ShardMap& map, const ChunkLayout& layout, size_t servers) {
  uint64_t low = UINT64_MAX, high = 0;
  for (const auto& [id, bytes] : Loads(map, layout)) {
    low = std::min(low, bytes);
    high = std::max(high, bytes);
  }
  EXPECT_EQ(map.servers.size(), servers);
  EXPECT_LT(high - low, 2 * kChunkBytes + 1);
}

TEST(Rebalancer, AFirstMapNeedsNothing) {
  const auto layout = LayoutOf(256 * 30);
  const auto servers = Servers(3);
  const ShardMap map = InitialMap({1}, *layout, kChunkBytes, servers, 2);
  EXPECT_FALSE(PlanMove(map, *layout, servers, {}, 2, kNoBound));
}

TEST(Rebalancer, ANewServerGetsItsShareAndNoMore) {
  const auto layout = LayoutOf(256 * 120);
  ShardMap map = InitialMap({1}, *layout, kChunkBytes, Servers(3), 2);
  const uint64_t moved = Settle(&map, *layout, Servers(4), {}, 2, 8 * kChunkBytes);
  const uint64_t least = layout->total_bytes() * 2 / 4;
  EXPECT_LE(moved, least + least / 10);
  ExpectBalanced(map, *layout, 4);
  const auto primaries = Loads(map, *layout, true);
  for (const auto& [id, bytes] : primaries)
    EXPECT_NEAR(static_cast<double>(bytes), 30.0 * kChunkBytes, 3.0 * kChunkBytes);
}

TEST(Rebalancer, ADrainedServerGivesWhatItHoldsAndLittleElseMoves) {
  const auto layout = LayoutOf(256 * 60);
  ShardMap map = InitialMap({1}, *layout, kChunkBytes, Servers(4), 2);
  const uint64_t held = Loads(map, *layout)[{1}];
  const uint64_t moved = Settle(&map, *layout, Servers(4), {{1}}, 2, 4 * kChunkBytes);
  EXPECT_GE(moved, held);
  EXPECT_LE(moved, held + held / 10);
  EXPECT_EQ(map.Find({1}), nullptr);
  ExpectBalanced(map, *layout, 3);
}

TEST(Rebalancer, TheOnlyHolderGivesTwoCopiesAtOnceWhenItIsDrained) {
  const auto layout = LayoutOf(256 * 12);
  const ShardMap map = InitialMap({1}, *layout, kChunkBytes, Servers(1), 1);
  const auto plan = PlanMove(map, *layout, Servers(3), {{0}}, 2, kNoBound);
  ASSERT_TRUE(plan);
  CheckPlan(map, *plan, *layout);
  EXPECT_EQ(plan->next.servers.size(), 2u);
  for (const auto& holders : plan->next.replicas) EXPECT_EQ(holders.size(), 2u);
}

TEST(Rebalancer, WithOneCopyADrainWorksToo) {
  const auto layout = LayoutOf(256 * 12);
  ShardMap map = InitialMap({1}, *layout, kChunkBytes, Servers(2), 1);
  Settle(&map, *layout, Servers(2), {{0}}, 1, kChunkBytes);
  EXPECT_EQ(map.servers.size(), 1u);
  EXPECT_TRUE(map.single());
}

TEST(Rebalancer, LostCopiesAreMadeAgain) {
  const auto layout = LayoutOf(256 * 60);
  ShardMap map = InitialMap({1}, *layout, kChunkBytes, Servers(3), 2);
  const uint64_t lost = Loads(map, *layout)[{2}];
  map = *WithoutServers(map, {{2}});
  const std::vector<ServerEntry> left = {Servers(3)[0], Servers(3)[1]};
  EXPECT_EQ(Settle(&map, *layout, left, {}, 2, 4 * kChunkBytes), lost);
  for (const auto& holders : map.replicas) EXPECT_EQ(holders.size(), 2u);
}

TEST(Rebalancer, AnUnreachableServerKeepsWhatItHolds) {
  const auto layout = LayoutOf(256 * 30);
  const ShardMap map = InitialMap({1}, *layout, kChunkBytes, Servers(3), 2);
  const std::vector<ServerEntry> reachable = {Servers(3)[0], Servers(3)[1]};
  EXPECT_FALSE(PlanMove(map, *layout, reachable, {}, 2, kNoBound));
}

TEST(Rebalancer, NoCopyIsGivenUpWhileAnotherCannotBeReached) {
  const auto layout = LayoutOf(256 * 30);
  const ShardMap map = InitialMap({1}, *layout, kChunkBytes, Servers(2), 2);
  EXPECT_FALSE(PlanMove(map, *layout, {Servers(2)[1]}, {}, 1, kNoBound));
  const auto plan = PlanMove(map, *layout, Servers(2), {}, 1, kNoBound);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->bytes, 0u);
  for (const auto& holders : plan->next.replicas) EXPECT_EQ(holders.size(), 1u);
}

TEST(Rebalancer, MoreServersThanChunksIsFine) {
  const auto layout = LayoutOf(100);
  ShardMap map = InitialMap({1}, *layout, kChunkBytes, Servers(1), 1);
  Settle(&map, *layout, Servers(4), {}, 2, kNoBound);
  EXPECT_EQ(map.replicas[0].size(), 2u);
  EXPECT_EQ(map.servers.size(), 2u);
}

TEST(Rebalancer, RandomComingsAndGoings) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  for (int run = 0; run < 30; ++run) {
    const auto layout = LayoutOf(1 + random.Below(256 * 80));
    const auto replicas = static_cast<uint32_t>(1 + random.Below(3));
    std::vector<ServerEntry> servers = Servers(static_cast<uint32_t>(replicas + random.Below(3)));
    ShardMap map = InitialMap({1}, *layout, kChunkBytes, servers, replicas);
    uint32_t next = 50;
    for (int change = 0; change < 8; ++change) {
      std::set<ServerId> draining;
      const uint64_t kind = random.Below(3);
      if (kind == 0 || servers.size() < 2) {
        servers.push_back(Servers(1, next++)[0]);
      } else {
        const size_t index = random.Below(servers.size());
        const ServerId id = servers[index].id;
        if (kind == 1) {
          draining.insert(id);
        } else if (const auto rest = WithoutServers(map, {id})) {
          map = *rest;
          servers.erase(servers.begin() + static_cast<long>(index));
        }
      }
      const uint64_t bound = random.Chance(0.5) ? kNoBound : (1 + random.Below(6)) * kChunkBytes;
      Settle(&map, *layout, servers, draining, replicas, bound);
      if (HasFailure()) return;
      std::erase_if(servers, [&](const ServerEntry& s) { return draining.contains(s.id); });
      const size_t copies = std::min<size_t>(replicas, servers.size());
      for (const auto& holders : map.replicas) ASSERT_EQ(holders.size(), copies);
      for (ServerId id : draining) ASSERT_EQ(map.Find(id), nullptr);
      uint64_t low = UINT64_MAX, high = 0;
      auto loads = Loads(map, *layout);
      for (const ServerEntry& server : servers) {
        low = std::min(low, loads[server.id]);
        high = std::max(high, loads[server.id]);
      }
      ASSERT_LE(high - low, 2 * kChunkBytes);
    }
  }
}

}  // namespace
}  // namespace everstep
