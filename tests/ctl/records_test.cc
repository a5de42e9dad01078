// A job's records in several files: the union of what its coordinators have written, and what contradicts itself.
#include "ctl/records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/ctl/made_records.h"
#include "tests/support/temp_dir.h"

namespace everstep::ctl {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class RecordsTest : public testing::Test {
 protected:
  // Writes the records of the steps [begin, end) as one coordinator would; its path.
  std::string Write(const std::string& name, const Records& records, size_t begin, size_t end,
                    const std::string& more = {}) {
    std::ofstream file(folder_ / name);
    file << records.job.dump() << "\n";
    for (size_t i = begin; i < end; ++i) file << records.commits[i].dump() << "\n";
    file << more;
    return folder_ / name;
  }

  static Audit Examine(const std::vector<std::string>& paths, bool unfinished = false) {
    return AuditFiles(paths, {.dataset = 10, .unfinished = unfinished}).value();
  }

  const Records good_ = GoodRecords();  // steps 0 to 5
  test::TempDir folder_;
};

TEST_F(RecordsTest, CoordinatorsInTurnAreOneHistoryInWhateverOrderTheyAreNamed) {
  Records later = good_;
  // The second coordinator names the step that it found committed once more, later and without names.
  later.commits[3]["committed_ms"] = 1e6;
  later.commits[3]["members"] = 0;
  later.commits[3]["contributors"][0]["name"] = "";
  const std::string a = Write("a.jsonl", good_, 0, 4);
  const std::string b = Write("b.jsonl", later, 3, 6);
  for (const auto& paths : {std::vector{a, b}, {b, a}, {b, a, b}, {folder_.path()}, {folder_.path(), a}}) {
    const Audit audit = Examine(paths);
    EXPECT_TRUE(audit.ok()) << testing::PrintToString(audit.defects);
    EXPECT_EQ(audit.steps_committed, 5u);
    EXPECT_EQ(audit.samples_committed, 20u);
  }
  RecordReader reader = RecordReader::Open({b, a}).value();
  std::vector<uint64_t> steps;
  double third = 0;
  while (const auto commit = reader.Next()) {
    steps.push_back(Count(*commit, "step"));
    if (steps.back() == 3) third = Number(*commit, "committed_ms");
  }
  EXPECT_THAT(steps, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ(third, 1003) << "the first to see it committed is believed";
  EXPECT_THAT(reader.TakeDefects(), IsEmpty());
}

TEST_F(RecordsTest, OfficeMayGoBackAndForth) {
  Records twice = good_;
  twice.commits.insert(twice.commits.begin() + 2, twice.commits[1]);
  twice.commits.erase(twice.commits.begin() + 3, twice.commits.begin() + 5);  // steps 0 1 1 4 5
  EXPECT_TRUE(Examine({Write("a", twice, 0, 5), Write("b", good_, 2, 4)}).ok());
}

TEST_F(RecordsTest, AMissingFileLeavesAHoleThatIsNamed) {
  const std::string a = Write("a", good_, 0, 2);
  Write("b", good_, 2, 4);
  const std::string c = Write("c", good_, 4, 6);
  const Audit audit = Examine({a, c});
  EXPECT_THAT(audit.defects,
              Contains(HasSubstr("step 4 follows step 1; if its coordinators changed, give the records")));
  EXPECT_THAT(Examine({c}).defects, Contains(HasSubstr("the first commit is step 4")));
}

TEST_F(RecordsTest, TwoHistoriesOfOneStepAreNamedWithBothFiles) {
  const std::string a = Write("a", good_, 0, 6);
  const auto spoiled = [&](const std::function<void(json&)>& spoil) {
    Records other = good_;
    spoil(other.commits[2]);
    return Examine({a, Write("b", other, 2, 3)});
  };
  EXPECT_TRUE(spoiled([](json&) {}).ok());
  EXPECT_THAT(spoiled([](json& c) { c["digest"] = Digest(99); }).defects,
              Contains(testing::AllOf(HasSubstr("step 2 has another digest than in"), HasSubstr("/a: two histories"),
                                      HasSubstr("/b: "))));
  EXPECT_THAT(spoiled([](json& c) { c["scale"] = 0.5; }).defects, Contains(HasSubstr("another scale")));
  EXPECT_THAT(spoiled([](json& c) {
                c["contributors"][0]["ranges"] = {{6, 7}};
              }).defects,
              Contains(HasSubstr("another contributor")));
  EXPECT_THAT(spoiled([](json& c) { c["contributors"].push_back(c["contributors"][0]); }).defects,
              Contains(HasSubstr("another number of contributors")));
}

TEST_F(RecordsTest, AnotherJobsFileIsNoPartOfIt) {
  Records other = good_;
  other.job["uid"] = "00000000000000bb";
  const Audit audit = Examine({Write("a", good_, 0, 6), Write("b", other, 5, 6)});
  EXPECT_THAT(audit.defects, Contains(HasSubstr("is of another job (uid)")));
}

TEST_F(RecordsTest, ACutOffLineMattersOnlyWhereNobodyWentOn) {
  const std::string torn = "{\"step\":4,\"bal";
  EXPECT_TRUE(Examine({Write("a", good_, 0, 4, torn), Write("b", good_, 3, 6)}).ok());
  const std::string a = Write("a", good_, 0, 4);
  const std::string b = Write("b", good_, 4, 6, torn);
  EXPECT_THAT(Examine({a, b}).defects, Contains(HasSubstr("cut off")));
  EXPECT_TRUE(Examine({a, b}, true).ok());
}

TEST_F(RecordsTest, DamagedLinesAreNamedByFileAndLine) {
  const std::string a = Write("a", good_, 0, 6);
  EXPECT_THAT(Examine({a, Write("b", good_, 1, 2, "nonsense\n{}\n")}).defects,
              testing::IsSupersetOf({HasSubstr("/b: line 3 is no JSON object"), HasSubstr("/b: line 4 is no commit")}));
  EXPECT_THAT(Examine({a, Write("b", good_, 4, 5, good_.commits[2].dump() + "\n")}).defects,
              Contains(HasSubstr("/b: line 3: step 2 stands behind step 4")));
  std::ofstream(folder_ / "empty").flush();
  EXPECT_TRUE(Examine({a, folder_ / "empty"}).ok());
  EXPECT_FALSE(Examine({folder_ / "empty"}).ok());
}

TEST_F(RecordsTest, WhatCannotBeReadIsAnError) {
  EXPECT_EQ(RecordReader::Open({folder_ / "none"}).status().code(), Code::kNotFound);
  std::filesystem::create_directory(folder_ / "bare");
  const Status bare = RecordReader::Open({folder_ / "bare"}).status();
  EXPECT_EQ(bare.code(), Code::kNotFound);
  EXPECT_THAT(bare.message(), HasSubstr("--records"));
}

}  // namespace
}  // namespace everstep::ctl
