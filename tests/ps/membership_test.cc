#include "ps/membership.h"

#include <gtest/gtest.h>

#include "base/limits.h"

namespace everstep {
namespace {

constexpr Duration kSecond = std::chrono::seconds(1);

Hello HelloFrom(uint64_t id, std::string name) {
  Hello hello;
  hello.worker = {id};
  hello.name = std::move(name);
  return hello;
}

class MembershipTest : public testing::Test {
 protected:
  JobSpec job_;
  Membership members_{job_};
  Time now_{1'000'000'000};
};

TEST_F(MembershipTest, MembersAreFoundByIdLinkAndName) {
  members_.Add(now_, HelloFrom(5, "b"), {50});
  members_.Add(now_, HelloFrom(3, "a"), {30});
  EXPECT_EQ(members_.Find({5})->name, "b");
  EXPECT_EQ(members_.FindByPeer({30})->id, WorkerId{3});
  EXPECT_EQ(members_.FindByName("b")->id, WorkerId{5});
  EXPECT_EQ(members_.Find({4}), nullptr);
  EXPECT_EQ(members_.FindByPeer({40}), nullptr);
  EXPECT_EQ(members_.FindByName("c"), nullptr);
  EXPECT_EQ(members_.size(), 2u);
  EXPECT_EQ(members_.max_seen(), 2u);
}

TEST_F(MembershipTest, TheOrderIsThatOfAdmission) {
  for (const uint64_t id : {9, 2, 7, 4}) members_.Add(now_, HelloFrom(id, "w" + std::to_string(id)), {id});
  members_.Find({7})->ready = members_.Find({2})->ready = true;
  std::vector<uint64_t> all;
  for (const Member* m : members_.All()) all.push_back(m->id.value);
  EXPECT_EQ(all, (std::vector<uint64_t>{9, 2, 7, 4}));
  ASSERT_EQ(members_.ReadyMembers().size(), 2u);
  EXPECT_EQ(members_.ReadyMembers()[0]->id, WorkerId{2});
  EXPECT_EQ(members_.ready_count(), 2u);
}

TEST_F(MembershipTest, WhoIsRemovedIsFenced) {
  members_.Add(now_, HelloFrom(1, "a"), {1});
  EXPECT_FALSE(members_.IsFenced({1}));
  EXPECT_EQ(members_.Remove({1}).name, "a");
  EXPECT_TRUE(members_.IsFenced({1}));
  EXPECT_EQ(members_.size(), 0u);
}

TEST_F(MembershipTest, FencesAreRememberedUpToABound) {
  constexpr uint64_t kBound = 4 * limits::kMaxMembers;
  for (uint64_t id = 1; id <= kBound + 10; ++id) {
    members_.Add(now_, HelloFrom(id, ""), {id});
    members_.Remove({id});
  }
  EXPECT_FALSE(members_.IsFenced({10}));
  EXPECT_TRUE(members_.IsFenced({11}));
  EXPECT_TRUE(members_.IsFenced({kBound + 10}));
}

TEST_F(MembershipTest, MoreThanTheMaximumAreRefused) {
  job_.max_workers = 2;
  members_.Add(now_, HelloFrom(1, "a"), {1});
  members_.Add(now_, HelloFrom(2, "b"), {2});
  const Status status = members_.MayJoin(now_, HelloFrom(3, "c"));
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_NE(status.message().find("maximum of 2 workers"), std::string::npos);
  EXPECT_TRUE(members_.MayJoin(now_, HelloFrom(4, "a")).ok());  // a new life takes its old one's place
}

TEST_F(MembershipTest, AWorkerNeedsAnIdentity) {
  EXPECT_EQ(members_.MayJoin(now_, HelloFrom(0, "a")).code(), Code::kCorrupt);
}

TEST_F(MembershipTest, Case11_ANameThatKeepsComingIsBackedOff) {
  for (uint64_t i = 1; i <= 5; ++i) {
    ASSERT_TRUE(members_.MayJoin(now_, HelloFrom(i, "flapper")).ok()) << i;
    members_.Add(now_, HelloFrom(i, "flapper"), {i});
    members_.Remove({i});
    now_ = now_ + kSecond;
  }
  const Status refused = members_.MayJoin(now_, HelloFrom(6, "flapper"));
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  EXPECT_NE(refused.message().find("flapper joined 5 times"), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find("again in 26 s"), std::string::npos) << refused.message();
  EXPECT_TRUE(members_.MayJoin(now_, HelloFrom(7, "somebody else")).ok());
  // It may come again when the first of the five is as old as the window.
  EXPECT_FALSE(members_.MayJoin(Time{1'000'000'000} + job_.timeout - Duration(1), HelloFrom(6, "flapper")).ok());
  EXPECT_TRUE(members_.MayJoin(Time{1'000'000'000} + job_.timeout, HelloFrom(6, "flapper")).ok());
}

TEST_F(MembershipTest, Case11_ACommittedContributionClearsTheName) {
  for (uint64_t i = 1; i <= 20; ++i) {
    ASSERT_TRUE(members_.MayJoin(now_, HelloFrom(i, "spot")).ok()) << i;
    members_.Add(now_, HelloFrom(i, "spot"), {i});
    if (i % 4 == 0) members_.Contributed("spot");
    members_.Remove({i});
  }
}

// Workers without a name are not one flapper: they have nothing in common.
TEST_F(MembershipTest, Case11_NamelessWorkersAreNotBackedOff) {
  for (uint64_t i = 1; i <= 20; ++i) {
    ASSERT_TRUE(members_.MayJoin(now_, HelloFrom(i, "")).ok()) << i;
    members_.Add(now_, HelloFrom(i, ""), {i});
  }
}

}  // namespace
}  // namespace everstep
