// One Replica, driven by hand: a model of 48 floats in 3 chunks of 64 bytes, a coordinator, some workers.
#pragma once

#include <gtest/gtest.h>

#include "ps/replica.h"
#include "tests/support/mailbox.h"

namespace everstep::test {

class ReplicaTest : public testing::Test {
 protected:
  static constexpr JobUid kJob{77};
  static constexpr PeerId kCoordinator{1};
  static constexpr PeerId kWorker{2};
  static constexpr ServerId kSelf{0};
  static constexpr Incarnation kLife{500};
  static constexpr uint64_t kChunkBytes = 64;

  ReplicaTest() {
    job_.chunk_bytes = kChunkBytes;
    job_.name = "test";
  }

  static ParameterSpec Spec() { return {{{"w", {48}, DType::kFloat32, Role::kTrainable}}}; }

  // This server alone, or this one with chunk 0 and 1 and another with chunk 2.
  static ShardMap MapOf(uint64_t ballot, size_t servers) {
    ShardMap map{{ballot}, Spec().hash(), kChunkBytes, {{kSelf, kLife, "tcp://self"}}, {{0}, {0}, {0}}};
    if (servers == 2) {
      map.servers.push_back({{1}, {501}, "tcp://other"});
      map.replicas[2] = {1};
    }
    return map;
  }

  void Deliver(PeerId from, Ballot ballot, Body body, Buffer payload = {}) {
    replica_.OnMessage(now_, from, {kJob, ballot, std::move(body)}, std::move(payload));
    mail_.Collect(replica_);
  }
  void Tell(uint64_t ballot, Body body) { Deliver(kCoordinator, {ballot}, std::move(body)); }

  void Join() {
    replica_.OnCoordinatorLink(now_, kCoordinator);
    Tell(0, Welcome{job_, kSelf, {}, {}});
    mail_.Collect(replica_);
    mail_.Clear();
  }
  std::optional<Promised> Promise(uint64_t ballot, size_t servers = 2) {
    Tell(ballot, everstep::Promise{MapOf(ballot, servers), Spec()});
    return mail_.TakeOne<Promised>(kCoordinator);
  }
  // Joined, promised to ballot 1, and initialised: version 1, every float is 1.
  void Start(size_t servers = 2) {
    Join();
    ASSERT_TRUE(Promise(1, servers));
    const Contribution init{{9}, {0}, {}, {{90}, 0, {}}};
    PushAll(init, 1.0f);
    const Seal seal = SealOf(1, {init});
    Tell(1, SealStep{seal, servers == 1});
    RunSums();
    if (servers != 1) Tell(1, Commit{seal.id, seal.digest, 1});
    ASSERT_EQ(replica_.version(), Version{1});
    ASSERT_EQ(replica_.digest(), seal.digest);
    mail_.Clear();
  }

  Contribution From(uint64_t worker, uint64_t lease = 0) const {
    const uint64_t id = lease == 0 ? 10 * worker : lease;
    return {{worker}, replica_.version(), replica_.digest(), {{id}, 0, {{8 * worker, 8 * worker + 8}}}};
  }
  static Buffer Floats(float value) {
    const std::vector<float> floats(kChunkBytes / sizeof(float), value);
    return Buffer::Copy(floats.data(), kChunkBytes);
  }
  static float First(const Buffer& buffer) {
    float value;
    std::memcpy(&value, buffer.data(), sizeof value);
    return value;
  }

  void Push(const Contribution& c, uint32_t chunk, float value = 0.5f, PeerId from = kWorker) {
    Deliver(from, {1}, everstep::Push{c, {chunk}}, Floats(value));
  }
  void PushAll(const Contribution& c, float value = 0.5f) {
    for (uint32_t chunk = 0; chunk < 3; ++chunk) {
      if (replica_.map()->IsPrimary(kSelf, {chunk})) Push(c, chunk, value);
    }
  }

  // A seal of the replica's present step.
  Seal SealOf(uint64_t ballot, std::vector<Contribution> contributors) const {
    Seal seal;
    seal.id = {{ballot}, replica_.version()};
    seal.weights.assign(contributors.size(), 1.0 / static_cast<double>(contributors.size()));
    seal.contributors = std::move(contributors);
    seal.learning_rate = 0.5;
    seal.previous = replica_.digest();
    seal.digest = SealDigest(seal);
    return seal;
  }

  // Does the sums that were asked for, as doubles, and hands the results back. Returns how many there were.
  size_t RunSums(std::vector<uint32_t> nonfinite = {}) {
    const std::vector<SumWork> works = replica_.TakeSums();
    for (const SumWork& work : works) replica_.OnSummed(now_, Sum(work, nonfinite));
    mail_.Collect(replica_);
    return works.size();
  }
  static SumResult Sum(const SumWork& work, const std::vector<uint32_t>& nonfinite) {
    SumResult result{work.seal, {}, {}, {}, {}};
    for (const auto& inputs : work.contributions) {
      double sum = 0;
      for (size_t i = 0; i < inputs.size(); ++i) sum += work.weights[i] * First(inputs[i]);
      result.sums.push_back(Floats(static_cast<float>(sum)));
      result.squared_norms.push_back(16 * sum * sum);
      result.nonfinite.push_back(nonfinite);
    }
    return result;
  }
  size_t RunApplies() {
    const std::vector<ApplyWork> works = replica_.TakeApplies();
    for (const ApplyWork& work : works) {
      ApplyResult result{work.seal, {}, {}};
      for (size_t i = 0; i < work.chunks.size(); ++i) {
        const double step = work.learning_rate * work.scale * First(work.sums[i]);
        result.parameters.push_back(Floats(static_cast<float>(First(work.parameters[i]) - step)));
      }
      replica_.OnApplied(now_, std::move(result));
    }
    mail_.Collect(replica_);
    return works.size();
  }
  // Takes the replica through one step whose contributions all hold `value`; returns its seal.
  Seal CommitStep(uint64_t ballot, std::vector<Contribution> contributors, float value = 0.5f) {
    for (const Contribution& c : contributors) PushAll(c, value);
    const Seal seal = SealOf(ballot, std::move(contributors));
    Tell(ballot, SealStep{seal, false});
    RunSums();
    Tell(ballot, Commit{seal.id, seal.digest, 1});
    RunApplies();
    EXPECT_EQ(replica_.version(), Next(seal.id.step));
    mail_.Clear();
    return seal;
  }

  JobSpec job_;
  Time now_{1'000'000'000};
  Replica replica_{{kLife, "ps0", "tcp://self"}};
  Mailbox mail_;
};

}  // namespace everstep::test
