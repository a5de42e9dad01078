// What is encoded is decoded as the same value, for every kind of message.
#include "schema/codec.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/schema/random_messages.h"
#include "tests/support/seed.h"

namespace everstep {
namespace {

using test::kMessageKinds;

TEST(Codec, EveryMessageComesBackAsItWas) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  for (size_t kind = 0; kind < kMessageKinds; ++kind) {
    for (int i = 0; i < 200; ++i) {
      const Envelope sent = test::RandomEnvelope(random, kind);
      const Result<Envelope> got = Decode(Encode(sent));
      ASSERT_TRUE(got.ok()) << Name(sent.body) << ": " << got.status().ToString();
      ASSERT_EQ(got->body.index(), kind);
      ASSERT_TRUE(*got == sent) << Name(sent.body);
    }
  }
}

TEST(Codec, DefaultMessagesComeBackToo) {
  for (size_t kind = 0; kind < kMessageKinds; ++kind) {
    Random random(kind);
    Envelope envelope = test::RandomEnvelope(random, kind);
    std::visit([](auto& m) { m = {}; }, envelope.body);
    const Result<Envelope> got = Decode(Encode(envelope));
    if (got.ok()) {
      EXPECT_TRUE(*got == envelope) << Name(envelope.body);
    } else {
      EXPECT_EQ(got.status().code(), Code::kCorrupt) << Name(envelope.body);  // e.g. a map without a chunk size
    }
  }
}

TEST(Codec, EveryKindHasANameOfItsOwn) {
  std::set<std::string_view> names;
  Random random(1);
  for (size_t kind = 0; kind < kMessageKinds; ++kind) names.insert(Name(test::RandomEnvelope(random, kind).body));
  EXPECT_EQ(names.size(), kMessageKinds);
  EXPECT_TRUE(names.contains("WrongShard"));
}

TEST(Codec, WorksOnBytesThatLieAnywhere) {
  Random random(2);
  const Envelope sent = test::RandomEnvelope(random, Body(Promise{}).index());
  const Buffer bytes = Encode(sent);
  for (size_t offset = 0; offset < 16; ++offset) {
    MutableBuffer moved(bytes.size() + offset);
    std::memcpy(moved.data() + offset, bytes.data(), bytes.size());
    const Result<Envelope> got = Decode(std::move(moved).Freeze().Slice(offset, bytes.size()));
    ASSERT_TRUE(got.ok()) << offset << ": " << got.status().ToString();
    EXPECT_TRUE(*got == sent);
  }
}

TEST(Codec, TextIsCutAtItsBoundBeforeItIsSent) {
  Fenced fenced{{1}, std::string(limits::kMaxTextBytes + 10, 'x')};
  const Result<Envelope> got = Decode(Encode({{1}, {1}, fenced}));
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  EXPECT_EQ(std::get<Fenced>(got->body).message.size(), limits::kMaxTextBytes);
}

// The largest map that the limits allow must still fit into one header.
TEST(Codec, TheLargestMapFits) {
  ShardMap map{{1}, 2, 64, {}, {}};
  for (uint32_t i = 0; i < limits::kMaxServers; ++i) map.servers.push_back({{i}, {i}, std::string(100, 'a')});
  std::vector<uint32_t> holders;
  for (uint32_t i = 0; i < limits::kMaxReplication; ++i) holders.push_back(i);
  map.replicas.assign(limits::kMaxChunks, holders);
  const Result<Envelope> got = Decode(Encode({{1}, {1}, MapUpdate{map}}));
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  EXPECT_TRUE(std::get<MapUpdate>(got->body).map == map);
}

}  // namespace
}  // namespace everstep
