// The auditor on records made by hand: one that is right, and each defect alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "base/random.h"
#include "tests/ctl/made_records.h"
#include "tests/support/seed.h"
#include "tests/support/temp_dir.h"

namespace everstep::ctl {
namespace {

using testing::Contains;
using testing::HasSubstr;

AuditOptions Ten() { return {.dataset = 10}; }

// As a file.
Audit ExamineText(const std::string& text) {
  test::TempDir folder;
  std::ofstream(folder / "records") << text;
  return AuditFiles({folder / "records"}, Ten()).value();
}

void ExpectOnly(const Audit& audit, const std::string& defect) {
  EXPECT_EQ(audit.defects_found, 1u) << testing::PrintToString(audit.defects);
  EXPECT_THAT(audit.defects, Contains(HasSubstr(defect)));
}

TEST(AuditTest, ACompleteJobIsProved) {
  const Audit audit = GoodRecords().Examine(Ten());
  EXPECT_TRUE(audit.ok()) << testing::PrintToString(audit.defects);
  EXPECT_EQ(audit.steps_committed, 5u);
  EXPECT_EQ(audit.contributions, 8u);
  EXPECT_EQ(audit.epochs_complete, 2u);
  EXPECT_EQ(audit.samples_expected, 20u);
  EXPECT_EQ(audit.samples_committed, 20u);
  EXPECT_EQ(audit.samples_duplicated, 0u);
  EXPECT_EQ(audit.samples_missing, 0u);
  EXPECT_EQ(audit.members_max, 2u);
  EXPECT_EQ(audit.digest, Digest(6));
  EXPECT_EQ(ToJson(audit)["ok"], true);
  EXPECT_THAT(ToText(audit), HasSubstr("proved: each sample once"));
}

TEST(AuditTest, TheSizeOfTheDatasetIsTakenFromTheRecordsWhenNobodySaysIt) {
  const Audit audit = GoodRecords().Examine();
  EXPECT_TRUE(audit.ok());
  EXPECT_EQ(audit.dataset, 10u);
  EXPECT_EQ(audit.dataset_from, "records");
  EXPECT_THAT(ToText(audit), HasSubstr("--dataset"));
}

TEST(AuditTest, ASampleThatIsCommittedTwiceIsCounted) {
  Records records = GoodRecords();
  records.commits[3]["contributors"][0]["ranges"] = {{5, 8}, {8, 10}};  // 5, 6 and 7 again
  const Audit audit = records.Examine(Ten());
  ExpectOnly(audit, "3 samples of [5, 8) of epoch 0 were committed before");
  EXPECT_EQ(audit.samples_duplicated, 3u);
  EXPECT_EQ(audit.samples_missing, 0u);
  EXPECT_EQ(audit.samples_committed, 23u);
}

TEST(AuditTest, ASampleThatTwoContributionsOfOneStepHoldIsCounted) {
  Records records = GoodRecords();
  records.commits[1]["contributors"][1]["ranges"] = {{2, 5}};
  const Audit audit = records.Examine(Ten());
  EXPECT_EQ(audit.samples_duplicated, 1u);
  EXPECT_EQ(audit.samples_missing, 1u);
}

TEST(AuditTest, AMissingSampleIsNamed) {
  Records records = GoodRecords();
  records.commits[4]["contributors"][1]["ranges"] = {{8, 10}};
  records.commits[4]["contributors"][0]["weight"] = 5.0 / 7;
  records.commits[4]["contributors"][1]["weight"] = 2.0 / 7;
  const Audit audit = records.Examine(Ten());
  ExpectOnly(audit, "epoch 1: 1 samples were never committed: [7, 8)");
  EXPECT_EQ(audit.samples_missing, 1u);
}

TEST(AuditTest, AnEpochsEndThatNobodyCommittedIsMissingOnlyIfTheSizeIsKnown) {
  Records records;
  records.job["epochs"] = 1;
  records.Step(0, {{0, 8}});
  EXPECT_EQ(records.Examine(Ten()).samples_missing, 2u);
  EXPECT_FALSE(records.Examine(Ten()).ok());
  EXPECT_TRUE(records.Examine().ok());
}

TEST(AuditTest, AWholeEpochThatIsAbsentIsMissing) {
  Records records = GoodRecords();
  records.job["epochs"] = 4;
  const Audit audit = records.Examine(Ten());
  ExpectOnly(audit, "2 epochs of 4 are not in the records at all");
  EXPECT_EQ(audit.samples_missing, 20u);
}

TEST(AuditTest, AnEpochTooManyIsADefect) {
  Records records = GoodRecords();
  records.Step(2, {{0, 10}});
  EXPECT_THAT(records.Examine(Ten()).defects, Contains(HasSubstr("epoch 2 was begun, the job has 2")));
}

TEST(AuditTest, ANewEpochMustWaitForTheOldOnesEnd) {
  Records records;
  records.Step(0, {{0, 9}}).Step(1, {{0, 10}}).Step(0, {{9, 10}});
  const Audit audit = records.Examine(Ten());
  EXPECT_THAT(audit.defects, Contains(HasSubstr("begins epoch 1 before epoch 0 is consumed")));
  EXPECT_THAT(audit.defects, Contains(HasSubstr("step 3 has samples of epoch 0 in epoch 1")));
  EXPECT_EQ(audit.samples_missing, 0u);
}

TEST(AuditTest, APositionBeyondTheDatasetIsADefect) {
  Records records = GoodRecords();
  records.Step(1, {{10, 12}});
  const Audit audit = records.Examine(Ten());
  ExpectOnly(audit, "positions up to 12, the dataset has 10");
  EXPECT_EQ(audit.samples_outside, 2u);
  EXPECT_EQ(audit.samples_missing, 0u);
}

TEST(AuditTest, AStepThatIsLeftOutIsSeen) {
  Records records = GoodRecords();
  records.commits.erase(records.commits.begin() + 2);
  const Audit audit = records.Examine(Ten());
  EXPECT_THAT(audit.defects, Contains(HasSubstr("step 3 follows step 1")));
  EXPECT_THAT(audit.defects, Contains(HasSubstr("chain of digests is broken")));
  EXPECT_EQ(audit.samples_missing, 2u);
}

TEST(AuditTest, AStepThatComesTwiceIsSeen) {
  Records records = GoodRecords();
  std::vector<json> repeated(records.commits.begin(), records.commits.begin() + 2);
  repeated.insert(repeated.end(), records.commits.begin() + 1, records.commits.end());
  records.commits = std::move(repeated);
  const Audit audit = records.Examine(Ten());
  EXPECT_THAT(audit.defects, Contains(HasSubstr("step 1 follows step 1")));
  EXPECT_EQ(audit.samples_duplicated, 6u);
}

TEST(AuditTest, AnotherHistoryInTheMiddleIsSeen) {
  Records records = GoodRecords();
  records.commits[3]["previous"] = Digest(99);
  ExpectOnly(records.Examine(Ten()), "step 3: the chain of digests is broken");
  records = GoodRecords();
  records.commits[0]["previous"] = Digest(99);
  ExpectOnly(records.Examine(Ten()), "step 0: the chain of digests is broken");
  records = GoodRecords();
  records.commits[5]["digest"] = "none";
  ExpectOnly(records.Examine(Ten()), "has no digests");
}

TEST(AuditTest, BallotsAndTimesDoNotGoBack) {
  Records records = GoodRecords();
  records.commits[2]["ballot"] = 2;
  EXPECT_EQ(records.Examine(Ten()).defects_found, 3u);
  records = GoodRecords();
  records.commits[2]["committed_ms"] = 5000.0;
  EXPECT_EQ(records.Examine(Ten()).defects_found, 3u);
}

TEST(AuditTest, WeightsSumToOneAndFollowTheSamples) {
  Records records = GoodRecords();
  records.commits[1]["contributors"][0]["weight"] = 0.6;
  const Audit audit = records.Examine(Ten());
  EXPECT_EQ(audit.defects_found, 2u);
  EXPECT_THAT(audit.defects, Contains(HasSubstr("weights sum to 1.1")));
  records.commits[1]["contributors"][1]["weight"] = 0.4;  // the sum is right now, the shares are not
  EXPECT_EQ(records.Examine(Ten()).defects_found, 2u);
}

TEST(AuditTest, AsynchronousWeightsAreFreeAndOlderBasesAllowed) {
  Records records = GoodRecords();
  records.job["mode"] = "async";
  for (json& commit : records.commits) {
    if (commit["contributors"].size() > 1) commit["contributors"][0]["weight"] = 0.25;
  }
  records.commits[3]["contributors"][0]["base"] = 1;
  EXPECT_TRUE(records.Examine(Ten()).ok());
  records.commits[3]["contributors"][0]["base"] = 4;
  ExpectOnly(records.Examine(Ten()), "not based on its version");
}

TEST(AuditTest, InSyncAContributionIsOfItsStepAndOnlyOneOfEachWorker) {
  Records records = GoodRecords();
  records.commits[3]["contributors"][0]["base"] = 2;
  ExpectOnly(records.Examine(Ten()), "not based on its version");
  records = GoodRecords();
  records.commits[1]["contributors"][1]["worker"] = "w1";
  ExpectOnly(records.Examine(Ten()), "two contributions of worker w1");
}

TEST(AuditTest, TheInitialisationHasNoSamples) {
  Records records = GoodRecords();
  records.commits[0]["contributors"][0]["ranges"] = {{0, 1}};
  EXPECT_THAT(records.Examine(Ten()).defects, Contains(HasSubstr("initialisation")));
}

TEST(AuditTest, AJobMayEndByItsStepsInTheMiddleOfAnEpoch) {
  Records records;
  records.job["epochs"] = 0;
  records.job["max_steps"] = 2;
  records.Step(0, {{0, 6}}).Step(0, {{7, 8}});  // 6 was lent to a worker that died
  const Audit audit = records.Examine(Ten());
  EXPECT_TRUE(audit.ok()) << testing::PrintToString(audit.defects);
  EXPECT_EQ(audit.samples_expected, 7u);
  records.job["max_steps"] = 3;
  EXPECT_THAT(records.Examine(Ten()).defects, Contains(HasSubstr("end at step 2 of 3")));
}

TEST(AuditTest, AnUnfinishedJobMayLackTheRestButNoEarlierEpoch) {
  Records records = GoodRecords();
  records.commits.pop_back();
  EXPECT_FALSE(records.Examine(Ten()).ok());
  AuditOptions unfinished = Ten();
  unfinished.unfinished = true;
  EXPECT_TRUE(records.Examine(unfinished).ok());
  records.commits[3]["contributors"][0]["ranges"] = {{8, 9}};
  EXPECT_EQ(records.Examine(unfinished).samples_missing, 1u);
}

TEST(AuditTest, AJobWithoutADatasetHasOnlyItsHistory) {
  Records records;
  records.job["epochs"] = 0;
  records.job["max_steps"] = 2;
  for (uint64_t step : {1, 2}) {
    records.commits.push_back(records.Commit(step));
    records.commits.back()["contributors"].push_back(Records::Contributor("w1", step, 0, {}, 0.5));
    records.commits.back()["contributors"].push_back(Records::Contributor("w2", step, 0, {}, 0.5));
  }
  const Audit audit = records.Examine();
  EXPECT_TRUE(audit.ok()) << testing::PrintToString(audit.defects);
  EXPECT_EQ(audit.samples_expected, 0u);
}

TEST(AuditTest, GarbageIsADefectAndNeverACrash) {
  for (const char* line :
       {"", "nonsense", "[]", "{}", "{\"step\":-1,\"contributors\":[{}]}", "{\"step\":1,\"contributors\":[]}",
        "{\"step\":6,\"contributors\":[{\"worker\":\"w\",\"weight\":1,\"epoch\":1,\"ranges\":[[3,2]]}]}",
        "{\"step\":6,\"contributors\":[{\"worker\":\"w\",\"weight\":1,\"epoch\":1,\"ranges\":[7,[1],[-1,2]]}]}",
        "{\"step\":6,\"contributors\":[{\"worker\":1,\"weight\":\"x\",\"epoch\":\"\",\"ranges\":{}}]}"}) {
    std::string text = GoodRecords().job.dump() + "\n";
    for (const json& commit : GoodRecords().commits) text += commit.dump() + "\n";
    EXPECT_FALSE(ExamineText(text + line + "\n").ok()) << line;
  }
  EXPECT_FALSE(ExamineText("").ok());
  EXPECT_FALSE(Auditor({}).Finish().ok());
  EXPECT_THAT(ExamineText(GoodRecords().commits[0].dump() + "\n").defects,
              Contains(HasSubstr("is this a commit-records file?")));
}

TEST(AuditTest, ManyDefectsAreCountedAndTheFirstOnesKept) {
  std::string text = GoodRecords().job.dump() + "\n";
  for (int i = 0; i < 1000; ++i) text += "x\n";
  const Audit audit = ExamineText(text);
  EXPECT_EQ(audit.defects_found, 1002u);  // and no commit at all, nor any of the two epochs
  EXPECT_LE(audit.defects.size(), 20u);
}

TEST(AuditTest, TheReportIsHeldAgainstTheRecords) {
  Audit audit = GoodRecords().Examine(Ten());
  json report{{"uid", audit.uid}, {"steps_committed", 5}, {"samples_committed", 20}, {"digest", audit.digest}};
  CompareWithReport(report, &audit);
  EXPECT_TRUE(audit.ok());
  report["samples_committed"] = 21;
  CompareWithReport(report, &audit);
  ExpectOnly(audit, "samples_committed 21, the records say 20");
}

TEST(AuditTest, AFileIsReadToItsEndAndACutOffLineIsSeen) {
  test::TempDir folder;
  const std::string path = folder / "records";
  std::ofstream file(path);
  file << GoodRecords().job.dump() << "\n";
  for (const json& commit : GoodRecords().commits) file << commit.dump() << "\n";
  file.flush();
  EXPECT_TRUE(AuditFiles({path}, Ten())->ok());
  file << "{\"step\":6,";
  file.flush();
  EXPECT_FALSE(AuditFiles({path}, Ten())->ok());
  AuditOptions unfinished = Ten();
  unfinished.unfinished = true;
  EXPECT_TRUE(AuditFiles({path}, unfinished)->ok());
  EXPECT_EQ(AuditFiles({folder / "none"}, {}).status().code(), Code::kNotFound);
}

// Against counting by hand: ranges of random places, some of them overlapping.
TEST(AuditTest, DuplicatesAndHolesAgreeWithCountingOneByOne) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  for (int round = 0; round < 200; ++round) {
    constexpr uint64_t kSize = 64;
    std::vector<int> times(kSize);
    Records records;
    records.job["epochs"] = 1;
    const uint64_t steps = 1 + random.Below(30);
    for (uint64_t i = 0; i < steps; ++i) {
      const uint64_t begin = random.Below(kSize);
      const uint64_t end = begin + 1 + random.Below(std::min<uint64_t>(kSize - begin, 12));
      for (uint64_t at = begin; at < end; ++at) ++times[at];
      records.Step(0, {{begin, end}});
    }
    const Audit audit = records.Examine({.dataset = kSize});
    uint64_t duplicated = 0;
    for (int n : times) duplicated += static_cast<uint64_t>(std::max(0, n - 1));
    ASSERT_EQ(audit.samples_duplicated, duplicated);
    ASSERT_EQ(audit.samples_missing, static_cast<uint64_t>(std::count(times.begin(), times.end(), 0)));
    ASSERT_EQ(audit.ok(), duplicated == 0 && audit.samples_missing == 0);
  }
}

}  // namespace
}  // namespace everstep::ctl
