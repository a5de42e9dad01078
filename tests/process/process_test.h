// The fixture of the process tests: a Cluster for each test, and Must(), which ends the test with the error's text.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "tests/support/cluster.h"

namespace everstep::test {

// GoogleTest reports what a test throws as its failure; so a helper that returns something can end the test too.
inline void Must(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}
template <typename T>
T Must(Result<T> result) {
  Must(result.status());
  return std::move(result).value();
}

class ProcessTest : public testing::Test {
 protected:
  void TearDown() override {
    if (!HasFailure()) return;
    cluster.Keep();
    std::cerr << "kept for a look: " << cluster.folder() << "\n";
  }

  // Servers with short leases: timeout-s 10, lease 1 s, unless `job` says otherwise.
  void StartServers(size_t count, Flags job) {
    const bool timed =
        std::any_of(job.begin(), job.end(), [](const auto& flag) { return flag.starts_with("--timeout-s="); });
    if (!timed) job.push_back("--timeout-s=10");
    job.push_back("--no-progress");
    Must(cluster.StartServers(count, std::move(job)));
  }
  Program& StartWorker(const std::string& name, Flags flags = {}) {
    return *Must(cluster.StartWorker(name, std::move(flags)));
  }

  // Everybody ended well; the records prove the chain and, with a dataset, that each sample was used once.
  void ExpectCleanEnd(uint64_t dataset = 0, uint64_t epochs = 1, bool sync = true) {
    Must(cluster.WaitForCleanEnd());
    EXPECT_EQ(cluster.report().at("state"), "finished");
    Must(CheckChain(cluster.commits(), sync));
    if (dataset > 0) Must(CheckLedger(cluster.commits(), dataset, epochs));
  }

  Cluster cluster;
};

}  // namespace everstep::test
