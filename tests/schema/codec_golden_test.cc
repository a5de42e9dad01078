// The bytes of protocol version 1, as they were when they were written down: tests/golden/wire/NAME.hex, one for each
// kind of message. A difference is a change of the wire. If fields were only added at the end of their tables, old
// bytes still decode to the same value; then write the files anew with
//
//   EVERSTEP_UPDATE_GOLDEN=1 schema_tests --gtest_filter='*Golden*'
//
// and otherwise raise kProtocolVersion first (docs/protocol.md).
#include <gtest/gtest.h>
#include <stdlib.h>

#include "base/file.h"
#include "schema/codec.h"
#include "tests/schema/random_messages.h"

namespace everstep {
namespace {

const Contribution kContribution{{0x1111}, {7}, {0x7777}, {{0x22}, 2, {{0, 32}, {40, 64}}}};

ParameterSpec GoldenSpec() {
  return {{{"fc.weight", {10, 4}, DType::kFloat32, Role::kTrainable}, {"steps", {}, DType::kInt64, Role::kBuffer}}};
}

ShardMap GoldenMap() {
  return {
      {3}, 0x5bec, 64, {{{0}, {0xa0}, "tcp://ps0:7070"}, {{1}, {0xa1}, "tcp://ps1:7070"}}, {{0, 1}, {1, 0}, {1, 0}}};
}

Seal GoldenSeal() {
  Seal seal{{{3}, {7}}, {kContribution}, {1.0}, 0.125, 2.5, {2, {{0, 64}}}, {0x7777}, {}};
  seal.digest = SealDigest(seal);
  return seal;
}

JobSpec GoldenJob() {
  JobSpec job;
  job.name = "fashion";
  job.mode = Mode::kAsync;
  job.optimizer = {OptimizerKind::kAdamW, 0.5, 0.25, 0, true, 0.75, 0.875, 0.0625, 0.03125};
  job.schedule = {ScheduleKind::kWsd, 10, 1000, 30, 0.5, 0.25, 100};
  job.clip_norm = 1.5;
  job.batch = 128;
  job.epochs = 3;
  job.max_steps = 900;
  job.seed = 42;
  job.servers = 4;
  job.replication = 2;
  job.min_workers = 2;
  job.max_workers = 8;
  job.chunk_bytes = 4096;
  job.quorum = 0.75;
  job.grace = std::chrono::milliseconds(250);
  job.staleness = 5;
  job.staleness_power = 0.5;
  job.timeout = std::chrono::seconds(10);
  job.task = "fashion-mnist-cnn";
  job.verify_replicas = 9;
  return job;
}

// In the order of Body; every field differs from its default.
std::vector<Body> GoldenBodies() {
  const SealId id{{3}, {7}};
  const std::vector<ChunkNorm> norms = {{{0}, 0.5}, {{2}, 0.25}};
  return {
      Hello{PeerRole::kServer,
            "w1",
            "fashion",
            {0x1111},
            {0xa0},
            "tcp://ps0:7070",
            GoldenSpec(),
            60000,
            {7},
            kContribution.lease},
      Welcome{GoldenJob(), {1}, {7}, GoldenMap()},
      Refused{Code::kWrongSpec, "another model"},
      MapUpdate{GoldenMap()},
      Ready{{0x1111}, {7}, {0x22}},
      Grant{{0x1111}, 9, {7}, kContribution.lease},
      Heartbeat{{0x1111}, Phase::kPushing, 12, 9},
      HeartbeatAck{},
      Report{{0x1111}, {7}, {0x22}, true, {{"loss", 0.5}, {"accuracy", 0.75}}},
      Fenced{{0x1111}, "silent"},
      Leave{{0x1111}, "SIGTERM"},
      LeaveAck{},
      Finish{{901}, true},
      JobFailed{Code::kNonFinite, "look at the data"},
      Push{kContribution, {2}},
      PushRefused{kContribution, {2}, Code::kStale, {8}, "the step is over"},
      Pull{{0x1111}, {8}, true, {{0}, {2}}, kContribution},
      Missing{kContribution, {{1}}},
      ChunkData{{8}, {0x8888}, {2}},
      PullRefused{Code::kStale, {9}, "gone"},
      WrongShard{GoldenMap()},
      Promise{GoldenMap(), GoldenSpec(), RestoreFrom{"v000000000008-12345678-3", GoldenSeal(), 0.5}},
      Promised{{1}, {0xa1}, {7}, {0x7777}, GoldenSeal(), 0.5, GoldenSeal(), norms, {kContribution}},
      Staged{{1}, kContribution},
      SealStep{GoldenSeal(), true},
      Prepared{{1}, {0xa1}, id, {0x8888}, norms},
      NonFinite{{1}, id, {{0x1111}}},
      Commit{id, {0x8888}, 0.5},
      Applied{{1}, {0xa1}, id, {0x8888}, 0.5, {{{2}, 0xc5}}},
      StaleBallot{{1}, {4}, {8}},
      StatusRequest{},
      StatusReply{"{\"state\":\"open\"}"},
      Snapshot{{8}, {0x8888}, "v000000000008-12345678-3"},
      SnapshotDone{{1},
                   "v000000000008-12345678-3",
                   "v000000000008-12345678-3-ps1.safetensors",
                   12345,
                   0xfeed,
                   {{0}, {2}},
                   {"momentum", "parameters"},
                   Code::kResourceExhausted,
                   "the disk is full"},
      ReplicateSum{{1}, {0xa1}, id, {0x8888}, {2}, 0.25},
      WantSums{{1}, {0xa1}, id, {0x8888}, {{2}}},
      ReceiveChunks{{{1}, {0xa1}, "tcp://ps1:7070"}, {8}, {0x8888}, {{0}, {2}}, 64, GoldenSpec()},
      WantChunks{{3}, {8}, {0x8888}, {{0}, {2}}},
      History{{8}, {0x8888}, GoldenSeal(), 0.5, {{{7}, {0x7777}}, {{8}, {0x8888}}}, {kContribution}},
      ChunkState{{8}, {0x8888}, {2}, {"exp_avg", "exp_avg_sq"}},
      Copied{{1}, {0xa1}, {3}, {8}, {{0}, {2}}},
      Drained{},
      NotCoordinator{"tcp://ps1:7070"},
      ControlRequest{"drain", "ps1"},
      ControlReply{Code::kInvalidArgument, "the last one"},
  };
}

std::string ToHex(std::string_view bytes) {
  std::string text;
  for (size_t i = 0; i < bytes.size(); ++i) {
    char digits[4];
    std::snprintf(digits, sizeof digits, "%02x%c", static_cast<unsigned char>(bytes[i]), i % 32 == 31 ? '\n' : ' ');
    text += digits;
  }
  if (text.empty() || text.back() != '\n') text.back() = '\n';
  return text;
}

std::string FromHex(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 3) {
    bytes += static_cast<char>(strtoul(text.substr(i, 2).c_str(), nullptr, 16));
  }
  return bytes;
}

class CodecGolden : public testing::TestWithParam<size_t> {};

TEST_P(CodecGolden, BytesAreAsWrittenDown) {
  const std::vector<Body> bodies = GoldenBodies();
  ASSERT_EQ(bodies.size(), test::kMessageKinds);
  const Envelope envelope{{0x0123456789abcdef}, {3}, bodies[GetParam()]};
  ASSERT_EQ(envelope.body.index(), GetParam());
  const std::string path = std::string(EVERSTEP_GOLDEN_WIRE) + "/" + std::string(Name(envelope.body)) + ".hex";
  const std::string hex = ToHex(Encode(envelope).text());
  if (getenv("EVERSTEP_UPDATE_GOLDEN") != nullptr) {
    ASSERT_TRUE(WriteFileDurably(path, hex).ok());
  }
  const Result<std::string> golden = ReadFile(path);
  ASSERT_TRUE(golden.ok()) << golden.status().ToString();
  const Result<Envelope> old = Decode(Buffer::Copy(FromHex(*golden)));
  ASSERT_TRUE(old.ok()) << "bytes of an older build are not understood any more: " << old.status().ToString();
  EXPECT_TRUE(*old == envelope) << "bytes of an older build mean something else now";
  EXPECT_EQ(*golden, hex) << "the wire has changed; see the head of this file";
}

INSTANTIATE_TEST_SUITE_P(EveryKind, CodecGolden, testing::Range<size_t>(0, test::kMessageKinds),
                         [](const auto& kind) { return std::string(Name(GoldenBodies()[kind.param])); });

// An older or newer peer is told both versions (cases 13 and 39). The number's place is found by trying every byte, so
// that this test needs no knowledge of the layout.
TEST(CodecVersion, Case13_AnotherProtocolVersionIsNamed) {
  const Buffer bytes = Encode({{0x0123456789abcdef}, {3}, StatusRequest{}});
  int places = 0;
  for (size_t at = 0; at < bytes.size(); ++at) {
    if (bytes.data()[at] != std::byte{kProtocolVersion}) continue;
    std::string text(bytes.text());
    text[at] = 77;
    const Result<Envelope> got = Decode(Buffer::Copy(text));
    if (got.status().code() != Code::kWrongVersion) continue;
    ++places;
    EXPECT_NE(got.status().message().find("protocol version 77"), std::string::npos) << got.status().message();
    EXPECT_NE(got.status().message().find("speaks " + std::to_string(kProtocolVersion)), std::string::npos);
  }
  EXPECT_EQ(places, 1);
}

}  // namespace
}  // namespace everstep
