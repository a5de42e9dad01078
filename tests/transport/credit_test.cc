#include "transport/credit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/conformance/run_until.h"
#include "tests/support/seed.h"

namespace everstep::transport {
namespace {

TEST(SendWindow, AdmitsUpToTheWindowAndOneFrameLargerThanIt) {
  SendWindow window(100);
  EXPECT_TRUE(window.Admits(101)) << "nothing is under way";
  window.Spend(60);
  EXPECT_TRUE(window.Admits(40));
  EXPECT_FALSE(window.Admits(41));
  EXPECT_TRUE(window.Admits(0));
  EXPECT_TRUE(window.Return(60));
  window.Spend(1000);
  EXPECT_FALSE(window.Admits(1));
}

TEST(SendWindow, RefusesMoreCreditThanWasSpent) {
  SendWindow window(100);
  window.Spend(10);
  EXPECT_FALSE(window.Return(11));
  EXPECT_FALSE(window.Return(UINT64_MAX));
  EXPECT_EQ(window.outstanding(), 10u);
  EXPECT_TRUE(window.Return(10));
}

class CreditReturnTest : public testing::Test {
 protected:
  Loop loop_;
  int due_ = 0;
  size_t told_ = 0;
  CreditReturn returns_{loop_, 100, [this] {
                          ++due_;
                          told_ += returns_.TakeOwed();
                        }};
};

TEST_F(CreditReturnTest, AQuarterIsReportedAtOnceAndLessALittleLater) {
  Credit first = returns_.Lend(10), second = returns_.Lend(10), third = returns_.Lend(30);
  EXPECT_FALSE(returns_.Admits(51));
  EXPECT_TRUE(returns_.Admits(50));
  first = Credit();
  second = Credit();
  ASSERT_TRUE(test::RunUntil(loop_, [&] { return told_ == 20; }));
  EXPECT_EQ(due_, 1) << "small returns go together";
  third = Credit();
  ASSERT_TRUE(test::RunUntil(loop_, [&] { return told_ == 50; }));
  EXPECT_TRUE(returns_.Admits(100));
}

TEST_F(CreditReturnTest, AViolationIsAFrameBeyondTheWindow) {
  EXPECT_TRUE(returns_.Admits(1000)) << "nothing is held";
  Credit one = returns_.Lend(1000);
  EXPECT_FALSE(returns_.Admits(1));
  EXPECT_TRUE(returns_.Admits(0));
}

TEST_F(CreditReturnTest, CreditsDroppedOnManyThreadsAddUp) {
  Random random(test::Seed());
  size_t lent = 0;
  std::vector<std::vector<Credit>> shares(4);
  for (int i = 0; i < 4000; ++i) {
    const size_t bytes = 1 + random.Below(30);
    lent += bytes;
    shares[random.Below(4)].push_back(returns_.Lend(bytes));
  }
  std::vector<std::thread> threads;
  for (auto& share : shares) threads.emplace_back([&share] { share.clear(); });
  EXPECT_TRUE(test::RunUntil(loop_, [&] { return told_ == lent; }));
  for (auto& thread : threads) thread.join();
}

TEST_F(CreditReturnTest, NothingIsDueOnceDetached) {
  Credit early = returns_.Lend(50), late = returns_.Lend(50);
  early = Credit();
  returns_.Detach();
  late = Credit();
  EXPECT_FALSE(test::RunUntil(
      loop_, [&] { return due_ > 0; }, std::chrono::milliseconds(30)));
}

TEST(SendQueue, KeepsItsBooksAndItsBounds) {
  SendQueue queue;
  EXPECT_EQ(queue.Push({}, "peer").code(), Code::kInvalidArgument);
  EXPECT_EQ(queue.Push({Buffer(nullptr, nullptr, limits::kMaxHeaderBytes + 1), {}}, "peer").code(),
            Code::kInvalidArgument);
  const Buffer header = Buffer::Copy("head");
  for (size_t i = 0; i < limits::kMaxQueuedFrames; ++i) ASSERT_TRUE(queue.Push({header, header}, "peer").ok());
  EXPECT_EQ(queue.bytes(), 8 * limits::kMaxQueuedFrames);
  const Status full = queue.Push({header, {}}, "tcp://there:1");
  EXPECT_EQ(full.code(), Code::kResourceExhausted);
  EXPECT_THAT(full.message(), testing::HasSubstr("tcp://there:1"));
  queue.Pop();
  EXPECT_TRUE(queue.Push({header, {}}, "peer").ok());
  queue.Clear();
  EXPECT_EQ(queue.bytes(), 0u);
  EXPECT_TRUE(queue.empty());
}

}  // namespace
}  // namespace everstep::transport
