#include "ps/etcd_record.h"

#include <gtest/gtest.h>

#include "discovery/job_keys.h"
#include "tests/conformance/config_record_conformance.h"
#include "tests/support/etcd.h"

namespace everstep::test {
namespace {

// One etcd for all: each test has a job of its own, as jobs share an etcd.
Etcd& SharedEtcd() {
  static Etcd& etcd = *Etcd::Start().value().release();
  return etcd;
}

INSTANTIATE_TEST_SUITE_P(
    Etcd, ConfigRecordConformance,
    testing::Values(ConfigRecordStore{
        "Etcd", [](const std::string& place) { return MakeEtcdRecord(SharedEtcd().Client(), place); }, true}),
    [](const auto& store) { return store.param.name; });

TEST(EtcdRecord, TwoJobsDoNotMeet) {
  const auto a = MakeEtcdRecord(SharedEtcd().Client(), "job-a");
  const auto b = MakeEtcdRecord(SharedEtcd().Client(), "job-b");
  ASSERT_TRUE(a->CompareAndSwap({0}, ConfigurationAt(1, 5)).ok());
  EXPECT_EQ(b->Read().value(), std::nullopt);
  ASSERT_TRUE(b->CompareAndSwap({0}, ConfigurationAt(3, 6)).ok());
  EXPECT_EQ(a->Read().value(), ConfigurationAt(1, 5));
}

TEST(EtcdRecord, Case31_ADamagedRecordIsAnErrorThatNamesItAndIsNotOverwritten) {
  const auto client = SharedEtcd().Client();
  const auto record = MakeEtcdRecord(SharedEtcd().Client(), "damaged");
  ASSERT_TRUE(client->Put(ConfigurationKey("damaged"), "not a record").ok());
  EXPECT_EQ(record->Read().status().code(), Code::kCorrupt);
  EXPECT_NE(record->Read().status().message().find(ConfigurationKey("damaged")), std::string::npos);
  EXPECT_EQ(record->CompareAndSwap({0}, ConfigurationAt(1)).code(), Code::kCorrupt);
  EXPECT_EQ(client->Get(ConfigurationKey("damaged")).value()->value, "not a record");
}

TEST(EtcdRecord, SilenceLeavesTheOutcomeOpen) {
  const auto etcd = Etcd::Start().value();
  const auto record = MakeEtcdRecord(etcd->Client(), "j");
  ASSERT_TRUE(record->CompareAndSwap({0}, ConfigurationAt(1)).ok());
  etcd->Freeze();
  const Status status = record->CompareAndSwap({1}, ConfigurationAt(2));
  EXPECT_EQ(status.code(), Code::kUnavailable) << status.ToString();
  etcd->Thaw();
  EXPECT_TRUE(record->CompareAndSwap({1}, ConfigurationAt(2)).ok());
}

}  // namespace
}  // namespace everstep::test
