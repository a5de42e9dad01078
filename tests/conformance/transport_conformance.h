// The suite that every transport backend must pass. A backend's test binary includes this file once and instantiates
// TransportConformance with its Backend values (transport_fixture.h).
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "tests/conformance/transport_credit_conformance.h"
#include "tests/conformance/transport_fixture.h"
#include "tests/support/seed.h"

namespace everstep::transport {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportConformance);

// --- Frames ---

TEST_P(TransportConformance, FramesOfManySizesArriveWholeBothWays) {
  ASSERT_NO_FATAL_FAILURE(ListenAndConnect());
  server_side_.keep_payloads = client_side_.keep_payloads = true;
  const std::vector<size_t> sizes = {0, 1, 7, 33, 4095, 4096, 8191, 8193, 65536, 65537, 4u << 20, (4u << 20) + 3};
  for (size_t i = 0; i < sizes.size(); ++i) {
    ASSERT_TRUE(Send(*connection_, Text("c" + std::to_string(i), Pattern(i, sizes[i]))).ok());
    ASSERT_TRUE(Send(*accepted_[0], Text("s" + std::to_string(i), Pattern(100 + i, sizes[i]))).ok());
  }
  ASSERT_TRUE(RunUntil(
      [&] { return server_side_.headers.size() == sizes.size() && client_side_.headers.size() == sizes.size(); }));
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(server_side_.headers[i], "c" + std::to_string(i));
    EXPECT_EQ(client_side_.headers[i], "s" + std::to_string(i));
    EXPECT_TRUE(SameBytes(server_side_.payloads[i], Pattern(i, sizes[i]))) << sizes[i];
    EXPECT_TRUE(SameBytes(client_side_.payloads[i], Pattern(100 + i, sizes[i]))) << sizes[i];
  }
  EXPECT_EQ(client_->counters().frames_sent, sizes.size());
  EXPECT_EQ(server_->counters().frames_received, sizes.size());
  EXPECT_EQ(server_->counters().bytes_received, client_->counters().bytes_sent);
  EXPECT_EQ(server_->counters().accepted, 1u);
}

TEST_P(TransportConformance, LargestHeaderAndPayloadPassAndLargerOnesAreRefusedAtOnce) {
  ASSERT_NO_FATAL_FAILURE(ListenAndConnect());
  server_side_.keep_payloads = true;
  const Buffer header = Pattern(1, limits::kMaxHeaderBytes);
  const Buffer payload = Pattern(2, limits::kMaxPayloadBytes);
  ASSERT_TRUE(Send(*connection_, {header, payload}).ok());
  ASSERT_TRUE(RunUntil([&] { return server_side_.headers.size() == 1; }));
  EXPECT_EQ(server_side_.headers[0], header.text());
  EXPECT_TRUE(SameBytes(server_side_.payloads[0], payload));

  EXPECT_EQ(Send(*connection_, {{}, payload}).code(), Code::kInvalidArgument);
  EXPECT_EQ(Send(*connection_, {MutableBuffer(limits::kMaxHeaderBytes + 1).Freeze(), {}}).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(Send(*connection_, Text("h", MutableBuffer(limits::kMaxPayloadBytes + 1).Freeze())).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(connection_->queued_bytes(), 0u);
}

TEST_P(TransportConformance, OrderHoldsOverSmallAndLargeFramesInAnyMix) {
  ASSERT_NO_FATAL_FAILURE(ListenAndConnect());
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  constexpr int kFrames = 2000;
  server_side_.on_frame = [&](Connection&, const Received& received) {
    const size_t index = server_side_.headers.size() - 1;
    EXPECT_TRUE(SameBytes(received.payload, Pattern(index, received.payload.size())));
  };
  size_t sent_bytes = 0;
  for (int i = 0; i < kFrames; ++i) {
    const size_t size = random.Chance(0.02) ? random.Below(2u << 20) : random.Below(3000);
    sent_bytes += size;
    ASSERT_TRUE(Send(*connection_, Text(std::to_string(i), Pattern(i, size))).ok());
  }
  ASSERT_TRUE(RunUntil([&] { return server_side_.headers.size() == kFrames; }));
  for (int i = 0; i < kFrames; ++i) ASSERT_EQ(server_side_.headers[i], std::to_string(i));
  EXPECT_EQ(server_side_.bytes, sent_bytes);
}

TEST_P(TransportConformance, ReceivedBuffersAreAlignedForWords) {
  ASSERT_NO_FATAL_FAILURE(ListenAndConnect());
  int unaligned = 0;
  server_side_.on_frame = [&](Connection&, const Received& received) {
    unaligned += reinterpret_cast<uintptr_t>(received.header.data()) % 8 != 0;
    unaligned += reinterpret_cast<uintptr_t>(received.payload.data()) % 8 != 0;
  };
  int frames = 0;
  for (size_t size = 1; size < 300000; size = size * 5 / 3 + 1) {
    ASSERT_TRUE(Send(*connection_, {Pattern(1, size), Pattern(2, size).Slice(1, size - 1)}).ok());
    ++frames;
  }
  ASSERT_TRUE(RunUntil([&] { return static_cast<int>(server_side_.headers.size()) == frames; }));
  EXPECT_EQ(unaligned, 0);
}

TEST_P(TransportConformance, FramesSentBeforeTheConnectionIsUpArriveInOrder) {
  ASSERT_NO_FATAL_FAILURE(Listen());
  connection_ = Connect(&client_side_);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(Send(*connection_, Text(std::to_string(i), Pattern(i, 5000))).ok());
  ASSERT_TRUE(RunUntil([&] { return server_side_.headers.size() == 100; }));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(server_side_.headers[i], std::to_string(i));
}

TEST_P(TransportConformance, ReceivedBuffersOutliveTheirContextAndCreditsTheirLoop) {
  std::vector<Buffer> payloads;
  std::vector<Credit> credits;
  {
    Loop loop;
    auto server = MakeContext(loop);
    auto client = MakeContext(loop);
    Recorder receiver, sender;
    receiver.keep_payloads = receiver.hold_credits = true;
    auto listener = server->Listen(GetParam().fresh_address(), [&](auto) { return &receiver; }).value();
    auto connection = client->Connect(listener->address(), &sender, kDeadline).value();
    for (size_t i = 0; i < 8; ++i) ASSERT_TRUE(Send(*connection, Text("x", Pattern(i, 100000 * i + 10))).ok());
    ASSERT_TRUE(test::RunUntil(loop, [&] { return receiver.headers.size() == 8; }));
    listener.reset();
    client.reset();
    server.reset();
    payloads = std::move(receiver.payloads);
    credits = std::move(receiver.credits);
    EXPECT_EQ(connection->Send(Text("late")).code(), Code::kUnavailable);
  }
  ASSERT_EQ(payloads.size(), 8u);
  for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(SameBytes(payloads[i], Pattern(i, 100000 * i + 10)));
  credits.clear();
}

// --- Lanes ---

TEST_P(TransportConformance, ControlIsQuickWhileBulkIsStuckAndWhileItFlows) {
  ASSERT_NO_FATAL_FAILURE(Listen());
  Recorder bulk_side, control_side;
  auto bulk = Connect(&bulk_side);
  ASSERT_TRUE(RunUntil([&] { return accepted_.size() == 1; }));
  auto control = Connect(&control_side);
  const Buffer payload = Pattern(1, 1u << 20);
  size_t bulk_frames = 0;
  server_side_.on_frame = [&](Connection& connection, const Received& received) {
    if (received.header.text() == "ping") {
      EXPECT_TRUE(connection.Send(Text("pong")).ok());
    } else {
      ++bulk_frames;
    }
  };
  std::vector<double> stuck_ms, flowing_ms;
  Time asked;
  std::vector<double>* times = &stuck_ms;
  control_side.on_frame = [&](Connection& connection, const Received&) {
    times->push_back(Milliseconds(SteadyNow() - asked));
    asked = SteadyNow();
    EXPECT_TRUE(connection.Send(Text("ping")).ok());
  };
  server_side_.hold_credits = true;
  for (int i = 0; i < 128; ++i) ASSERT_TRUE(Send(*bulk, Text("bulk", payload)).ok());
  asked = SteadyNow();
  ASSERT_TRUE(Send(*control, Text("ping")).ok());
  ASSERT_TRUE(RunUntil([&] { return stuck_ms.size() >= 100 && bulk_frames >= 64; }));
  EXPECT_EQ(bulk_frames, 64u) << "the window";

  server_side_.hold_credits = false;
  server_side_.credits.clear();
  times = &flowing_ms;
  const auto refill = loop_.AddIdle([&] {
    while (bulk->queued_bytes() < (32u << 20)) EXPECT_TRUE(bulk->Send(Text("bulk", payload)).ok());
    return false;
  });
  ASSERT_TRUE(RunUntil([&] { return flowing_ms.size() >= 100 && bulk_frames >= 300; }));
  loop_.RemoveIdle(refill);
  for (auto* sample : {&stuck_ms, &flowing_ms}) std::sort(sample->begin(), sample->end());
  std::printf(
      "%s: control round trip p50 / max: %.3f / %.1f ms beside stuck bulk, %.3f / %.1f ms beside flowing bulk\n",
      GetParam().scheme.c_str(), stuck_ms[stuck_ms.size() / 2], stuck_ms.back(), flowing_ms[flowing_ms.size() / 2],
      flowing_ms.back());
  // Behind the bulk's queue a ping would wait for 32 MB and more each time.
  EXPECT_LT(stuck_ms[stuck_ms.size() / 2], 50);
  EXPECT_LT(flowing_ms[flowing_ms.size() / 2], 50);
}

// --- Closing ---

TEST_P(TransportConformance, ACloseIsSeenOnceInOrderAndOnlyByTheOtherEnd) {
  ASSERT_NO_FATAL_FAILURE(ListenAndConnect());
  Guarded([&] { connection_->Close(); });
  Guarded([&] { connection_->Close(); });
  EXPECT_EQ(Send(*connection_, Text("late")).code(), Code::kUnavailable);
  ASSERT_TRUE(RunUntil([&] { return server_side_.closed > 0; }));
  EXPECT_TRUE(server_side_.why.ok()) << server_side_.why.ToString();
  EXPECT_EQ(Send(*accepted_[0], Text("late")).code(), Code::kUnavailable);
  RunFor(std::chrono::milliseconds(100));
  EXPECT_EQ(server_side_.closed, 1);
  EXPECT_EQ(client_side_.closed, 0);
}

TEST_P(TransportConformance, TheAcceptingEndClosesJustAsWell) {
  ASSERT_NO_FATAL_FAILURE(ListenAndConnect());
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(Send(*accepted_[0], Text(std::to_string(i), Pattern(i, 100000))).ok());
  Guarded([&] { accepted_[0]->Close(); });
  ASSERT_TRUE(RunUntil([&] { return client_side_.closed > 0; }));
  EXPECT_EQ(client_side_.headers.size(), 50u);
  EXPECT_TRUE(client_side_.why.ok()) << client_side_.why.ToString();
  RunFor(std::chrono::milliseconds(50));
  EXPECT_EQ(client_side_.closed, 1);
  EXPECT_EQ(server_side_.closed, 0);
}

TEST_P(TransportConformance, CloseFlushesWhatIsQueuedEvenBeforeTheConnectionIsUp) {
  ASSERT_NO_FATAL_FAILURE(Listen());
  connection_ = Connect(&client_side_);
  const Buffer payload = Pattern(1, 1u << 20);
  for (int i = 0; i < 60; ++i) ASSERT_TRUE(Send(*connection_, Text(std::to_string(i), payload)).ok());
  Guarded([&] { connection_->Close(); });
  ASSERT_TRUE(RunUntil([&] { return server_side_.closed > 0; }));
  ASSERT_EQ(server_side_.headers.size(), 60u);
  for (int i = 0; i < 60; ++i) EXPECT_EQ(server_side_.headers[i], std::to_string(i));
  EXPECT_TRUE(server_side_.why.ok()) << server_side_.why.ToString();
}

TEST_P(TransportConformance, BothEndsMayCloseAtOnce) {
  ASSERT_NO_FATAL_FAILURE(ListenAndConnect());
  connection_->Close();
  accepted_[0]->Close();
  RunFor(std::chrono::milliseconds(50));
  EXPECT_EQ(server_side_.closed + client_side_.closed, 0);
}

TEST_P(TransportConformance, AHandlerMayCloseInsideItsCallbackAndHearsNothingMore) {
  ASSERT_NO_FATAL_FAILURE(ListenAndConnect());
  server_side_.on_frame = [&](Connection& connection, const Received&) { connection.Close(); };
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(Send(*connection_, Text("x", Pattern(i, 2000))).ok());
  ASSERT_TRUE(RunUntil([&] { return client_side_.closed > 0; }));
  EXPECT_EQ(server_side_.headers.size(), 1u);
  EXPECT_EQ(server_side_.closed, 0);
  EXPECT_EQ(server_->counters().refused_frames, 0u) << "what was under way is no violation";
}

TEST_P(TransportConformance, AListenerMayEndInsideACallbackAndClosesItsConnections) {
  ASSERT_NO_FATAL_FAILURE(ListenAndConnect());
  Recorder other;
  auto second = Connect(&other);
  server_side_.on_frame = [&](Connection&, const Received&) { listener_.reset(); };
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(Send(*connection_, Text("x")).ok());
  ASSERT_TRUE(RunUntil([&] { return client_side_.closed == 1 && other.closed == 1; }));
  EXPECT_EQ(server_side_.headers.size(), 1u);
  EXPECT_EQ(server_side_.closed, 0);
  EXPECT_EQ(Send(*accepted_[0], Text("late")).code(), Code::kUnavailable);
}

TEST_P(TransportConformance, AConnectionThatNobodyTakesIsRefused) {
  auto listener = server_->Listen(GetParam().fresh_address(), [](auto) { return nullptr; }).value();
  auto connection = client_->Connect(listener->address(), &client_side_, kDeadline).value();
  ASSERT_TRUE(RunUntil([&] { return client_side_.closed > 0; }));
  EXPECT_EQ(client_side_.why.code(), Code::kUnavailable);
  EXPECT_EQ(client_side_.closed, 1);
}

TEST_P(TransportConformance, DestroyingAContextUnderLoadIsCleanAndSilent) {
  for (const bool destroy_server : {true, false}) {
    SCOPED_TRACE(destroy_server ? "server" : "client");
    Recorder near, far;
    auto server = MakeContext(loop_);
    auto client = MakeContext(loop_);
    std::vector<std::shared_ptr<Connection>> accepted, connected;
    Recorder& server_handler = destroy_server ? near : far;
    Recorder& client_handler = destroy_server ? far : near;
    auto listener = server
                        ->Listen(GetParam().fresh_address(),
                                 [&](auto connection) {
                                   accepted.push_back(connection);
                                   return &server_handler;
                                 })
                        .value();
    for (int i = 0; i < 5; ++i) {
      connected.push_back(client->Connect(listener->address(), &client_handler, kDeadline).value());
    }
    ASSERT_TRUE(RunUntil([&] { return accepted.size() == 5; }));
    const Buffer payload = Pattern(1, 1u << 20);
    near.hold_credits = true;
    for (int i = 0; i < 100; ++i) {
      for (auto& connection : connected) ASSERT_TRUE(connection->Send(Text("c", payload)).ok());
      for (auto& connection : accepted) ASSERT_TRUE(connection->Send(Text("s", payload)).ok());
    }
    ASSERT_TRUE(RunUntil([&] { return near.headers.size() > 10 && far.headers.size() > 10; }));
    const size_t frames = near.headers.size();
    (destroy_server ? server : client).reset();
    ASSERT_TRUE(RunUntil([&] { return far.closed == 5; }));
    EXPECT_EQ(near.headers.size(), frames);
    EXPECT_EQ(near.closed, 0);
    near.credits.clear();
  }
}

TEST_P(TransportConformance, AHundredConnectionsOpenTalkAndClose) {
  ASSERT_NO_FATAL_FAILURE(Listen());
  for (int round = 0; round < 2; ++round) {
    std::vector<std::unique_ptr<Recorder>> handlers;
    std::vector<std::shared_ptr<Connection>> connections;
    server_side_.on_frame = [](Connection& connection, const Received& received) {
      EXPECT_TRUE(connection.Send({received.header, received.payload}).ok());
    };
    for (int i = 0; i < 100; ++i) {
      handlers.push_back(std::make_unique<Recorder>());
      connections.push_back(Connect(handlers.back().get()));
      ASSERT_TRUE(Send(*connections.back(), Text(std::to_string(i), Pattern(i, 10000))).ok());
    }
    ASSERT_TRUE(RunUntil([&] {
      return std::all_of(handlers.begin(), handlers.end(), [](auto& one) { return one->headers.size() == 1; });
    }));
    for (int i = 0; i < 100; ++i) EXPECT_EQ(handlers[i]->headers[0], std::to_string(i)) << "answers were mixed up";
    for (auto& connection : connections) connection->Close();
    ASSERT_TRUE(RunUntil([&] { return server_side_.closed == 100 * (round + 1); }));
  }
  std::vector<uint64_t> ids;
  for (auto& connection : accepted_) ids.push_back(connection->id());
  std::sort(ids.begin(), ids.end());
  EXPECT_TRUE(std::adjacent_find(ids.begin(), ids.end()) == ids.end()) << "an id was used twice";
  EXPECT_EQ(server_->counters().accepted, 200u);
  EXPECT_EQ(server_->counters().failed_handshakes, 0u);
}

// --- Addresses ---

TEST_P(TransportConformance, ConnectingToADeadAddressFailsOnceInTimeAndNamesIt) {
  ASSERT_NO_FATAL_FAILURE(Listen());
  const std::string address = listener_->address();
  listener_.reset();
  const Time start = SteadyNow();
  auto made = Guarded([&] { return client_->Connect(address, &client_side_, std::chrono::seconds(2)); });
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  ASSERT_TRUE((*made)->Send(Text("queued for nobody")).ok());
  ASSERT_TRUE(RunUntil([&] { return client_side_.closed > 0; }));
  EXPECT_LT(Seconds(SteadyNow() - start), 4);
  EXPECT_EQ(client_side_.why.code(), Code::kUnavailable);
  EXPECT_THAT(client_side_.why.message(), testing::HasSubstr(address));
  EXPECT_EQ((*made)->Send(Text("late")).code(), Code::kUnavailable);
  RunFor(std::chrono::milliseconds(50));
  EXPECT_EQ(client_side_.closed, 1);
}

TEST_P(TransportConformance, OneAddressHasOneListenerAndIsFreeAgainAfterIt) {
  ASSERT_NO_FATAL_FAILURE(ListenAndConnect());
  const std::string address = listener_->address();
  for (Context* context : {server_.get(), client_.get()}) {
    const auto second = context->Listen(address, Accepting());
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.status().code(), Code::kUnavailable) << second.status().ToString();
    EXPECT_THAT(second.status().message(),
                testing::AllOf(testing::HasSubstr("address taken"), testing::HasSubstr(address)));
  }
  ASSERT_TRUE(Send(*connection_, Text("still here")).ok());
  ASSERT_TRUE(RunUntil([&] { return server_side_.headers.size() == 1; })) << "the first listener was harmed";
  for (int i = 0; i < 5; ++i) {
    listener_.reset();
    auto again = server_->Listen(address, Accepting());
    ASSERT_TRUE(again.ok()) << again.status().ToString();
    listener_ = std::move(again).value();
  }
}

// --- Death of the other process ---

TEST_P(TransportConformance, AKilledPeerIsSeenAtOnce) {
  if (!GetParam().across_processes) GTEST_SKIP() << "one process only";
  ASSERT_NO_FATAL_FAILURE(Listen());
  PeerProcess peer(GetParam().peer_program, {"connect", listener_->address()});
  ASSERT_TRUE(RunUntil([&] { return server_side_.headers.size() == 1; }));
  const Time killed = SteadyNow();
  peer.Kill();
  ASSERT_TRUE(RunUntil([&] { return server_side_.closed > 0; }));
  const double ms = Milliseconds(SteadyNow() - killed);
  std::printf("%s: a killed client was seen after %.1f ms\n", GetParam().scheme.c_str(), ms);
  EXPECT_LT(ms, 1000);
  EXPECT_EQ(server_side_.why.code(), Code::kUnavailable);
}

TEST_P(TransportConformance, APeerKilledInTheMiddleOfAFloodIsSeenAfterItsLastFrame) {
  if (!GetParam().across_processes) GTEST_SKIP() << "one process only";
  ASSERT_NO_FATAL_FAILURE(Listen());
  for (int i = 1; i <= 3; ++i) {
    PeerProcess peer(GetParam().peer_program, {"flood", listener_->address()});
    server_side_.headers.clear();
    server_side_.closed = 0;
    ASSERT_TRUE(RunUntil([&] { return server_side_.headers.size() >= 500; }));
    const Time killed = SteadyNow();
    peer.Kill();
    ASSERT_TRUE(RunUntil([&] { return server_side_.closed > 0; }));
    EXPECT_LT(Milliseconds(SteadyNow() - killed), 3000);
    RunFor(std::chrono::milliseconds(30));
    EXPECT_EQ(server_side_.closed, 1);
    EXPECT_EQ(server_side_.why.code(), Code::kUnavailable);
    // The flood's frames carry their number; a hole would mean that something was lost before the end.
    for (size_t k = 0; k < server_side_.headers.size(); ++k) ASSERT_EQ(server_side_.headers[k], std::to_string(k));
  }
}

TEST_P(TransportConformance, AKilledListenerIsSeenAtOnceByItsClients) {
  if (!GetParam().across_processes) GTEST_SKIP() << "one process only";
  PeerProcess peer(GetParam().peer_program, {"listen", GetParam().fresh_address()});
  const std::string address = peer.ReadLine();
  ASSERT_FALSE(address.empty());
  std::vector<std::unique_ptr<Recorder>> handlers;
  std::vector<std::shared_ptr<Connection>> connections;
  for (int i = 0; i < 10; ++i) {
    handlers.push_back(std::make_unique<Recorder>());
    connections.push_back(client_->Connect(address, handlers.back().get(), kDeadline).value());
    ASSERT_TRUE(connections.back()->Send(Text("echo")).ok());
  }
  const auto all = [&](auto condition) {
    return RunUntil([&] { return std::all_of(handlers.begin(), handlers.end(), condition); });
  };
  ASSERT_TRUE(all([](auto& one) { return one->headers.size() == 1; }));
  const Time killed = SteadyNow();
  peer.Kill();
  ASSERT_TRUE(all([](auto& one) { return one->closed == 1; }));
  const double ms = Milliseconds(SteadyNow() - killed);
  std::printf("%s: a killed listener was seen by 10 clients after %.1f ms\n", GetParam().scheme.c_str(), ms);
  EXPECT_LT(ms, 1000);
  for (auto& one : handlers) EXPECT_EQ(one->why.code(), Code::kUnavailable);
}

}  // namespace everstep::transport
