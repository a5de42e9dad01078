// Addresses of the ZeroMQ backend: what is advertised, what is refused, and which files are left.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/file.h"
#include "tests/conformance/run_until.h"
#include "tests/support/temp_dir.h"
#include "transport/zmq/factory.h"

namespace everstep::transport::zeromq {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;

class Quiet : public ConnectionHandler {
 public:
  void OnFrame(Connection& connection, Received received) override {
    ++frames;
    if (received.header.text() == "echo") (void)connection.Send({Buffer::Copy("back"), {}});
  }
  void OnClosed(Connection&, const Status&) override { ++closed; }
  int frames = 0;
  int closed = 0;
};

class ZmqAddress : public testing::Test {
 protected:
  Result<std::unique_ptr<Listener>> Listen(const std::string& address) {
    return context_->Listen(address, [this](auto) { return &server_; });
  }
  // Whether somebody answers there.
  bool Answers(const std::string& address) {
    Quiet client;
    auto connection = context_->Connect(address, &client, std::chrono::seconds(5));
    if (!connection.ok()) return false;
    EXPECT_TRUE((*connection)->Send({Buffer::Copy("echo"), {}}).ok());
    const bool answered = test::RunUntil(loop_, [&] { return client.frames + client.closed > 0; }) && client.frames > 0;
    (*connection)->Close();
    return answered;
  }

  test::TempDir folder_;
  Loop loop_;
  Quiet server_;
  std::unique_ptr<Context> context_ = MakeContext(loop_, {}).value();
};

TEST_F(ZmqAddress, TheHostIsAdvertisedAsGivenWithTheRealPort) {
  for (const std::string host : {"127.0.0.1", "localhost"}) {
    for (const std::string port : {"0", "*"}) {
      auto listener = Listen("tcp://" + host + ":" + port);
      ASSERT_TRUE(listener.ok()) << listener.status().ToString();
      EXPECT_THAT((*listener)->address(), MatchesRegex("tcp://" + host + ":[1-9][0-9]*"));
      EXPECT_TRUE(Answers((*listener)->address()));
    }
  }
  auto everywhere = Listen("tcp://*:0");
  ASSERT_TRUE(everywhere.ok()) << everywhere.status().ToString();
  EXPECT_THAT((*everywhere)->address(), testing::StartsWith("tcp://*:"));
  EXPECT_TRUE(Answers("tcp://127.0.0.1" + (*everywhere)->address().substr(7)));
}

TEST_F(ZmqAddress, Ipv6LiteralsWork) {
  auto listener = Listen("tcp://[::1]:0");
  if (!listener.ok()) GTEST_SKIP() << "no IPv6 here: " << listener.status().ToString();
  EXPECT_THAT((*listener)->address(), testing::StartsWith("tcp://[::1]:"));
  EXPECT_TRUE(Answers((*listener)->address()));
}

TEST_F(ZmqAddress, SenselessAddressesAreRefusedByName) {
  for (const std::string bad :
       {"tcp://127.0.0.1", "tcp://:70", "tcp://127.0.0.1:x", "tcp://127.0.0.1:70000", "tcp://127.0.0.1:-1", "ipc://*",
        "tcp://no-such-host.invalid:0", "tcp://203.0.113.1:0", "tcp://a b:1", "tcp://a;b:1"}) {
    const auto listener = Listen(bad);
    EXPECT_EQ(listener.status().code(), Code::kInvalidArgument) << bad << ": " << listener.status().ToString();
    EXPECT_THAT(listener.status().message(), HasSubstr(bad));
  }
  const std::string too_long = "ipc://" + std::string(200, 'x');
  for (const std::string& bad :
       std::vector<std::string>{"tcp://127.0.0.1", "tcp://127.0.0.1:0", "tcp://*:70", "tcp://127.0.0.1:*", too_long}) {
    const auto connection = context_->Connect(bad, &server_, std::chrono::seconds(1));
    EXPECT_EQ(connection.status().code(), Code::kInvalidArgument) << bad;
    EXPECT_THAT(connection.status().message(), HasSubstr(bad));
  }
  EXPECT_EQ(Listen(too_long).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Listen("ipc:///no/such/folder/socket").status().code(), Code::kInvalidArgument);
}

TEST_F(ZmqAddress, AnIpcSocketFileGoesWithItsListener) {
  const std::string path = folder_ / "s";
  auto listener = Listen("ipc://" + path);
  ASSERT_TRUE(listener.ok()) << listener.status().ToString();
  EXPECT_TRUE(FileExists(path));
  EXPECT_TRUE(Answers("ipc://" + path));
  listener->reset();
  EXPECT_FALSE(FileExists(path));
}

TEST_F(ZmqAddress, AnIpcSocketFileGoesWithItsContext) {
  const std::string path = folder_ / "s";
  auto listener = Listen("ipc://" + path);
  ASSERT_TRUE(listener.ok());
  context_.reset();
  EXPECT_FALSE(FileExists(path));
}

TEST_F(ZmqAddress, ASocketFileOfADeadProcessIsReused) {
  const std::string path = folder_ / "stale";
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::copy(path.begin(), path.end(), name.sun_path);
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  EXPECT_EQ(Listen("ipc://" + path).status().code(), Code::kUnavailable) << "its owner is alive";
  close(fd);
  ASSERT_TRUE(FileExists(path));
  auto listener = Listen("ipc://" + path);
  ASSERT_TRUE(listener.ok()) << listener.status().ToString();
  EXPECT_TRUE(Answers("ipc://" + path));
}

TEST_F(ZmqAddress, AnIpcPathThatIsSomethingElseIsLeftAlone) {
  const std::string path = folder_ / "precious";
  ASSERT_TRUE(WriteFileDurably(path, "data").ok());
  const auto listener = Listen("ipc://" + path);
  EXPECT_EQ(listener.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(listener.status().message(), HasSubstr(path));
  EXPECT_EQ(*ReadFile(path), "data");
}

TEST_F(ZmqAddress, ASocketFileThatSomebodyElsePutThereIsNotRemoved) {
  const std::string path = folder_ / "s";
  auto listener = Listen("ipc://" + path);
  ASSERT_TRUE(listener.ok());
  ASSERT_EQ(unlink(path.c_str()), 0);
  ASSERT_TRUE(WriteFileDurably(path, "new owner").ok());
  listener->reset();
  EXPECT_TRUE(FileExists(path));
}

TEST_F(ZmqAddress, AbstractIpcNamesWork) {
  const std::string name = "ipc://@everstep-test-" + std::to_string(getpid());
  auto abstract = Listen(name);
  ASSERT_TRUE(abstract.ok()) << abstract.status().ToString();
  EXPECT_TRUE(Answers(name));
  EXPECT_EQ(Listen(name).status().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace everstep::transport::zeromq
