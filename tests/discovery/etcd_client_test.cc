#include "discovery/etcd_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/random.h"
#include "tests/support/etcd.h"
#include "tests/support/seed.h"

namespace everstep::test {
namespace {

using testing::HasSubstr;

class EtcdClientTest : public testing::Test {
 protected:
  std::optional<EtcdClient::Entry> Get(const std::string& key) { return client_->Get(key).value(); }

  std::unique_ptr<Etcd> etcd_ = Etcd::Start().value();
  std::unique_ptr<EtcdClient> client_ = etcd_->Client();
};

TEST_F(EtcdClientTest, WhatIsPutIsReadWhateverItsBytes) {
  EXPECT_FALSE(Get("/a/x"));
  const uint64_t seed = Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  for (size_t size = 0; size < 70; ++size) {
    std::string value;
    while (value.size() < size) value += static_cast<char>(random.Below(256));
    ASSERT_TRUE(client_->Put("/a/x", value).ok());
    ASSERT_EQ(Get("/a/x")->value, value);
  }
  EXPECT_GT(Get("/a/x")->revision, 0u);
  ASSERT_TRUE(client_->Delete("/a/x").ok());
  EXPECT_FALSE(Get("/a/x"));
}

TEST_F(EtcdClientTest, ListsWhatBeginsWithThePrefixAlone) {
  for (const char* key : {"/j/servers/2", "/j/servers/1", "/j/serverz", "/k/servers/1"}) {
    ASSERT_TRUE(client_->Put(key, key).ok());
  }
  const auto entries = client_->List("/j/servers/").value();
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].key, "/j/servers/1");
  EXPECT_EQ(entries[1].value, "/j/servers/2");
  EXPECT_TRUE(client_->List("/nothing/").value().empty());
}

TEST_F(EtcdClientTest, PutIfIsACompareAndSwap) {
  EXPECT_TRUE(client_->PutIf("/k", "first", 0).value());
  EXPECT_FALSE(client_->PutIf("/k", "second", 0).value());
  const uint64_t revision = Get("/k")->revision;
  EXPECT_TRUE(client_->PutIf("/k", "second", revision).value());
  EXPECT_FALSE(client_->PutIf("/k", "third", revision).value());
  EXPECT_EQ(Get("/k")->value, "second");
}

TEST_F(EtcdClientTest, WhatIsBoundToALeaseGoesWithIt) {
  const auto lease = client_->Grant(std::chrono::seconds(60)).value();
  ASSERT_TRUE(client_->Put("/bound", "x", lease).ok());
  EXPECT_TRUE(client_->KeepAlive(lease).value());
  ASSERT_TRUE(client_->Revoke(lease).ok());
  EXPECT_FALSE(Get("/bound"));
  EXPECT_FALSE(client_->KeepAlive(lease).value());
}

TEST_F(EtcdClientTest, SilenceIsATypedErrorWithinTheTimeout) {
  etcd_->Freeze();
  const Time begin = SteadyNow();
  const Status status = client_->Get("/k").status();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr(etcd_->url()));
  EXPECT_LT(SteadyNow() - begin, std::chrono::seconds(10));
  etcd_->Thaw();
  EXPECT_TRUE(client_->Get("/k").ok());
}

TEST_F(EtcdClientTest, AnotherEndpointAnswersForOneThatIsGone) {
  const auto client = EtcdClient::Make("http://127.0.0.1:1," + etcd_->url()).value();
  EXPECT_TRUE(client->PutIf("/k", "x", 0).value());
  EXPECT_EQ(client->Get("/k").value()->value, "x");
}

TEST_F(EtcdClientTest, AfterARestartTheSameClientGoesOn) {
  ASSERT_TRUE(client_->Put("/k", "kept").ok());
  etcd_->Kill();
  EXPECT_EQ(client_->Get("/k").status().code(), Code::kUnavailable);
  ASSERT_TRUE(etcd_->Restart().ok());
  EXPECT_EQ(Get("/k")->value, "kept");
}

TEST(EtcdAddressTest, OthersAreRefusedWithWhatIsWanted) {
  for (const char* url : {"", "127.0.0.1:2379", "http://", "http://host", "http://host:", "http://host:x",
                          "tcp://host:1", "http://host:1/path", "http://a:1,", ",http://a:1", "http://:1"}) {
    const Status status = EtcdClient::Make(url).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << url;
    EXPECT_THAT(status.message(), HasSubstr("http[s]://HOST:PORT")) << url;
  }
  EXPECT_TRUE(EtcdClient::Make("https://etcd.example:2379,http://b:1").ok());
}

}  // namespace
}  // namespace everstep::test
