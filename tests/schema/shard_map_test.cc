#include "schema/shard_map.h"

#include <gtest/gtest.h>

#include <set>

#include "base/random.h"
#include "tests/schema/random_messages.h"
#include "tests/support/seed.h"

namespace everstep {
namespace {

std::vector<ServerEntry> Servers(uint32_t count) {
  std::vector<ServerEntry> servers;
  for (uint32_t i = 0; i < count; ++i) servers.push_back({{10 + i}, {100 + i}, "tcp://s" + std::to_string(i)});
  return servers;
}

std::shared_ptr<const ChunkLayout> LayoutOf(int64_t elements, uint64_t chunk_bytes) {
  return ChunkLayout::Make({{{"w", {elements}, {}, {}}}}, chunk_bytes);
}

TEST(ShardMap, TheInitialMapIsBalancedWithinAChunk) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  for (int i = 0; i < 500; ++i) {
    const uint64_t chunk_bytes = 64 * (1 + random.Below(10));
    const auto layout = ChunkLayout::Make(test::RandomSpec(random, 30), chunk_bytes);
    const auto count = static_cast<uint32_t>(1 + random.Below(9));
    const auto replication = static_cast<uint32_t>(1 + random.Below(count));
    const ShardMap map = InitialMap({7}, *layout, chunk_bytes, Servers(count), replication);
    ASSERT_TRUE(Validate(map, *layout).ok());
    EXPECT_EQ(map.ballot, Ballot{7});
    EXPECT_EQ(map.spec_hash, layout->spec().hash());
    EXPECT_EQ(map.chunk_bytes, chunk_bytes);
    std::vector<uint64_t> bytes(count);
    uint32_t before = 0;
    for (uint32_t c = 0; c < layout->size(); ++c) {
      const auto& holders = map.replicas[c];
      ASSERT_EQ(holders.size(), replication);
      ASSERT_EQ(std::set<uint32_t>(holders.begin(), holders.end()).size(), replication);
      ASSERT_GE(holders[0], before) << "runs are contiguous";
      before = holders[0];
      bytes[holders[0]] += layout->chunk({c}).bytes;
    }
    const double share = static_cast<double>(layout->total_bytes()) / count;
    for (uint64_t mine : bytes) {
      EXPECT_LE(std::abs(static_cast<double>(mine) - share), static_cast<double>(chunk_bytes));
    }
  }
}

TEST(ShardMap, MoreServersThanChunksLeavesSomeEmpty) {
  const auto layout = LayoutOf(48, 64);  // 3 chunks
  const ShardMap map = InitialMap({1}, *layout, 64, Servers(7), 1);
  ASSERT_TRUE(Validate(map, *layout).ok());
  size_t held = 0;
  size_t empty = 0;
  for (const ServerEntry& server : map.servers) {
    held += map.PrimaryChunks(server.id).size();
    empty += map.PrimaryChunks(server.id).empty();
  }
  EXPECT_EQ(held, 3u);
  EXPECT_EQ(empty, 4u);
}

TEST(ShardMap, AnswersWhoHoldsWhat) {
  const auto layout = LayoutOf(64, 64);  // 4 chunks
  const ShardMap map = InitialMap({1}, *layout, 64, Servers(2), 2);
  EXPECT_EQ(map.primary({0}).id, ServerId{10});
  EXPECT_TRUE(map.IsPrimary({11}, {3}));
  EXPECT_FALSE(map.IsPrimary({10}, {3}));
  EXPECT_TRUE(map.Holds({10}, {3}));
  EXPECT_FALSE(map.Holds({12}, {3}));
  EXPECT_EQ(map.PrimaryChunks({10}), (std::vector<ChunkId>{{0}, {1}}));
  EXPECT_EQ(map.HeldChunks({10}), (std::vector<ChunkId>{{0}, {1}, {2}, {3}}));
  EXPECT_TRUE(map.HeldChunks({99}).empty());
  EXPECT_EQ(map.Find({11})->address, "tcp://s1");
  EXPECT_EQ(map.Find({99}), nullptr);
  EXPECT_FALSE(map.single());
  EXPECT_TRUE(InitialMap({1}, *layout, 64, Servers(1), 1).single());
}

TEST(ShardMap, SenselessMapsAreRefused) {
  const auto layout = LayoutOf(64, 64);
  const ShardMap good = InitialMap({1}, *layout, 64, Servers(3), 2);
  ASSERT_TRUE(Validate(good, *layout).ok());
  const auto refused = [&](const char* reason, auto change) {
    ShardMap map = good;
    change(map);
    const Status status = Validate(map, *layout);
    EXPECT_EQ(status.code(), Code::kCorrupt) << reason;
    EXPECT_NE(status.message().find(reason), std::string::npos) << status.message();
  };
  refused("number of servers", [](ShardMap& m) { m.servers.clear(); });
  refused("number of servers", [](ShardMap& m) { m.servers = Servers(limits::kMaxServers + 1); });
  refused("server 10 is named twice", [](ShardMap& m) { m.servers[2].id = m.servers[0].id; });
  refused("number of chunks", [](ShardMap& m) { m.replicas.pop_back(); });
  refused("number of chunks", [](ShardMap& m) { m.replicas.push_back({0}); });
  refused("without a server", [](ShardMap& m) { m.replicas[1].clear(); });
  refused("impossible server", [](ShardMap& m) { m.replicas[1] = {3}; });
  refused("impossible server", [](ShardMap& m) { m.replicas[1] = {2, 2}; });
}

}  // namespace
}  // namespace everstep
