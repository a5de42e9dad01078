#include "base/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <type_traits>

#include "base/clock.h"
#include "base/log.h"
#include "base/strong_id.h"

namespace everstep {
namespace {

constexpr int kCodes = static_cast<int>(Code::kInternal) + 1;

Status Failing() { return {Code::kStale, "too old"}; }

Status Propagates(const Status& inner, bool* reached) {
  EVERSTEP_RETURN_IF_ERROR(inner);
  *reached = true;
  return Status::Ok();
}

Result<int> Half(int n) {
  if (n % 2 != 0) return Status(Code::kInvalidArgument, std::to_string(n) + " is odd");
  return n / 2;
}

Result<int> Quarter(int n) {
  EVERSTEP_ASSIGN(const int half, Half(n));
  EVERSTEP_ASSIGN(const int quarter, Half(half));
  return quarter;
}

TEST(Status, OkIsTheDefaultAndHasNoMessage) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), Code::kOk);
  EXPECT_EQ(status.message(), "");
  EXPECT_EQ(status.ToString(), "ok");
  EXPECT_TRUE(status.With("context").ok());
}

TEST(Status, ContextStandsInFrontAndKeepsTheCode) {
  const Status status = Failing().With("pushing chunk 3").With("step 7");
  EXPECT_EQ(status.code(), Code::kStale);
  EXPECT_EQ(status.message(), "step 7: pushing chunk 3: too old");
  EXPECT_EQ(status.ToString(), "stale: step 7: pushing chunk 3: too old");
}

TEST(Status, ReturnIfErrorStopsAtTheFirstError) {
  bool reached = false;
  EXPECT_EQ(Propagates(Failing(), &reached).code(), Code::kStale);
  EXPECT_FALSE(reached);
  EXPECT_TRUE(Propagates(Status::Ok(), &reached).ok());
  EXPECT_TRUE(reached);
}

TEST(Status, AssignTakesTheValueOrReturnsTheError) {
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_EQ(Quarter(7).status().message(), "7 is odd");
  EXPECT_EQ(Quarter(6).status().message(), "3 is odd");
}

TEST(Status, ResultMovesWhatCannotBeCopied) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(5);
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result.status().ok());
  const std::unique_ptr<int> value = std::move(result).value();
  EXPECT_EQ(*value, 5);
}

TEST(StatusDeathTest, AValueThatIsNotThereEndsTheProcessWithItsError) {
  EXPECT_DEATH(Half(3).value(), "invalid-argument: 3 is odd");
  EXPECT_DEATH(Result<int>(Status::Ok()).ok(), "needs an error");
  EXPECT_DEATH((void)Status(Code::kOk, "no error").ok(), "needs a code");
}

TEST(Status, EveryCodeHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (int i = 0; i < kCodes; ++i) names.insert(Name(static_cast<Code>(i)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kCodes));
  EXPECT_FALSE(names.contains("unknown"));
  EXPECT_EQ(Name(static_cast<Code>(kCodes)), "unknown");
}

// Scripts and schedulers act on these numbers (docs/operations.md): they may not drift.
TEST(Status, ExitCodesAreFixed) {
  const int expected[kCodes] = {0, 2, 3, 4, 4, 5, 6, 6, 5, 6, 6, 6, 6, 5, 5, 5, 5, 0, 6, 6, 70};
  for (int i = 0; i < kCodes; ++i) EXPECT_EQ(ExitCode(static_cast<Code>(i)), expected[i]) << Name(static_cast<Code>(i));
}

TEST(Status, RecoverySaysWhatACallerCanDo) {
  EXPECT_EQ(RecoveryFor(Code::kOk), Recovery::kNone);
  EXPECT_EQ(RecoveryFor(Code::kFinished), Recovery::kNone);
  EXPECT_EQ(RecoveryFor(Code::kUnavailable), Recovery::kRetry);
  EXPECT_EQ(RecoveryFor(Code::kFuture), Recovery::kRetry);
  EXPECT_EQ(RecoveryFor(Code::kResourceExhausted), Recovery::kRetry);
  EXPECT_EQ(RecoveryFor(Code::kWrongShard), Recovery::kRefreshMapThenRetry);
  EXPECT_EQ(RecoveryFor(Code::kFenced), Recovery::kRejoin);
  EXPECT_EQ(RecoveryFor(Code::kStale), Recovery::kRejoin);
  EXPECT_EQ(RecoveryFor(Code::kLeaseVoid), Recovery::kRejoin);
  EXPECT_EQ(RecoveryFor(Code::kWrongSpec), Recovery::kGiveUp);
}

TEST(StrongId, IdsOfDifferentKindsDoNotMix) {
  using A = StrongId<struct TagA, uint64_t>;
  using B = StrongId<struct TagB, uint64_t>;
  static_assert(!std::is_convertible_v<A, B> && !std::is_constructible_v<A, B>);
  EXPECT_LT(A{1}, A{2});
  EXPECT_EQ(std::hash<A>()(A{9}), std::hash<A>()(A{9}));
  EXPECT_EQ(ToString(A{12}), "12");
}

TEST(Clock, NeverStaysNever) {
  EXPECT_EQ(Time::Never() + std::chrono::hours(1), Time::Never());
  EXPECT_EQ((Time{100} + Duration(20)) - Time{100}, Duration(20));
  EXPECT_LT(SteadyNow(), Time::Never());
}

TEST(Log, LevelsAreKnownByName) {
  const log::Level before = log::GetLevel();
  for (const char* name : {"debug", "info", "warning", "error", "off"}) EXPECT_TRUE(log::SetLevel(name)) << name;
  EXPECT_EQ(log::GetLevel(), log::Level::kOff);
  EXPECT_FALSE(log::SetLevel("loud"));
  EXPECT_EQ(log::GetLevel(), log::Level::kOff);
  log::SetLevel(before);
}

}  // namespace
}  // namespace everstep
