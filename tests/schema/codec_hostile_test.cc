// Bytes from outside (case 39): cut off, changed, random, too large or senseless, they end in a Status and never in a
// crash. Most of the worth of these tests shows under the address sanitizer.
#include <gtest/gtest.h>

#include "schema/codec.h"
#include "tests/schema/random_messages.h"
#include "tests/support/seed.h"

namespace everstep {
namespace {

using test::kMessageKinds;

// Decoding must give an error of the two kinds that a peer can cause, or a message that can be sent on unchanged.
void ExpectStatusOrMessage(const Buffer& bytes) {
  const Result<Envelope> got = Decode(bytes);
  if (!got.ok()) {
    ASSERT_TRUE(got.status().code() == Code::kCorrupt || got.status().code() == Code::kWrongVersion)
        << got.status().ToString();
    ASSERT_FALSE(got.status().message().empty());
    return;
  }
  const Buffer again = Encode(*got);
  const Result<Envelope> twice = Decode(again);
  ASSERT_TRUE(twice.ok()) << twice.status().ToString();
  ASSERT_EQ(Encode(*twice).text(), again.text());  // bytes, because a NaN in a metric equals nothing
}

void ExpectCorrupt(const Body& body, const char* reason) {
  const Result<Envelope> got = Decode(Encode({{1}, {1}, body}));
  ASSERT_FALSE(got.ok()) << reason;
  EXPECT_EQ(got.status().code(), Code::kCorrupt) << got.status().ToString();
  EXPECT_NE(got.status().message().find(reason), std::string::npos) << got.status().ToString();
}

Buffer Changed(const Buffer& bytes, size_t at, uint8_t mask) {
  MutableBuffer copy(bytes.size());
  std::memcpy(copy.data(), bytes.data(), bytes.size());
  copy.data()[at] ^= static_cast<std::byte>(mask);
  return std::move(copy).Freeze();
}

TEST(CodecHostile, Case39_MessagesCutAtAnyLength) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  for (size_t kind = 0; kind < kMessageKinds; ++kind) {
    const Envelope sent = test::RandomEnvelope(random, kind);
    const Buffer bytes = Encode(sent);
    for (size_t length = 0; length < bytes.size(); ++length) {
      // A copy of its own size, so that the sanitizer sees a read beyond it.
      const Result<Envelope> got = Decode(Buffer::Copy(bytes.text().substr(0, length)));
      ASSERT_TRUE(!got.ok() || *got == sent) << Name(sent.body) << " cut to " << length;  // at most padding was cut
    }
  }
}

TEST(CodecHostile, Case39_EveryByteChanged) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  for (size_t kind = 0; kind < kMessageKinds; ++kind) {
    const Buffer bytes = Encode(test::RandomEnvelope(random, kind));
    for (size_t at = 0; at < bytes.size(); ++at) {
      for (const uint8_t mask : {0x01, 0x80, 0xff}) {
        ASSERT_NO_FATAL_FAILURE(ExpectStatusOrMessage(Changed(bytes, at, mask))) << "kind " << kind << " byte " << at;
      }
      ASSERT_NO_FATAL_FAILURE(ExpectStatusOrMessage(Changed(bytes, at, static_cast<uint8_t>(1 + random.Below(255)))));
    }
  }
}

// Several bytes at once, parts of messages glued together, lengths forged.
TEST(CodecHostile, Case39_MangledMessages) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  for (int i = 0; i < 20000; ++i) {
    const Buffer a = Encode(test::RandomEnvelope(random, random.Below(kMessageKinds)));
    std::string text(a.text());
    if (random.Chance(0.3)) {
      const Buffer b = Encode(test::RandomEnvelope(random, random.Below(kMessageKinds)));
      text.resize(random.Below(text.size() + 1));
      text.append(b.text().substr(random.Below(b.size())));
    }
    for (uint64_t n = random.Below(8); n > 0 && text.size() >= 4; --n) {
      const size_t at = random.Below(text.size() - 3);
      const auto word = static_cast<uint32_t>(random.Chance(0.5) ? random.Below(64) : random.Next());
      std::memcpy(text.data() + at, &word, random.Chance(0.5) ? 4 : 1);
    }
    ASSERT_NO_FATAL_FAILURE(ExpectStatusOrMessage(Buffer::Copy(text)));
  }
}

TEST(CodecHostile, Case39_RandomBytes) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (uint64_t n = random.Below(300); n > 0; --n) text += static_cast<char>(random.Next());
    if (random.Chance(0.7) && text.size() >= 8) text.replace(4, 4, "EVS1");  // gets past the first look
    EXPECT_FALSE(Decode(Buffer::Copy(text)).ok());
  }
}

// A seal carries a digest of itself: no change of it may go unseen.
TEST(CodecHostile, Case39_AChangedSealIsNeverAccepted) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  for (int i = 0; i < 20; ++i) {
    const SealStep sent{test::RandomSeal(random), false};
    const Buffer bytes = Encode({{1}, {1}, sent});
    for (size_t at = 0; at < bytes.size(); ++at) {
      const Result<Envelope> got = Decode(Changed(bytes, at, static_cast<uint8_t>(1 + random.Below(255))));
      const auto* seal = got.ok() ? std::get_if<SealStep>(&got->body) : nullptr;
      ASSERT_TRUE(seal == nullptr || seal->seal == sent.seal) << "byte " << at;
    }
  }
}

TEST(CodecHostile, Case39_TooLarge) {
  MutableBuffer large(limits::kMaxHeaderBytes + 1);
  std::memset(large.data(), 0, large.size());
  const Result<Envelope> got = Decode(std::move(large).Freeze());
  EXPECT_EQ(got.status().code(), Code::kCorrupt);
  EXPECT_NE(got.status().message().find("larger than any message"), std::string::npos);
}

TEST(CodecHostile, Case39_CountsBeyondTheirBounds) {
  Lease lease;
  for (uint64_t i = 0; i <= limits::kMaxLeaseRanges; ++i) lease.ranges.push_back({3 * i, 3 * i + 1});
  ExpectCorrupt(Grant{{1}, 1, {1}, lease}, "too many ranges");
  lease.ranges.pop_back();
  EXPECT_TRUE(Decode(Encode({{1}, {1}, Grant{{1}, 1, {1}, lease}})).ok());

  Report report;
  report.metrics.assign(257, {"m", 1});
  ExpectCorrupt(report, "too many metrics");
  ExpectCorrupt(Promised{{}, {}, {}, {}, {}, 1, {}, {}, std::vector<Contribution>(limits::kMaxSlots + 1)},
                "too many contributions");
  ExpectCorrupt(NonFinite{{}, {}, std::vector<WorkerId>(limits::kMaxMembers + 1)}, "too many ids");
  Hello hello;
  hello.spec.tensors.push_back({"deep", std::vector<int64_t>(65, 1), {}, {}});
  ExpectCorrupt(hello, "too many dimensions");
  Random random(1);
  MapUpdate update{test::RandomMap(random)};
  update.map.servers.assign(limits::kMaxServers + 1, {});
  ExpectCorrupt(update, "too many servers");
}

TEST(CodecHostile, Case39_UnknownEnumerators) {
  Hello hello;
  hello.role = static_cast<PeerRole>(3);
  ExpectCorrupt(hello, "unknown role 3");
  ExpectCorrupt(Heartbeat{{1}, static_cast<Phase>(6), 0, 0}, "unknown phase 6");
  ExpectCorrupt(Refused{static_cast<Code>(21), "?"}, "unknown code 21");
  ExpectCorrupt(Refused{Code::kOk, "?"}, "without a reason");
  ExpectCorrupt(JobFailed{Code::kOk, "?"}, "without a reason");
  Welcome welcome;
  welcome.job.mode = static_cast<Mode>(3);
  ExpectCorrupt(welcome, "unknown mode 3");
  hello = {};
  hello.spec.tensors.push_back({"w", {1}, static_cast<DType>(2), {}});
  ExpectCorrupt(hello, "unknown dtype 2");
  hello.spec.tensors = {{"w", {1}, {}, static_cast<Role>(2)}};
  ExpectCorrupt(hello, "unknown role 2");
}

TEST(CodecHostile, Case39_ContentsThatMakeNoSense) {
  const auto grant = [](std::vector<SampleRange> ranges) { return Grant{{1}, 1, {1}, {{1}, 0, std::move(ranges)}}; };
  ExpectCorrupt(grant({{5, 5}}), "bad ranges");
  ExpectCorrupt(grant({{9, 5}}), "bad ranges");
  ExpectCorrupt(grant({{5, 9}, {8, 10}}), "bad ranges");
  ExpectCorrupt(grant({{5, 9}, {1, 2}}), "bad ranges");

  Random random(1);
  Seal seal = test::RandomSeal(random);
  seal.weights.push_back(1);
  ExpectCorrupt(SealStep{seal, false}, "a weight for each contributor");
  seal = test::RandomSeal(random);
  seal.digest.value ^= 1;
  ExpectCorrupt(SealStep{seal, false}, "digest does not match");

  Welcome welcome;
  welcome.job.batch = 0;
  ExpectCorrupt(welcome, "batch");
  Hello hello;
  hello.dataset_size = (uint64_t{1} << 56) + 1;
  ExpectCorrupt(hello, "impossible dataset size");
  hello.dataset_size = 1;
  hello.spec.tensors = {{"w", {-1}, {}, {}}};
  ExpectCorrupt(hello, "impossible shape");
  ExpectCorrupt(Promise{test::RandomMap(random), {}}, "an empty model");
}

TEST(CodecHostile, Case39_MapsThatMakeNoSense) {
  ShardMap good{{1}, 1, 64, {{{0}, {1}, "tcp://a"}}, {{0}}};
  ASSERT_TRUE(Decode(Encode({{1}, {1}, MapUpdate{good}})).ok());
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{63}, uint64_t{65}, uint64_t{limits::kMaxChunkBytes + 64}}) {
    ShardMap map = good;
    map.chunk_bytes = bytes;
    ExpectCorrupt(MapUpdate{map}, "bad chunk size");
  }
  ShardMap nobody = good;
  nobody.replicas = {{}};
  ExpectCorrupt(MapUpdate{nobody}, "a chunk without holders");
  ShardMap stranger = good;
  stranger.replicas = {{1}};
  ExpectCorrupt(WrongShard{stranger}, "a server that does not exist");
}

}  // namespace
}  // namespace everstep
