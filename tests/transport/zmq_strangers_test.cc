// Bytes from outside: what raw ZeroMQ sockets and raw TCP sockets can do to a listener. In all cases the process lives,
// a well-behaved connection beside goes on, and a counter moves.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <zmq.hpp>

#include "base/random.h"
#include "tests/conformance/run_until.h"
#include "tests/support/seed.h"
#include "tests/transport/zmq_raw.h"
#include "transport/zmq/factory.h"
#include "transport/zmq/zmq_wire.h"

namespace everstep::transport::zeromq {
namespace {

using testing::HasSubstr;

// A DEALER in nobody's service.
class RawDealer {
 public:
  explicit RawDealer(const std::string& address) : socket_(context_, ::zmq::socket_type::dealer) {
    socket_.set(::zmq::sockopt::linger, 200);
    socket_.set(::zmq::sockopt::reconnect_ivl, -1);
    socket_.connect(address);
  }
  void Send(const Parts& parts) {
    for (size_t i = 0; i < parts.size(); ++i) {
      ::zmq::message_t message(parts[i].data(), parts[i].size());
      (void)socket_.send(message, i + 1 < parts.size() ? ::zmq::send_flags::sndmore : ::zmq::send_flags::none);
    }
  }
  // The head of the next message, empty when there is none yet.
  std::string Receive() {
    ::zmq::message_t head;
    if (!socket_.recv(head, ::zmq::recv_flags::dontwait)) return "";
    for (bool more = head.more(); more;) {
      ::zmq::message_t rest;
      (void)socket_.recv(rest);
      more = rest.more();
    }
    return head.to_string();
  }

 private:
  ::zmq::context_t context_;
  ::zmq::socket_t socket_;
};

class RawTcp {
 public:
  explicit RawTcp(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_port = htons(port);
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
  }
  RawTcp(RawTcp&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~RawTcp() {
    if (fd_ >= 0) close(fd_);
  }
  void Send(const std::string& bytes) { (void)send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT); }
  void HalfClose() { shutdown(fd_, SHUT_WR); }
  // Whether the other side has closed; reads away what it said.
  bool Closed() {
    char bytes[4096];
    while (true) {
      const ssize_t n = recv(fd_, bytes, sizeof bytes, MSG_DONTWAIT);
      if (n > 0) continue;
      return n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
    }
  }

 private:
  int fd_;
};

class ZmqStrangers : public testing::Test {
 protected:
  void Start(const Options& options) {
    options_ = options;
    context_ = MakeContext(loop_, options).value();
    listener_ = context_
                    ->Listen("tcp://127.0.0.1:0",
                             [this](auto connection) {
                               accepted_.push_back(connection);
                               return &server_;
                             })
                    .value();
    port_ = static_cast<uint16_t>(std::stoi(listener_->address().substr(listener_->address().rfind(':') + 1)));
    good_ = context_->Connect(listener_->address(), &client_, std::chrono::seconds(20)).value();
    ASSERT_TRUE(GoodOneWorks());
  }
  static Options Quick() {
    Options options;
    options.handshake_deadline = std::chrono::milliseconds(300);
    options.linger = std::chrono::milliseconds(200);
    return options;
  }
  bool RunUntil(const std::function<bool()>& done) { return test::RunUntil(loop_, done); }
  bool GoodOneWorks() {
    const int before = client_.frames;
    if (!good_->Send({Buffer::Copy("echo"), {}}).ok()) return false;
    return RunUntil([&] { return client_.frames > before; });
  }
  // The answers' kinds and values.
  std::optional<Prelude> Answer(RawDealer& raw) {
    std::string head;
    if (!RunUntil([&] { return !(head = raw.Receive()).empty(); })) return std::nullopt;
    const auto prelude = DecodePrelude(std::as_bytes(std::span(head)));
    return prelude.ok() ? std::optional(*prelude) : std::nullopt;
  }
  void ShakeHands(RawDealer& raw, uint64_t window = 1 << 20) {
    const size_t before = accepted_.size();
    raw.Send({Head(Kind::kHello, window)});
    const auto answer = Answer(raw);
    ASSERT_TRUE(answer.has_value());
    ASSERT_EQ(answer->kind, Kind::kWelcome);
    EXPECT_EQ(answer->value, options_.window_bytes);
    raw.Send({Head(Kind::kReady, 0)});
    ASSERT_TRUE(RunUntil([&] { return accepted_.size() == before + 1; }));
  }

  Loop loop_;
  Options options_;
  Recorder server_;
  Recorder client_;
  std::unique_ptr<Context> context_;
  std::unique_ptr<Listener> listener_;
  std::vector<std::shared_ptr<Connection>> accepted_;
  std::shared_ptr<Connection> good_;
  uint16_t port_ = 0;
};

TEST_F(ZmqStrangers, EveryViolationEndsItsConnectionAndNoOther) {
  Options options = Quick();
  options.window_bytes = 10000;
  ASSERT_NO_FATAL_FAILURE(Start(options));
  const std::string four(4, 'x');
  const std::vector<std::pair<const char*, std::vector<Parts>>> violations = {
      {"no prelude", {{"garbage"}}},
      {"an empty part", {{""}}},
      {"a truncated prelude", {{Head(Kind::kData, 4, "h").substr(0, 15), four}}},
      {"three parts", {{Head(Kind::kData, 4, "h"), four, four}}},
      {"no header", {{Head(Kind::kData, 4), four}}},
      {"a payload shorter than announced", {{Head(Kind::kData, 5, "h"), four}}},
      {"a payload longer than announced", {{Head(Kind::kData, 3, "h"), four}}},
      {"an announced payload that is missing", {{Head(Kind::kData, 4, "h")}}},
      {"an unannounced payload", {{Head(Kind::kData, 0, "h"), four}}},
      {"an empty second part", {{Head(Kind::kData, 0, "h"), ""}}},
      {"a payload on a credit", {{Head(Kind::kCredit, 0), four}}},
      {"credit for nothing", {{Head(Kind::kCredit, 1)}}},
      {"endless credit", {{Head(Kind::kCredit, UINT64_MAX)}}},
      {"more than the window",
       {{Head(Kind::kData, 9999, "h"), std::string(9999, 'x')}, {Head(Kind::kData, 4, "h"), four}}},
      {"a second hello", {{Head(Kind::kHello, 1)}}},
      {"a welcome", {{Head(Kind::kWelcome, 1)}}},
      {"a second ready", {{Head(Kind::kReady, 0)}}},
      {"another version", {{"EVT\x02" + Head(Kind::kData, 0, "h").substr(4)}}},
  };
  server_.hold_credits = true;
  for (const auto& [what, messages] : violations) {
    SCOPED_TRACE(what);
    const uint64_t refused = context_->counters().refused_frames;
    const size_t closed = server_.why.size();
    RawDealer raw(listener_->address());
    ASSERT_NO_FATAL_FAILURE(ShakeHands(raw));
    for (const Parts& message : messages) raw.Send(message);
    ASSERT_TRUE(RunUntil([&] { return server_.why.size() == closed + 1; }));
    EXPECT_EQ(server_.why.back().code(), Code::kCorrupt);
    EXPECT_THAT(server_.why.back().message(), HasSubstr("tcp://127.0.0.1:"));
    EXPECT_EQ(context_->counters().refused_frames, refused + 1);
    // The culprit is told. (Twice the same reason never comes; nothing else follows.)
    auto answer = Answer(raw);
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->kind, Kind::kClose);
    EXPECT_EQ(answer->value, static_cast<uint64_t>(Code::kCorrupt));
    EXPECT_TRUE(GoodOneWorks());
  }
}

TEST_F(ZmqStrangers, ViolationsOfTheHandshakeNeverBecomeConnections) {
  ASSERT_NO_FATAL_FAILURE(Start(Quick()));
  const std::vector<Parts> messages = {
      {"junk"},
      {Head(Kind::kReady, 0)},
      {Head(Kind::kData, 0, "h")},
      {Head(Kind::kHello, 0)},
      {Head(Kind::kHello, 9, "h")},
      {Head(Kind::kWelcome, 9)},
      {Head(Kind::kHello, 9), "payload"},
      {"a", "b", "c", "d", "e"},
      {""},
  };
  std::vector<std::unique_ptr<RawDealer>> raws;
  for (const Parts& message : messages) {
    raws.push_back(std::make_unique<RawDealer>(listener_->address()));
    raws.back()->Send(message);
  }
  ASSERT_TRUE(RunUntil([&] { return context_->counters().refused_frames >= messages.size(); }));
  // None of them leaves, so the deadline throws them out.
  ASSERT_TRUE(RunUntil([&] { return context_->counters().failed_handshakes >= messages.size(); }));
  EXPECT_EQ(accepted_.size(), 1u);
  EXPECT_TRUE(GoodOneWorks());
}

TEST_F(ZmqStrangers, AHelloWithoutASequelIsThrownOutAtTheDeadline) {
  ASSERT_NO_FATAL_FAILURE(Start(Quick()));
  RawDealer raw(listener_->address());
  raw.Send({Head(Kind::kHello, 1000)});
  ASSERT_TRUE(RunUntil([&] { return context_->counters().failed_handshakes == 1; }));
  EXPECT_EQ(accepted_.size(), 1u);
  EXPECT_TRUE(GoodOneWorks());
}

TEST_F(ZmqStrangers, HellosThatOutliveTheirSendersNeverBecomeConnections) {
  ASSERT_NO_FATAL_FAILURE(Start(Quick()));
  for (int i = 0; i < 50; ++i) {
    RawDealer raw(listener_->address());  // gone, descriptor and all, before anybody reads its hello
    raw.Send({Head(Kind::kHello, 1000)});
  }
  EXPECT_TRUE(GoodOneWorks());
  auto second = context_->Connect(listener_->address(), &client_, std::chrono::seconds(20)).value();
  ASSERT_TRUE(RunUntil([&] { return accepted_.size() == 2; }));
  ASSERT_TRUE(RunUntil([&] { return context_->counters().failed_handshakes >= 50; }));
  EXPECT_EQ(accepted_.size(), 2u);
  EXPECT_TRUE(server_.why.empty());
  EXPECT_TRUE(GoodOneWorks());
}

TEST_F(ZmqStrangers, RandomBytesOnTheTcpPortAreThrownOut) {
  ASSERT_NO_FATAL_FAILURE(Start(Quick()));
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  // How a ZMTP 3 peer begins, so that some get further than the first bytes.
  const std::string greeting = std::string("\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL", 16) + std::string(48, '\0');
  constexpr size_t kStrangers = 60;
  std::vector<RawTcp> strangers;
  for (size_t i = 0; i < kStrangers; ++i) {
    strangers.emplace_back(port_);
    std::string bytes = random.Chance(0.5) ? greeting.substr(0, random.Below(65)) : "";
    for (size_t n = random.Below(300); n > 0; --n) bytes += static_cast<char>(random.Next());
    strangers.back().Send(bytes);
    if (random.Chance(0.2)) strangers.back().HalfClose();
    if (i % 10 == 0) {
      ASSERT_TRUE(GoodOneWorks());
    }
  }
  ASSERT_TRUE(RunUntil([&] { return context_->counters().failed_handshakes >= kStrangers; }));
  for (RawTcp& stranger : strangers) EXPECT_TRUE(RunUntil([&] { return stranger.Closed(); }));
  EXPECT_EQ(accepted_.size(), 1u);
  EXPECT_TRUE(GoodOneWorks());
}

TEST_F(ZmqStrangers, RandomMessagesNeverHurt) {
  ASSERT_NO_FATAL_FAILURE(Start(Quick()));
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  const auto random_text = [&](size_t most) {
    std::string text(random.Below(most + 1), ' ');
    for (char& c : text) c = static_cast<char>(random.Next());
    return text;
  };
  for (int round = 0; round < 25; ++round) {
    RawDealer raw(listener_->address());
    if (random.Chance(0.7)) {
      ASSERT_NO_FATAL_FAILURE(ShakeHands(raw));
    }
    for (int i = 0; i < 12; ++i) {
      Parts message(1 + random.Below(3));
      for (std::string& part : message) part = random_text(100);
      if (random.Chance(0.8)) {
        message[0] = Head(static_cast<Kind>(random.Below(9)), random.Chance(0.5) ? random.Below(101) : random.Next(),
                          random_text(60));
        if (random.Chance(0.3)) message[0][random.Below(message[0].size())] ^= static_cast<char>(1 << random.Below(8));
        if (random.Chance(0.3)) message[0].resize(random.Below(message[0].size() + 1));
      }
      raw.Send(message);
    }
    ASSERT_TRUE(GoodOneWorks());
  }
  EXPECT_GT(context_->counters().refused_frames, 0u);
  ASSERT_TRUE(RunUntil([&] { return server_.why.size() + 1 == accepted_.size(); })) << "all but the good one are over";
  EXPECT_TRUE(GoodOneWorks());
}

TEST_F(ZmqStrangers, TheirNumberIsBounded) {
  Options options;
  options.max_pending = 8;
  options.handshake_deadline = std::chrono::seconds(60);
  ASSERT_NO_FATAL_FAILURE(Start(options));
  {
    std::vector<RawTcp> strangers;
    for (int i = 0; i < 20; ++i) strangers.emplace_back(port_);
    ASSERT_TRUE(RunUntil([&] { return context_->counters().failed_handshakes >= 12; }));
    EXPECT_TRUE(GoodOneWorks());
    EXPECT_EQ(context_->counters().failed_handshakes, 12u) << "eight may wait";
  }
  ASSERT_TRUE(RunUntil([&] { return context_->counters().failed_handshakes == 20; }));
  auto second = context_->Connect(listener_->address(), &client_, std::chrono::seconds(20)).value();
  EXPECT_TRUE(RunUntil([&] { return accepted_.size() == 2; })) << "room again once they are gone";
}

TEST_F(ZmqStrangers, AnOversizedFrameDropsItsConnection) {
  ASSERT_NO_FATAL_FAILURE(Start({}));
  RawDealer raw(listener_->address());
  ASSERT_NO_FATAL_FAILURE(ShakeHands(raw));
  raw.Send({Head(Kind::kData, limits::kMaxPayloadBytes + 1, "h"), std::string(limits::kMaxPayloadBytes + 1, 'x')});
  ASSERT_TRUE(RunUntil([&] { return server_.why.size() == 1; }));
  EXPECT_EQ(server_.frames, 1) << "the good one's";
  EXPECT_TRUE(GoodOneWorks());

  RawDealer second(listener_->address());
  ASSERT_NO_FATAL_FAILURE(ShakeHands(second));
  second.Send({Head(Kind::kData, 0, std::string(limits::kMaxHeaderBytes + 1, 'h'))});
  ASSERT_TRUE(RunUntil([&] { return server_.why.size() == 2; }));
  EXPECT_EQ(server_.why.back().code(), Code::kCorrupt);
  EXPECT_TRUE(GoodOneWorks());
}

TEST_F(ZmqStrangers, APeerThatStaysAfterItsConnectionWasClosedIsThrownOut) {
  ASSERT_NO_FATAL_FAILURE(Start(Quick()));
  RawDealer raw(listener_->address());
  ASSERT_NO_FATAL_FAILURE(ShakeHands(raw));
  accepted_[1]->Close();
  const auto answer = Answer(raw);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->kind, Kind::kClose);
  const uint64_t refused = context_->counters().refused_frames;
  raw.Send({Head(Kind::kData, 0, "still talking")});
  EXPECT_TRUE(GoodOneWorks());
  EXPECT_EQ(context_->counters().refused_frames, refused) << "it may not have known yet";
  // The raw end does not go by itself, so only the sweep makes the listener let go of the connection.
  EXPECT_TRUE(RunUntil([&] { return accepted_[1].use_count() == 1; })) << "the listener still keeps it";
}

TEST_F(ZmqStrangers, APeerOfAnotherVersionIsToldSo) {
  ASSERT_NO_FATAL_FAILURE(Start(Quick()));
  RawDealer raw(listener_->address());
  raw.Send({"EVT\x07" + Head(Kind::kHello, 100).substr(4)});
  const auto answer = Answer(raw);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->kind, Kind::kClose);
  EXPECT_EQ(answer->value, static_cast<uint64_t>(Code::kWrongVersion));
  EXPECT_EQ(context_->counters().refused_frames, 1u);
}

TEST_F(ZmqStrangers, AFrameLargerThanTheWindowPassesWhenNothingIsUnderWay) {
  Options options;
  options.window_bytes = 1000;
  ASSERT_NO_FATAL_FAILURE(Start(options));
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(good_->Send({Buffer::Copy("large"), MutableBuffer(100000).Freeze()}).ok());
    ASSERT_TRUE(good_->Send({Buffer::Copy("small"), MutableBuffer(900).Freeze()}).ok());
  }
  EXPECT_TRUE(RunUntil([&] { return server_.frames == 1 + 20; }));
}

}  // namespace
}  // namespace everstep::transport::zeromq
