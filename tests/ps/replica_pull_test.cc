// Readers of a replica: answered from one version, kept waiting within a bound, told what is missing (promise P10).
#include <gtest/gtest.h>

#include "base/limits.h"
#include "tests/ps/replica_testing.h"

namespace everstep {
namespace {

class ReplicaPull : public test::ReplicaTest {
 protected:
  // The versions and chunks that came, as (version, chunk) pairs; payloads are looked at on the way.
  std::vector<std::pair<uint64_t, uint32_t>> TakeChunks(PeerId to) {
    std::vector<std::pair<uint64_t, uint32_t>> got;
    for (const Outgoing& out : mail_.all()) {
      const auto* data = out.to == to ? std::get_if<ChunkData>(&out.envelope.body) : nullptr;
      if (data == nullptr) continue;
      EXPECT_EQ(out.payload.size(), kChunkBytes);
      got.emplace_back(data->version.value, data->chunk.value);
    }
    mail_.Take<ChunkData>(to);
    return got;
  }
  void Pull(everstep::Pull pull, PeerId from = kWorker) { Deliver(from, {1}, std::move(pull)); }
  using Chunks = std::vector<std::pair<uint64_t, uint32_t>>;
};

TEST_F(ReplicaPull, IsAnsweredFromTheNewestVersion) {
  Start();
  Pull({{1}, {1}, false, {}, {}});
  const Digest digest = replica_.digest();
  for (const Outgoing& out : mail_.all()) {
    EXPECT_EQ(std::get<ChunkData>(out.envelope.body).digest, digest);
    EXPECT_EQ(First(out.payload), 1.0f);
  }
  EXPECT_EQ(TakeChunks(kWorker), (Chunks{{1, 0}, {1, 1}}));
  Pull({{1}, {1}, false, {{1}}, {}});
  EXPECT_EQ(TakeChunks(kWorker), (Chunks{{1, 1}}));
  CommitStep(1, {From(1)});
  Pull({{1}, {1}, false, {}, {}});
  EXPECT_EQ(TakeChunks(kWorker), (Chunks{{2, 0}, {2, 1}}));
}

TEST_F(ReplicaPull, WaitsForAVersionThatHasNotCome) {
  Start();
  Pull({{1}, {2}, false, {}, {}});
  Pull({{2}, {3}, false, {{0}}, {}}, {3});
  EXPECT_TRUE(mail_.empty());
  EXPECT_EQ(replica_.stats().waiting_pulls, 2u);
  PushAll(From(7));
  const Seal seal = SealOf(1, {From(7)});
  Tell(1, SealStep{seal, false});
  RunSums();
  Tell(1, Commit{seal.id, seal.digest, 1});
  EXPECT_TRUE(TakeChunks(kWorker).empty());  // not before it is applied (rule R12)
  RunApplies();
  EXPECT_EQ(TakeChunks(kWorker), (Chunks{{2, 0}, {2, 1}}));
  EXPECT_TRUE(TakeChunks({3}).empty());
  EXPECT_EQ(replica_.stats().waiting_pulls, 1u);
}

TEST_F(ReplicaPull, ALinkWaitsOnce) {
  Start();
  for (uint64_t life = 1; life <= 5; ++life) Pull({{life}, {2}, false, {}, {}});
  EXPECT_EQ(replica_.stats().waiting_pulls, 1u);
  CommitStep(1, {From(7)});
  EXPECT_EQ(replica_.stats().waiting_pulls, 0u);
}

TEST_F(ReplicaPull, WaitersGoWithTheirLinks) {
  Start();
  Pull({{1}, {2}, false, {}, {}});
  replica_.OnClosed(now_, kWorker);
  EXPECT_EQ(replica_.stats().waiting_pulls, 0u);
}

TEST_F(ReplicaPull, WaitersAreBounded) {
  Start();
  for (uint64_t i = 1; i <= limits::kMaxWaitingPulls; ++i) Pull({{i}, {2}, false, {}, {}}, {100 + i});
  EXPECT_TRUE(mail_.empty());
  EXPECT_EQ(replica_.stats().waiting_pulls, limits::kMaxWaitingPulls);
  Pull({{limits::kMaxWaitingPulls + 1}, {2}, false, {}, {}});
  EXPECT_EQ(mail_.TakeOne<PullRefused>(kWorker)->code, Code::kResourceExhausted);
}

TEST_F(ReplicaPull, TheVersionBeforeIsKeptForReadersThatWereHalfWay) {
  Start();
  CommitStep(1, {From(1)});
  Pull({{1}, {1}, true, {}, {}});
  EXPECT_EQ(TakeChunks(kWorker), (Chunks{{1, 0}, {1, 1}}));
  CommitStep(1, {From(1)});
  Pull({{1}, {1}, true, {}, {}});
  const auto refused = mail_.TakeOne<PullRefused>(kWorker);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->code, Code::kStale);
  EXPECT_EQ(refused->version, Version{3});
  EXPECT_EQ(replica_.Parameters({1}), nullptr);
  EXPECT_NE(replica_.Parameters({2}), nullptr);
}

TEST_F(ReplicaPull, IsRefusedTyped) {
  Join();
  Pull({{1}, {1}, false, {}, {}});
  EXPECT_EQ(mail_.TakeOne<PullRefused>(kWorker)->code, Code::kUnavailable);
}

// A server that was started again at an address which workers know: it may have their job in a moment.
TEST_F(ReplicaPull, OfAServerWithoutAJobIsPutOff) {
  replica_.OnMessage(now_, kWorker, {{77}, {1}, everstep::Pull{{1}, {1}, false, {}, {}}}, {});
  mail_.Collect(replica_);
  EXPECT_EQ(mail_.TakeOne<PullRefused>(kWorker)->code, Code::kUnavailable);
}

TEST_F(ReplicaPull, OfAnotherJobChunkOrShardIsRefused) {
  Start();
  replica_.OnMessage(now_, kWorker, {{78}, {1}, everstep::Pull{{1}, {1}, false, {}, {}}}, {});
  mail_.Collect(replica_);
  EXPECT_EQ(mail_.TakeOne<PullRefused>(kWorker)->code, Code::kWrongJob);
  Pull({{1}, {1}, false, {{3}}, {}});
  EXPECT_EQ(mail_.TakeOne<PullRefused>(kWorker)->code, Code::kCorrupt);
  Pull({{1}, {1}, false, {{0}, {2}}, {}});
  EXPECT_EQ(mail_.TakeOne<WrongShard>(kWorker)->map, MapOf(1, 2));
  EXPECT_TRUE(TakeChunks(kWorker).empty());
}

TEST_F(ReplicaPull, SaysWhatOfAPendingContributionIsMissing) {
  Start();
  const Contribution c = From(1);
  Pull({{1}, {2}, false, {}, c});
  EXPECT_EQ(mail_.TakeOne<Missing>(kWorker), (Missing{c, {{0}, {1}}}));
  Push(c, 1);
  Pull({{1}, {2}, false, {}, c});
  EXPECT_EQ(mail_.TakeOne<Missing>(kWorker), (Missing{c, {{0}}}));
  Push(c, 0);
  mail_.Clear();
  Pull({{1}, {2}, false, {}, c});
  EXPECT_TRUE(mail_.empty());  // all is here: it waits
  CommitStep(1, {From(2)});
  Pull({{1}, {3}, false, {}, c});
  EXPECT_TRUE(mail_.Take<Missing>(kWorker).empty());  // that step is over
}

}  // namespace
}  // namespace everstep
