// The connecting end against servers that are none: whatever they say, the connection closes once, with a reason.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <zmq.hpp>

#include "tests/conformance/run_until.h"
#include "tests/transport/zmq_raw.h"
#include "transport/zmq/factory.h"

namespace everstep::transport::zeromq {
namespace {

using testing::HasSubstr;

class ZmqBadServer : public testing::Test {
 protected:
  // Connects to `port`, and returns why the connection closed.
  Status ConnectTo(const std::string& address, Duration deadline, const std::function<void()>& serve) {
    auto connection = context_->Connect(address, &client_, deadline);
    EXPECT_TRUE(connection.ok());
    EXPECT_TRUE((*connection)->Send({Buffer::Copy("queued"), {}}).ok());
    EXPECT_TRUE(test::RunUntil(loop_, [&] {
      serve();
      return !client_.why.empty();
    }));
    EXPECT_EQ(client_.why.size(), 1u);
    EXPECT_EQ(client_.frames, 0);
    return client_.why.empty() ? Status::Ok() : client_.why[0];
  }

  Loop loop_;
  Recorder client_;
  std::unique_ptr<Context> context_ = MakeContext(loop_, {}).value();
};

// A TCP server that answers with `bytes`, or says nothing when there are none.
class RawTcpServer {
 public:
  RawTcpServer() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof name;
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&name), size), 0);
    EXPECT_EQ(listen(fd_, 8), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&name), &size), 0);
    address_ = "tcp://127.0.0.1:" + std::to_string(ntohs(name.sin_port));
  }
  ~RawTcpServer() {
    for (const int fd : accepted_) close(fd);
    close(fd_);
  }
  void Serve(const std::string& bytes, bool hang_up) {
    const int fd = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    (void)send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (hang_up) {
      close(fd);
    } else {
      accepted_.push_back(fd);
    }
  }
  const std::string& address() const { return address_; }

 private:
  int fd_;
  std::vector<int> accepted_;
  std::string address_;
};

TEST_F(ZmqBadServer, OneThatSaysNothingIsGivenUpAtTheDeadline) {
  RawTcpServer server;
  const Time start = SteadyNow();
  const Status why = ConnectTo(server.address(), std::chrono::milliseconds(300), [&] { server.Serve("", false); });
  EXPECT_EQ(why.code(), Code::kUnavailable);
  EXPECT_THAT(why.message(), testing::AllOf(HasSubstr(server.address()), HasSubstr("300 ms")));
  EXPECT_LT(Seconds(SteadyNow() - start), 3);
}

TEST_F(ZmqBadServer, OneThatSpeaksAnotherProtocolIsGivenUpAtOnce) {
  RawTcpServer server;
  const Status why = ConnectTo(server.address(), std::chrono::seconds(20),
                               [&] { server.Serve("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", true); });
  EXPECT_EQ(why.code(), Code::kUnavailable);
  EXPECT_THAT(why.message(), HasSubstr(server.address()));
}

TEST_F(ZmqBadServer, OneThatHangsUpIsGivenUpAtOnce) {
  RawTcpServer server;
  const Status why = ConnectTo(server.address(), std::chrono::seconds(20), [&] { server.Serve("", true); });
  EXPECT_EQ(why.code(), Code::kUnavailable);
}

class ZmqBadRouter : public ZmqBadServer {
 protected:
  // A ROUTER that answers each message with `answer`.
  Status ConnectToRouter(const Parts& answer) {
    ::zmq::context_t zmq;
    ::zmq::socket_t router(zmq, ::zmq::socket_type::router);
    router.set(::zmq::sockopt::linger, 0);
    router.bind("tcp://127.0.0.1:*");
    return ConnectTo(router.get(::zmq::sockopt::last_endpoint), std::chrono::seconds(20), [&] {
      ::zmq::message_t route;
      if (!router.recv(route, ::zmq::recv_flags::dontwait)) return;
      for (bool more = true; more;) {
        ::zmq::message_t rest;
        (void)router.recv(rest);
        more = rest.more();
      }
      (void)router.send(route, ::zmq::send_flags::sndmore);
      for (size_t i = 0; i < answer.size(); ++i) {
        ::zmq::message_t part(answer[i].data(), answer[i].size());
        (void)router.send(part, i + 1 < answer.size() ? ::zmq::send_flags::sndmore : ::zmq::send_flags::none);
      }
    });
  }
};

TEST_F(ZmqBadRouter, GarbageInsteadOfAWelcomeIsAViolation) {
  EXPECT_EQ(ConnectToRouter({"garbage", "and more"}).code(), Code::kCorrupt);
}
TEST_F(ZmqBadRouter, DataBeforeTheWelcomeIsAViolation) {
  EXPECT_EQ(ConnectToRouter({Head(Kind::kData, 1, "h"), "x"}).code(), Code::kCorrupt);
}
TEST_F(ZmqBadRouter, AWelcomeWithoutAWindowIsAViolation) {
  EXPECT_EQ(ConnectToRouter({Head(Kind::kWelcome, 0)}).code(), Code::kCorrupt);
}
TEST_F(ZmqBadRouter, AWelcomeAndAnotherIsAViolation) {
  EXPECT_EQ(ConnectToRouter({Head(Kind::kWelcome, 10)}).code(), Code::kCorrupt) << "the ready is answered by a second";
}
TEST_F(ZmqBadRouter, AnotherVersionIsNamed) {
  const Status why = ConnectToRouter({Head(Kind::kClose, static_cast<uint64_t>(Code::kWrongVersion), "version 9")});
  EXPECT_EQ(why.code(), Code::kWrongVersion);
  EXPECT_THAT(why.message(), HasSubstr("version 9"));
}
TEST_F(ZmqBadRouter, AnOrderlyCloseInsteadOfAWelcomeIsARefusal) {
  EXPECT_EQ(ConnectToRouter({Head(Kind::kClose, 0)}).code(), Code::kUnavailable);
}

}  // namespace
}  // namespace everstep::transport::zeromq
