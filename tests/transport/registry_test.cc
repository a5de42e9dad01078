#include "transport/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transport/tuning.h"

namespace everstep::transport {
namespace {

using testing::HasSubstr;

TEST(Registry, KnowsItsSchemesInOrder) {
  const std::vector<std::string> schemes = Schemes();
  EXPECT_TRUE(std::is_sorted(schemes.begin(), schemes.end()));
  EXPECT_THAT(schemes, testing::IsSupersetOf({"inproc", "ipc", "tcp"}));
}

TEST(Registry, TakesAddressesApart) {
  const auto parsed = ParseAddress("tcp://127.0.0.1:7070");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->scheme, "tcp");
  EXPECT_EQ(parsed->rest, "127.0.0.1:7070");
  EXPECT_EQ(ParseAddress("ipc:///a://b")->rest, "/a://b");
}

TEST(Registry, NamesTheKnownSchemesWhenThereIsNoneOrAnUnknownOne) {
  for (const char* bad : {"", "127.0.0.1:70", "://x", "http://x", "TCP://x:1", "tcp:/x:1"}) {
    const auto parsed = ParseAddress(bad);
    ASSERT_FALSE(parsed.ok()) << bad;
    EXPECT_EQ(parsed.status().code(), Code::kInvalidArgument);
    for (const std::string& scheme : Schemes()) EXPECT_THAT(parsed.status().message(), HasSubstr(scheme + "://"));
  }
  EXPECT_EQ(ParseAddress("tcp://").status().code(), Code::kInvalidArgument);
}

TEST(Registry, TellsLocalAddressesFromReachableOnes) {
  for (const char* local :
       {"tcp://127.0.0.1:1", "tcp://127.8.9.1:*", "tcp://localhost:0", "tcp://[::1]:5", "ipc:///tmp/x", "inproc://x"}) {
    EXPECT_TRUE(IsLocalOnly(local)) << local;
  }
  for (const char* reachable : {"tcp://*:1", "tcp://0.0.0.0:1", "tcp://10.0.0.1:1", "tcp://ps0:1", "tcp://[::]:1",
                                "tcp://127.0.0.1.example.org:1", "tcp://localhost.example.org:1", "nonsense", ""}) {
    EXPECT_FALSE(IsLocalOnly(reachable)) << reachable;
  }
}

class NoHandler : public ConnectionHandler {
  void OnFrame(Connection&, Received) override {}
  void OnClosed(Connection&, const Status&) override {}
};

TEST(Registry, RefusesUnknownSchemesAndCountsNothing) {
  Loop loop;
  NoHandler handler;
  auto context = MakeContext(loop);
  const auto listener = context->Listen("carrier-pigeon://roof", [&](auto) { return &handler; });
  EXPECT_EQ(listener.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(listener.status().message(), HasSubstr("tcp://"));
  EXPECT_EQ(context->Connect("carrier-pigeon://roof", &handler, std::chrono::seconds(1)).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(context->counters().accepted, 0u);
}

TEST(Tuning, MayBeCalledTwice) {
  for (int i = 0; i < 2; ++i) {
    TuneAllocator();
    RaiseDescriptorLimit();
  }
  EXPECT_EQ(MutableBuffer(20u << 20).size(), 20u << 20);
}

}  // namespace
}  // namespace everstep::transport
