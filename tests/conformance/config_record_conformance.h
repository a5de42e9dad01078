// What every store of the configuration record must do (rule R1), as a suite over its maker. A store instantiates it:
//
//   INSTANTIATE_TEST_SUITE_P(File, ConfigRecordConformance, testing::Values(ConfigRecordStore{"File", MakeIt, true}));
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "ps/config_record.h"
#include "tests/support/temp_dir.h"

namespace everstep::test {

struct ConfigRecordStore {
  std::string name;
  // Another door to the same record, as another process would open it. `place` is an empty folder of the test's own.
  std::function<std::unique_ptr<ConfigRecord>(const std::string& place)> open;
  // Whether what one door wrote is seen through another.
  bool shared = false;
};

inline Configuration ConfigurationAt(uint64_t ballot, uint64_t holder = 1) {
  Configuration c;
  c.ballot = {ballot};
  c.job = {0xabc};
  c.holder = {holder};
  c.holder_address = "tcp://holder" + std::to_string(holder);
  c.spec = {{{"w", {100}, DType::kFloat32, Role::kTrainable}, {"n", {}, DType::kInt64, Role::kBuffer}}};
  c.map = {{ballot}, c.spec.hash(), 64, {{{0}, {11}, "tcp://a:1"}, {{1}, {12}, "tcp://b:2"}}, {{0, 1}, {1, 0}}};
  c.dataset_size = 60000;
  return c;
}

class ConfigRecordConformance : public testing::TestWithParam<ConfigRecordStore> {
 protected:
  TempDir place_;
  std::unique_ptr<ConfigRecord> record_ = GetParam().open(place_.path());

  std::optional<Configuration> Read() {
    const auto read = record_->Read();
    EXPECT_TRUE(read.ok()) << read.status().ToString();
    return read.ok() ? *read : std::nullopt;
  }
};

TEST_P(ConfigRecordConformance, IsEmptyUntilItIsWritten) { EXPECT_EQ(Read(), std::nullopt); }

TEST_P(ConfigRecordConformance, WhatWasWrittenIsRead) {
  ASSERT_TRUE(record_->CompareAndSwap({0}, ConfigurationAt(1)).ok());
  EXPECT_EQ(Read(), ConfigurationAt(1));
  ASSERT_TRUE(record_->CompareAndSwap({1}, ConfigurationAt(2, 7)).ok());
  EXPECT_EQ(Read(), ConfigurationAt(2, 7));
}

TEST_P(ConfigRecordConformance, WhoComesLateIsToldTheNewerBallot) {
  ASSERT_TRUE(record_->CompareAndSwap({0}, ConfigurationAt(4)).ok());
  for (const uint64_t expected : {0, 3}) {
    const Status late = record_->CompareAndSwap({expected}, ConfigurationAt(expected + 1, 9));
    EXPECT_EQ(late.code(), Code::kStale);
    EXPECT_NE(late.message().find("ballot 4"), std::string::npos) << late.message();
  }
  EXPECT_EQ(record_->CompareAndSwap({5}, ConfigurationAt(6)).code(), Code::kStale);  // a ballot that never was
  EXPECT_EQ(Read(), ConfigurationAt(4));
}

TEST_P(ConfigRecordConformance, TheSameChangeAgainIsFine) {
  // A writer that does not know whether its change got through asks again.
  ASSERT_TRUE(record_->CompareAndSwap({0}, ConfigurationAt(1)).ok());
  EXPECT_TRUE(record_->CompareAndSwap({0}, ConfigurationAt(1)).ok());
  // Another holder's change to the same ballot is not the same change.
  EXPECT_EQ(record_->CompareAndSwap({0}, ConfigurationAt(1, 2)).code(), Code::kStale);
  EXPECT_EQ(Read(), ConfigurationAt(1));
}

TEST_P(ConfigRecordConformance, WhatWasClearedWasNeverWritten) {
  EXPECT_TRUE(record_->Clear().ok());  // nothing there
  ASSERT_TRUE(record_->CompareAndSwap({0}, ConfigurationAt(7)).ok());
  EXPECT_TRUE(record_->Clear().ok());
  EXPECT_EQ(Read(), std::nullopt);
  EXPECT_TRUE(record_->CompareAndSwap({0}, ConfigurationAt(1)).ok());
}

// Any number of writers race for each ballot: exactly one of them wins it.
TEST_P(ConfigRecordConformance, OneWriterWinsEachBallot) {
  constexpr uint64_t kWriters = 4;
  constexpr uint64_t kBallots = 25;
  std::vector<std::unique_ptr<ConfigRecord>> doors;
  for (uint64_t w = 0; w < kWriters && GetParam().shared; ++w) doors.push_back(GetParam().open(place_.path()));
  std::vector<std::vector<uint64_t>> won(kWriters);
  std::vector<std::thread> threads;
  for (uint64_t w = 0; w < kWriters; ++w) {
    threads.emplace_back([&, w] {
      ConfigRecord& door = GetParam().shared ? *doors[w] : *record_;
      for (uint64_t b = 0; b < kBallots; ++b) {
        const Status status = door.CompareAndSwap({b}, ConfigurationAt(b + 1, 100 + w));
        if (status.ok()) won[w].push_back(b + 1);
        if (status.code() != Code::kOk && status.code() != Code::kStale) ADD_FAILURE() << status.ToString();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<int> winners(kBallots + 1);
  for (const auto& mine : won) {
    for (uint64_t b : mine) ++winners[b];
  }
  EXPECT_EQ(Read()->ballot, Ballot{kBallots});
  for (uint64_t b = 1; b <= kBallots; ++b) EXPECT_EQ(winners[b], 1) << "ballot " << b;
}

}  // namespace everstep::test
