#include "transport/zmq/zmq_wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/random.h"
#include "tests/support/seed.h"

namespace everstep::transport::zeromq {
namespace {

TEST(ZmqWire, GoldenBytes) {
  const auto bytes = EncodePrelude({Kind::kData, 0x0102030405060708});
  const uint8_t golden[] = {'E', 'V', 'T', 1, 4, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1};
  ASSERT_EQ(bytes.size(), sizeof golden);
  EXPECT_EQ(std::memcmp(bytes.data(), golden, sizeof golden), 0);
}

TEST(ZmqWire, WhatIsEncodedDecodes) {
  for (const Kind kind : {Kind::kHello, Kind::kWelcome, Kind::kReady, Kind::kData, Kind::kCredit, Kind::kClose}) {
    for (const uint64_t value : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 40, UINT64_MAX}) {
      const auto bytes = EncodePrelude({kind, value});
      const auto decoded = DecodePrelude(bytes);
      ASSERT_TRUE(decoded.ok());
      EXPECT_EQ(decoded->kind, kind);
      EXPECT_EQ(decoded->value, value);
    }
  }
}

TEST(ZmqWire, EveryTruncationAndEveryFlipInTheFixedPartIsRefused) {
  const auto good = EncodePrelude({Kind::kHello, 77});
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_EQ(DecodePrelude(std::span(good).first(size)).status().code(), Code::kCorrupt) << size;
  }
  for (size_t at = 0; at < 8; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      auto bad = good;
      bad[at] ^= std::byte(1 << bit);
      const auto decoded = DecodePrelude(bad);
      if (at == 4 && decoded.ok()) {
        EXPECT_NE(decoded->kind, Kind::kHello);  // one flip away lie other kinds
      } else {
        EXPECT_EQ(decoded.status().code(), at == 3 ? Code::kWrongVersion : Code::kCorrupt) << at << "." << bit;
      }
    }
  }
}

TEST(ZmqWire, RandomBytesAreNeverTakenForAMessage) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> bytes(random.Below(40));
    for (std::byte& byte : bytes) byte = std::byte(random.Next());
    EXPECT_FALSE(DecodePrelude(bytes).ok());
  }
}

TEST(ZmqWire, AReasonFromOutsideIsMadeHarmless) {
  EXPECT_TRUE(DecodeReason(0, {}, "peer").ok());
  const std::string evil = "\x1b[31mred\n" + std::string(5000, 'x');
  const Status status = DecodeReason(999, std::as_bytes(std::span(evil)), "peer");
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_THAT(status.message(), testing::HasSubstr("peer closed the connection: ?[31mred?"));
  EXPECT_LT(status.message().size(), kMaxReasonBytes + 100);
  EXPECT_EQ(DecodeReason(static_cast<uint64_t>(Code::kWrongVersion), {}, "peer").code(), Code::kWrongVersion);
}

}  // namespace
}  // namespace everstep::transport::zeromq
