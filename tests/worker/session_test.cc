// A worker's links: finding the job, staying in touch, being fenced, leaving, and the end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/worker/session_testing.h"

namespace everstep {
namespace {

using SessionJoin = test::SessionTest;
using SessionLinks = test::SessionTest;
using SessionLeave = test::SessionTest;
using SessionEnd = test::SessionTest;

void ExpectMentions(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << "\"" << part << "\" is not in: " << message;
}

// ---- Joining ----

TEST_F(SessionJoin, SaysHelloToTheFirstServer) {
  Begin();
  ASSERT_EQ(openings_.size(), 1u);
  EXPECT_EQ(openings_[0].address, "tcp://ps0");
  EXPECT_TRUE(openings_[0].control);
  const auto hello = mail_.TakeOne<Hello>(control_);
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->role, PeerRole::kWorker);
  EXPECT_EQ(hello->name, "w");
  EXPECT_EQ(hello->job_name, "test");
  EXPECT_EQ(hello->worker, session_->id());
  EXPECT_EQ(hello->spec, options_.spec);
  EXPECT_EQ(hello->dataset_size, 100u);
  EXPECT_EQ(hello->version, Version{});
}

TEST_F(SessionJoin, LivesHaveDifferentIds) {
  std::set<uint64_t> ids;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    options_.seed = seed;
    Begin();
    ids.insert(session_->id().value);
  }
  EXPECT_EQ(ids.size(), 100u);
  EXPECT_FALSE(ids.contains(0));
}

TEST_F(SessionJoin, Case7_WhenNobodyAnswersTheErrorNamesAllAddresses) {
  Begin();
  const Time begin = now_;
  while (!session_->failure()) {
    ASSERT_LT(now_ - begin, options_.timeout * 2);
    if (openings_.size() > 0 && openings_.back().peer == control_) Close(control_);
    Pass(std::chrono::milliseconds(100), false);
  }
  EXPECT_GE(now_ - begin, options_.timeout);
  EXPECT_EQ(session_->failure()->code(), Code::kUnavailable);
  ExpectMentions(session_->failure()->message(), "tcp://ps0, tcp://ps1");
  ExpectMentions(session_->failure()->message(), "30 s");
  ExpectMentions(session_->failure()->message(), "connection refused");
  EXPECT_EQ(openings_[1].address, "tcp://ps1");  // both were tried, in turn ...
  EXPECT_EQ(openings_[2].address, "tcp://ps0");
  EXPECT_LT(openings_.size(), 130u);  // ... and more and more seldom
}

TEST_F(SessionJoin, Case7_WhoConnectsAndIsNeverAnsweredIsToldWhere) {
  Begin();
  mail_.Clear();
  Pass(options_.timeout * 2, false);
  ASSERT_TRUE(session_->failure());
  EXPECT_EQ(session_->failure()->code(), Code::kDeadlineExceeded);
  ExpectMentions(session_->failure()->message(), "tcp://ps0");
  EXPECT_GT(mail_.Take<Hello>(control_).size(), 5u);  // it asked again
}

TEST_F(SessionJoin, Case13_ARefusalIsTheEnd) {
  Begin();
  Coordinator(Refused{Code::kWrongSpec, "another model"}, {});
  ASSERT_TRUE(session_->failure());
  EXPECT_EQ(session_->failure()->code(), Code::kWrongSpec);
  EXPECT_EQ(session_->failure()->message(), "another model");
}

TEST_F(SessionJoin, TheFirstWorkerBringsTheInitialValues) {
  Begin();
  Coordinator(everstep::Welcome{job_, {}, {}, {}});
  EXPECT_EQ(mail_.TakeOne<Ready>(control_), (Ready{session_->id(), {}, {}}));
  Grant(1, 0, {{1}, 0, {}});
  EXPECT_FALSE(session_->TakeStep(now_));  // not before it knows where the chunks live
  Coordinator(MapUpdate{Map()});
  const auto work = session_->TakeStep(now_);
  ASSERT_TRUE(work);
  EXPECT_TRUE(work->initialise);
  EXPECT_FALSE(work->fresh);
  EXPECT_EQ(work->version, Version{0});
  PushAll(*work);
  EXPECT_EQ(mail_.TakeOne<Push>(bulk_[0])->contribution, (Contribution{session_->id(), {0}, {}, {{1}, 0, {}}}));
}

// Promise P3: a joiner pulls the current version from the shards, and is ready when it has all of it.
TEST_F(SessionJoin, ALateWorkerPullsTheCurrentVersionFirst) {
  Begin();
  Welcome(7);
  ASSERT_EQ(openings_.size(), 3u);
  EXPECT_EQ(openings_[1].address, "tcp://ps0-bulk");
  EXPECT_EQ(openings_[2].address, "tcp://ps1-bulk");
  EXPECT_FALSE(openings_[1].control);
  for (PeerId peer : bulk_) EXPECT_EQ(mail_.TakeOne<Pull>(peer), (Pull{session_->id(), {7}, false, {}, {}}));
  SendChunk(0, 7);
  EXPECT_TRUE(mail_.Take<Ready>(control_).empty());
  SendChunk(1, 7);
  EXPECT_EQ(mail_.TakeOne<Ready>(control_), (Ready{session_->id(), {7}, {}}));
  Grant(1, 7, LeaseOf(3));
  const auto work = session_->TakeStep(now_);
  ASSERT_TRUE(work);
  EXPECT_FALSE(work->initialise);
  EXPECT_TRUE(work->fresh);
  EXPECT_EQ(work->lease, LeaseOf(3));
  EXPECT_EQ(work->parameters.at({1}).text(), Bytes(7, 1).text());
}

TEST_F(SessionJoin, AMapOfAnotherModelIsTheEnd) {
  Begin();
  ShardMap map = Map();
  map.spec_hash ^= 1;
  Coordinator(everstep::Welcome{job_, {}, {1}, map});
  EXPECT_EQ(session_->failure()->code(), Code::kWrongSpec);
}

// The welcome was lost and a map came: nothing is known of the job's times yet.
TEST_F(SessionJoin, AMapWithoutAWelcomeIsNoAnswer) {
  Begin();
  const PeerId first = control_;
  (void)mail_.Take<Hello>(first);
  Coordinator(MapUpdate{Map()});
  Pass(std::chrono::milliseconds(900), false);
  EXPECT_EQ(control_, first) << "it is not given up after the lease of a job that nobody has named";
  EXPECT_FALSE(mail_.Take<Hello>(first).empty());
}

TEST_F(SessionJoin, AMapWithTooManyChunksIsTheEnd) {
  options_.spec.tensors[0].shape = {int64_t{1} << 40};
  Begin();
  Coordinator(everstep::Welcome{job_, {}, {1}, Map()});
  ASSERT_TRUE(session_->failure());
  ExpectMentions(session_->failure()->message(), "larger chunk-bytes");
}

TEST_F(SessionJoin, StrangersAreNotHeard) {
  JoinAt(2);
  session_->OnMessage(now_, {999}, {kJob, {1}, JobFailed{Code::kFailed, "forged"}}, {});
  session_->OnMessage(now_, bulk_[0], {kJob, {1}, JobFailed{Code::kFailed, "not its business"}}, {});
  EXPECT_FALSE(session_->failure());
}

// ---- Staying in touch ----

TEST_F(SessionLinks, HeartbeatsSayWhatItDoes) {
  WorkAt(2);
  now_ = now_ + job_.heartbeat();
  Tick();
  const auto first = mail_.TakeOne<Heartbeat>(control_);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->worker, session_->id());
  EXPECT_EQ(first->phase, Phase::kComputing);
  EXPECT_EQ(first->grant, 1u);
  Tick();
  EXPECT_TRUE(mail_.Take<Heartbeat>(control_).empty());
  session_->NoteProgress(Phase::kEvaluating);
  now_ = now_ + job_.heartbeat();
  Tick();
  const auto second = mail_.TakeOne<Heartbeat>(control_);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->phase, Phase::kEvaluating);
  EXPECT_GT(second->progress, first->progress);
}

TEST_F(SessionLinks, AnswersKeepTheLinkAndSilenceEndsIt) {
  JoinAt(2);
  Pass(job_.lease() * 3);
  EXPECT_TRUE(closings_.empty());
  const PeerId silent = control_;
  Pass(job_.lease() + std::chrono::seconds(2), false);
  EXPECT_EQ(closings_, (std::vector<PeerId>{silent}));
  EXPECT_NE(control_, silent);
  EXPECT_NE(openings_.back().address, "tcp://ps0") << "somebody else is asked first";
  EXPECT_EQ(mail_.Take<Hello>(control_).front().version, Version{2});
}

// Case 10: after some deaths most of the addresses that a worker was started with are of servers long gone.
TEST_F(SessionLinks, Case10_TheSearchBeginsWithTheMapAndWaitsForNoDeadAddress) {
  options_.servers = {"tcp://ps0", "tcp://gone1", "tcp://gone2"};
  JoinAt(2);
  const Time begin = now_;
  Close(control_);
  std::vector<std::string> asked;
  for (PeerId last = control_; asked.size() < 5;) {
    Pass(std::chrono::milliseconds(1), false);
    ASSERT_LT(now_ - begin, std::chrono::milliseconds(200)) << testing::PrintToString(asked);
    if (control_ == last) continue;
    last = control_;
    asked.push_back(openings_.back().address);
    if (asked.size() == 4) {
      EXPECT_LT(now_ - begin, std::chrono::milliseconds(40)) << "20 ms to begin with, and next to nothing for each";
    }
    Close(control_);
  }
  EXPECT_THAT((std::vector{asked[0], asked[1]}), testing::UnorderedElementsAre("tcp://ps0-bulk", "tcp://ps1-bulk"));
  EXPECT_THAT((std::vector{asked[2], asked[3]}), testing::ElementsAre("tcp://gone1", "tcp://gone2"));
  EXPECT_EQ(asked[4], "tcp://ps0") << "where it was, when all others have been asked";
}

TEST_F(SessionLinks, Case10_AfterTheCoordinatorsDeathItSaysWhatItHolds) {
  const auto work = WorkAt(2, 3);
  Close(control_);
  Pass(std::chrono::seconds(1), false);
  const auto hello = mail_.TakeOne<Hello>(control_);
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->worker, session_->id());  // still the same life
  EXPECT_EQ(hello->version, Version{2});
  EXPECT_EQ(hello->lease, LeaseOf(3));
  // Its work goes on meanwhile.
  PushAll(work);
  EXPECT_TRUE(Commit(work).ok());
  EXPECT_TRUE(mail_.TakeOne<Push>(bulk_[0]));
}

// A lease of a step that is over must not be claimed: the new coordinator would wait for a contribution that never
// comes.
TEST_F(SessionLinks, Case10_TheLeaseOfAStepThatIsOverIsNotClaimed) {
  const auto work = WorkAt(2);
  PushAll(work);
  ASSERT_TRUE(Commit(work).ok());
  SendVersion(3);
  Close(control_);
  Pass(std::chrono::seconds(1), false);
  const auto hello = mail_.TakeOne<Hello>(control_);
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->version, Version{3});
  EXPECT_FALSE(hello->lease);
}

TEST_F(SessionLinks, Case32_ACoordinatorOfAnotherJobIsNotFollowed) {
  JoinAt(2);
  Close(control_);
  Pass(std::chrono::seconds(1), false);
  Coordinator(everstep::Welcome{job_, {}, {2}, Map()}, {78});
  EXPECT_EQ(session_->failure()->code(), Code::kWrongJob);
}

TEST_F(SessionLinks, WhenTheCoordinatorStaysAwayTheErrorSaysSo) {
  JoinAt(2);
  const Time begin = now_;
  Close(control_);
  while (!session_->failure() && now_ - begin < job_.timeout * 2) {
    Pass(std::chrono::milliseconds(200), false);
    if (control_ != PeerId{}) Close(control_);
  }
  ASSERT_TRUE(session_->failure());
  EXPECT_EQ(session_->failure()->code(), Code::kUnavailable);
  EXPECT_GE(now_ - begin, job_.timeout);
  ExpectMentions(session_->failure()->message(), "tcp://ps0, tcp://ps1");
}

TEST_F(SessionLinks, Case1_WhenAServerStaysAwayTheErrorNamesIt) {
  JoinAt(2);
  const Time begin = now_;
  while (!session_->failure() && now_ - begin < job_.timeout * 2) {
    Close(bulk_[1]);
    Pass(std::chrono::milliseconds(200));
  }
  ASSERT_TRUE(session_->failure());
  EXPECT_EQ(session_->failure()->code(), Code::kUnavailable);
  ExpectMentions(session_->failure()->message(), "server 1 at tcp://ps1-bulk");
  EXPECT_GE(now_ - begin, job_.timeout);
  EXPECT_LE(now_ - begin, job_.timeout + std::chrono::seconds(3));
}

TEST_F(SessionLinks, ABrokenServerLinkIsOpenedAgain) {
  JoinAt(2);
  const PeerId before = bulk_[1];
  Close(before);
  Pass(std::chrono::seconds(1));
  EXPECT_NE(bulk_[1], before);
  EXPECT_EQ(openings_.back().address, "tcp://ps1-bulk");
  EXPECT_FALSE(session_->failure());
}

// A worker may have the new map from one server before the next one has it; that one's refusal is no reason to wait for
// a retransmission.
TEST_F(SessionLinks, AServerThatDoesNotKnowTheNewMapYetIsAskedAgainAtOnce) {
  const auto work = WorkAt(2);
  PushAll(work);
  ASSERT_TRUE(Commit(work).ok());
  ShardMap map = Map(2);
  std::swap(map.replicas[0], map.replicas[1]);
  FromServer(0, WrongShard{map});
  mail_.Clear();
  FromServer(1, WrongShard{Map(1)});
  EXPECT_TRUE(mail_.Take<Pull>(bulk_[1]).empty()) << "not in a loop";
  Pass(std::chrono::milliseconds(20));
  ASSERT_EQ(mail_.Take<Pull>(bulk_[1]).size(), 1u);
  FromServer(1, PullRefused{Code::kUnavailable, {}, "the servers are not ready; pull again"});
  Pass(std::chrono::milliseconds(20));
  EXPECT_EQ(mail_.Take<Pull>(bulk_[1]).size(), 1u);
  Pass(std::chrono::milliseconds(50));
  EXPECT_TRUE(mail_.Take<Pull>(bulk_[1]).empty()) << "once for each refusal";
}

// It waited there by the old map; the server dropped it with that, and this worker has had the new one for a while.
TEST_F(SessionLinks, AServerThatDroppedThePullWithItsOldMapIsAskedAgainAtOnce) {
  const auto work = WorkAt(2);
  PushAll(work);
  ASSERT_TRUE(Commit(work).ok());
  ShardMap map = Map(2);
  std::swap(map.replicas[0], map.replicas[1]);
  FromServer(0, WrongShard{map});
  mail_.Clear();
  FromServer(1, WrongShard{map});
  EXPECT_EQ(mail_.Take<Pull>(bulk_[1]).size(), 1u);
}

TEST_F(SessionLinks, ServersThatMoveAreFollowed) {
  JoinAt(2);
  const PeerId old = bulk_[1];
  ShardMap map = Map(2);
  map.servers[1].address = "tcp://ps1-moved";
  Coordinator(MapUpdate{map});
  EXPECT_EQ(closings_, (std::vector<PeerId>{old}));
  EXPECT_EQ(openings_.back().address, "tcp://ps1-moved");
  Coordinator(MapUpdate{Map(1)});  // an older map changes nothing
  EXPECT_EQ(openings_.back().address, "tcp://ps1-moved");
}

// ---- Fenced (promise P6) ----

TEST_F(SessionLinks, Case3_WhoIsFencedJoinsAsANewLife) {
  const auto work = WorkAt(2, 3);
  PushAll(work);
  mail_.Clear();
  const WorkerId before = session_->id();
  Coordinator(Fenced{before, "silent"});
  EXPECT_NE(session_->id(), before);
  EXPECT_EQ(session_->stats().lives, 2u);
  const auto hello = mail_.TakeOne<Hello>(control_);
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->worker, session_->id());
  EXPECT_EQ(hello->version, Version{});  // a newcomer without claims
  EXPECT_FALSE(hello->lease);
  EXPECT_EQ(Commit(work).code(), Code::kStale);  // what the old life made is void
  session_->PushChunk(now_, work.serial, {0}, Bytes(0, 0));
  Collect();
  EXPECT_TRUE(mail_.Take<Push>(bulk_[0]).empty());
  // The version that it holds has the number that it is welcomed with, but perhaps of a history that was lost.
  Welcome(2);
  EXPECT_FALSE(mail_.TakeOne<Ready>(control_));
  SendVersion(2);
  EXPECT_EQ(mail_.TakeOne<Ready>(control_), (Ready{session_->id(), {2}, {}}));
  Grant(9, 2, LeaseOf(4));
  EXPECT_TRUE(session_->TakeStep(now_));
}

// The link it is told on is old; that no welcome has come on it yet is no silence.
TEST_F(SessionLinks, WhoIsFencedKeepsTheLinkThatSaidSo) {
  JoinAt(2);
  Pass(job_.lease() * 3);
  Coordinator(Fenced{session_->id(), "silent"});
  Tick();
  Pass(job_.lease() / 2, false);
  EXPECT_TRUE(closings_.empty());
  Welcome(2);
  EXPECT_EQ(session_->stats().lives, 2u);
}

TEST_F(SessionLinks, AFenceOfAnEarlierLifeIsNoNews) {
  JoinAt(2);
  const WorkerId first = session_->id();
  Coordinator(Fenced{first, "silent"});
  const WorkerId second = session_->id();
  Coordinator(Fenced{first, "silent"});
  EXPECT_EQ(session_->id(), second);
  Coordinator(everstep::Grant{first, 5, {2}, LeaseOf(1)});  // nor is its work ours
  EXPECT_FALSE(session_->TakeStep(now_));
}

// ---- Leaving ----

TEST_F(SessionLeave, IsSaidAndAnswered) {
  JoinAt(2);
  session_->Leave(now_, "SIGTERM");
  Collect();
  EXPECT_EQ(mail_.TakeOne<Leave>(control_), (Leave{session_->id(), "SIGTERM"}));
  EXPECT_FALSE(session_->left());
  Coordinator(LeaveAck{});
  EXPECT_TRUE(session_->left());
  EXPECT_FALSE(session_->failure());
}

TEST_F(SessionLeave, HandsBackWorkThatIsNotContributed) {
  WorkAt(2);
  session_->Leave(now_, "SIGTERM");
  Collect();
  EXPECT_TRUE(mail_.TakeOne<Leave>(control_));  // the coordinator lends the lease anew
}

TEST_F(SessionLeave, WaitsForItsContribution) {
  const auto work = WorkAt(2);
  PushAll(work);
  ASSERT_TRUE(Commit(work).ok());
  session_->Leave(now_, "SIGTERM");
  Pass(job_.lease() / 2);
  EXPECT_TRUE(mail_.Take<Leave>(control_).empty());
  FromServer(0, Missing{{session_->id(), {2}, DigestOf(2), work.lease}, {{0}}});
  EXPECT_FALSE(mail_.Take<Push>(bulk_[0]).empty());  // and still helps it along
  SendVersion(3);
  EXPECT_TRUE(mail_.TakeOne<Leave>(control_));
}

TEST_F(SessionLeave, WaitsForItsContributionOnlySoLong) {
  const auto work = WorkAt(2);
  PushAll(work);
  ASSERT_TRUE(Commit(work).ok());
  session_->Leave(now_, "SIGTERM");
  Pass(job_.lease() + std::chrono::milliseconds(200));
  EXPECT_FALSE(mail_.Take<Leave>(control_).empty());
}

TEST_F(SessionLeave, TakesNoMoreWork) {
  JoinAt(2);
  session_->Leave(now_, "SIGTERM");
  Grant(1, 2, LeaseOf(1));
  EXPECT_FALSE(session_->TakeStep(now_));
}

TEST_F(SessionLeave, EndsWhenNobodyAnswers) {
  JoinAt(2);
  session_->Leave(now_, "SIGTERM");
  const Time begin = now_;
  Pass(job_.lease() * 4);
  EXPECT_TRUE(session_->left());
  EXPECT_LE(now_ - begin, job_.lease() * 2 + std::chrono::seconds(1));
  EXPECT_GT(mail_.Take<Leave>(control_).size(), 1u);
}

TEST_F(SessionLeave, EndsWithTheLinkOrWhenFenced) {
  JoinAt(2);
  session_->Leave(now_, "SIGTERM");
  Close(control_);
  EXPECT_TRUE(session_->left());
  JoinAt(2);
  session_->Leave(now_, "SIGTERM");
  Coordinator(Fenced{session_->id(), "too late"});
  EXPECT_TRUE(session_->left());
}

TEST_F(SessionLeave, BeforeItWasWelcomeIsAtOnce) {
  Begin();
  session_->Leave(now_, "SIGTERM");
  EXPECT_TRUE(session_->left());
}

// ---- The end ----

TEST_F(SessionEnd, TheLastVersionIsFetchedAndEvaluated) {
  const auto work = WorkAt(2);
  PushAll(work);
  ASSERT_TRUE(Commit(work).ok());
  mail_.Clear();
  Coordinator(Finish{{4}, true});
  EXPECT_FALSE(session_->finished());
  EXPECT_EQ(mail_.TakeOne<Pull>(bulk_[0])->at_least, Version{4});
  Grant(2, 3, LeaseOf(9));
  SendVersion(4);
  EXPECT_TRUE(session_->finished());
  EXPECT_TRUE(session_->evaluate());
  EXPECT_FALSE(session_->TakeStep(now_));
  EXPECT_EQ(session_->TakeFinal().at({0}).text(), Bytes(4, 0).text());
  session_->ReportEvaluation({{"accuracy", 0.75}});
  Collect();
  const auto report = mail_.Take<Report>(control_).back();
  EXPECT_TRUE(report.evaluation);
  EXPECT_EQ(report.metrics, (std::vector<Metric>{{"accuracy", 0.75}}));
}

TEST_F(SessionEnd, AFailedJobIsTheEnd) {
  JoinAt(2);
  Coordinator(JobFailed{Code::kNonFinite, "look at the data"});
  EXPECT_EQ(session_->failure()->code(), Code::kNonFinite);
  ExpectMentions(session_->failure()->message(), "look at the data");
  Grant(1, 2, LeaseOf(1));
  EXPECT_FALSE(session_->TakeStep(now_));
}

TEST_F(SessionEnd, ALateLifeOfAFinishedJobStillFetchesTheResult) {
  JoinAt(2);
  Coordinator(Finish{{5}, false});
  Coordinator(Fenced{session_->id(), "silent"});
  Coordinator(Refused{Code::kFinished, "the job is complete"});
  EXPECT_FALSE(session_->failure());
  SendVersion(5);
  EXPECT_TRUE(session_->finished());
}

TEST_F(SessionEnd, ANewcomerOfAFinishedJobIsToldSo) {
  Begin();
  Coordinator(Refused{Code::kFinished, "the job is complete"}, {});
  ASSERT_TRUE(session_->failure());
  EXPECT_EQ(ExitCode(session_->failure()->code()), 0);
}

}  // namespace
}  // namespace everstep
