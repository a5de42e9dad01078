// A part of transport_conformance.h: credits and the bounds of queues.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/conformance/transport_fixture.h"

namespace everstep::transport {

// Either end alike, and with no other word between them: what waited for credit must not wait for somebody's next Send.
TEST_P(TransportConformance, WhatWaitsForCreditGoesOnByItselfFromEitherEnd) {
  ASSERT_NO_FATAL_FAILURE(ListenAndConnect());
  constexpr size_t kFrame = 1u << 20;
  constexpr size_t kFrames = 3 * limits::kCreditWindowBytes / kFrame;
  const Buffer payload = Pattern(1, kFrame);
  for (size_t i = 0; i < kFrames; ++i) ASSERT_TRUE(Send(*accepted_[0], Text(std::to_string(i), payload)).ok());
  EXPECT_TRUE(RunUntil([&] { return client_side_.headers.size() == kFrames; })) << client_side_.headers.size();
  for (size_t i = 0; i < kFrames; ++i) ASSERT_TRUE(Send(*connection_, Text(std::to_string(i), payload)).ok());
  EXPECT_TRUE(RunUntil([&] { return server_side_.headers.size() == kFrames; })) << server_side_.headers.size();
}

TEST_P(TransportConformance, CreditBoundsWhatIsUnderWayAndDroppingItLetsMoreCome) {
  ASSERT_NO_FATAL_FAILURE(ListenAndConnect());
  constexpr size_t kFrame = 4u << 20;
  constexpr size_t kInWindow = limits::kCreditWindowBytes / kFrame;
  server_side_.hold_credits = true;
  const Buffer payload = Pattern(3, kFrame);
  for (size_t i = 0; i < 3 * kInWindow; ++i) ASSERT_TRUE(Send(*connection_, Text(std::to_string(i), payload)).ok());
  ASSERT_TRUE(RunUntil([&] { return server_side_.headers.size() == kInWindow; }));
  RunFor(std::chrono::milliseconds(100));
  EXPECT_EQ(server_side_.headers.size(), kInWindow);
  EXPECT_EQ(connection_->queued_bytes() / kFrame, 2 * kInWindow);

  // Less than the quarter that is reported at once, and dropped on another thread.
  std::thread([one = std::move(server_side_.credits[0])] {}).join();
  ASSERT_TRUE(RunUntil([&] { return server_side_.headers.size() == kInWindow + 1; }));
  RunFor(std::chrono::milliseconds(20));
  EXPECT_EQ(server_side_.headers.size(), kInWindow + 1);

  server_side_.hold_credits = false;
  server_side_.credits.clear();
  ASSERT_TRUE(RunUntil([&] { return server_side_.headers.size() == 3 * kInWindow; }));
  for (size_t i = 0; i < 3 * kInWindow; ++i) ASSERT_EQ(server_side_.headers[i], std::to_string(i));
  EXPECT_EQ(connection_->queued_bytes(), 0u);
}

TEST_P(TransportConformance, HeaderOnlyFramesKeepTheirPlaceBehindFramesWithoutCredit) {
  ASSERT_NO_FATAL_FAILURE(ListenAndConnect());
  server_side_.hold_credits = true;
  ASSERT_TRUE(Send(*connection_, Text("fills the window", Pattern(1, limits::kCreditWindowBytes))).ok());
  ASSERT_TRUE(Send(*connection_, Text("passes")).ok());
  ASSERT_TRUE(Send(*connection_, Text("waits", Pattern(2, 10))).ok());
  ASSERT_TRUE(Send(*connection_, Text("waits behind")).ok());
  ASSERT_TRUE(RunUntil([&] { return server_side_.headers.size() == 2; }));
  RunFor(std::chrono::milliseconds(50));
  EXPECT_THAT(server_side_.headers, testing::ElementsAre("fills the window", "passes"));
  server_side_.credits.clear();
  ASSERT_TRUE(RunUntil([&] { return server_side_.headers.size() == 4; }));
  EXPECT_THAT(server_side_.headers, testing::ElementsAre("fills the window", "passes", "waits", "waits behind"));
}

TEST_P(TransportConformance, ManySmallFramesWithHeldCreditsNeverStall) {
  ASSERT_NO_FATAL_FAILURE(ListenAndConnect());
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  server_side_.on_frame = [&](Connection&, const Received&) {
    auto& credits = server_side_.credits;
    while (!credits.empty() && random.Chance(0.5)) {
      std::swap(credits[random.Below(credits.size())], credits.back());
      credits.pop_back();
    }
  };
  server_side_.hold_credits = true;
  constexpr size_t kFrames = 40000;
  for (size_t i = 0; i < kFrames; ++i) {
    ASSERT_TRUE(Send(*connection_, Text("f", Pattern(i, 1 + random.Below(6000)))).ok());
    ASSERT_TRUE(Send(*accepted_[0], Text("f", Pattern(i, 1 + random.Below(6000)))).ok());
  }
  EXPECT_TRUE(
      RunUntil([&] { return server_side_.headers.size() == kFrames && client_side_.headers.size() == kFrames; }));
}

TEST_P(TransportConformance, AFullQueueRefusesAndLosesNothing) {
  ASSERT_NO_FATAL_FAILURE(ListenAndConnect());
  server_side_.hold_credits = true;
  const Buffer window = Pattern(1, limits::kCreditWindowBytes);
  ASSERT_TRUE(Send(*connection_, Text("window", window)).ok());
  ASSERT_TRUE(RunUntil([&] { return server_side_.headers.size() == 1; }));
  ASSERT_TRUE(Send(*connection_, Text("blocked", Pattern(2, 1))).ok());
  const Buffer header = Buffer::Copy("small");
  for (size_t i = 1; i < limits::kMaxQueuedFrames; ++i) ASSERT_TRUE(Send(*connection_, {header, {}}).ok());
  const size_t queued = connection_->queued_bytes();
  const Status refused = Send(*connection_, {header, {}});
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_THAT(refused.message(), testing::HasSubstr(connection_->peer()));
  EXPECT_EQ(connection_->queued_bytes(), queued);
  server_side_.credits.clear();
  ASSERT_TRUE(RunUntil([&] { return server_side_.headers.size() == 1 + limits::kMaxQueuedFrames; }));
  EXPECT_EQ(connection_->queued_bytes(), 0u);
}

TEST_P(TransportConformance, AQueueIsBoundedInBytesToo) {
  ASSERT_NO_FATAL_FAILURE(ListenAndConnect());
  server_side_.hold_credits = true;
  const Buffer window = Pattern(1, limits::kCreditWindowBytes);  // one memory behind all frames
  Status status;
  size_t sent = 0;
  while (status.ok() && sent < 2 * limits::kMaxQueuedBytes / window.size()) {
    status = Send(*connection_, Text("w", window));
    sent += status.ok();
  }
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_LE(connection_->queued_bytes(), limits::kMaxQueuedBytes);
  EXPECT_GT(connection_->queued_bytes(), limits::kMaxQueuedBytes - 2 * window.size());
}

TEST_P(TransportConformance, ABufferIsNotReusedBeforeItIsSent) {
  ASSERT_NO_FATAL_FAILURE(ListenAndConnect());
  server_side_.hold_credits = server_side_.keep_payloads = true;
  ASSERT_TRUE(Send(*connection_, Text("window", Pattern(1, limits::kCreditWindowBytes))).ok());
  BufferPool pool;
  constexpr size_t kSize = 1u << 20;
  const void* in_flight = nullptr;
  {
    MutableBuffer bytes = pool.Take(kSize);
    in_flight = bytes.data();
    std::memcpy(bytes.data(), Pattern(7, kSize).data(), kSize);
    ASSERT_TRUE(Send(*connection_, Text("queued", std::move(bytes).Freeze())).ok());
  }
  ASSERT_TRUE(RunUntil([&] { return server_side_.headers.size() == 1; }));
  EXPECT_EQ(pool.idle_bytes(), 0u);
  {
    MutableBuffer other = pool.Take(kSize);
    EXPECT_NE(other.data(), in_flight);
    std::memset(other.data(), 0xff, kSize);
  }
  server_side_.credits.clear();
  ASSERT_TRUE(RunUntil([&] { return server_side_.headers.size() == 2; }));
  EXPECT_TRUE(SameBytes(server_side_.payloads[1], Pattern(7, kSize)));
  server_side_.payloads.clear();
  EXPECT_TRUE(RunUntil([&] { return pool.idle_bytes() == 2 * kSize; })) << "the transport keeps a sent buffer";
}

}  // namespace everstep::transport
