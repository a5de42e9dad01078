// The demo's script and its report, without any process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ctl/demo_report.h"
#include "ctl/demo_script.h"
#include "ctl/status_table.h"

namespace everstep::ctl {
namespace {

using std::chrono::milliseconds;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

Time At(int64_t ms) { return Time{ms * 1'000'000}; }

// A job's status as the script sees it.
struct Job {
  json status{{"step", 0}, {"steps_total", 100}, {"events", json::array()}, {"members", json::array()}};

  Job& Step(uint64_t step) {
    status["step"] = step;
    return *this;
  }
  Job& Event(double at_ms, const char* kind, const char* target) {
    status["events"].push_back({{"at_ms", at_ms}, {"kind", kind}, {"target", target}});
    return *this;
  }
  Job& Member(const char* name, uint64_t contributions) {
    status["members"] = {{{"name", name}, {"ready", true}, {"contributions", contributions}}};
    return *this;
  }
};

TEST(DemoScriptTest, AnActWaitsForItsShareOfTheSteps) {
  DemoScript script({{0.5, Act::kKill, "a"}}, milliseconds(10));
  Job job;
  EXPECT_FALSE(script.Next(At(1), job.Step(49).status));
  const auto cue = script.Next(At(2), job.Step(50).status);
  ASSERT_TRUE(cue);
  EXPECT_EQ(cue->act, Act::kKill);
  EXPECT_EQ(cue->target, "a");
  EXPECT_EQ(script.done().at(0).at_ms, 2);
}

TEST(DemoScriptTest, NothingHappensBeforeTheNumberOfStepsIsKnown) {
  DemoScript script({{0, Act::kKill, "a"}}, milliseconds(10));
  EXPECT_FALSE(script.Next(At(1), json{{"step", 0}, {"steps_total", 0}}));
  EXPECT_FALSE(script.Next(At(1), json()));
}

TEST(DemoScriptTest, TheNextActWaitsForTheEffectOfTheLast) {
  DemoScript script({{0, Act::kKill, "a"}, {0, Act::kDrain, "b"}}, milliseconds(10));
  Job job;
  job.Event(3, "worker-lost", "a");  // of an earlier life: before the act
  ASSERT_TRUE(script.Next(At(5), job.status));
  EXPECT_FALSE(script.Next(At(6), job.Step(99).status));
  EXPECT_THAT(script.WaitsFor(), HasSubstr("a to be reported lost"));
  EXPECT_FALSE(script.Next(At(7), job.Event(6, "worker-lost", "c").status));
  const auto cue = script.Next(At(8), job.Event(7, "worker-lost", "a").status);
  ASSERT_TRUE(cue);
  EXPECT_EQ(cue->act, Act::kDrain);
  EXPECT_FALSE(script.Complete());
  EXPECT_FALSE(script.Next(At(9), job.Event(9, "worker-left", "b").status));
  EXPECT_TRUE(script.Complete());
}

TEST(DemoScriptTest, AJoinIsSeenOnceItContributes) {
  DemoScript script({{0, Act::kJoin, "n"}}, milliseconds(10));
  Job job;
  ASSERT_TRUE(script.Next(At(5), job.status));
  (void)script.Next(At(6), job.Event(6, "worker-joined", "n").Member("n", 0).status);
  EXPECT_FALSE(script.Complete());
  (void)script.Next(At(7), job.Member("n", 1).status);
  EXPECT_TRUE(script.Complete());
}

TEST(DemoScriptTest, AFreezeEndsAfterItsTimeAndItsNoticeAndIsSeenByTheReturn) {
  DemoScript script({{0, Act::kFreeze, "f"}}, milliseconds(100));
  Job job;
  ASSERT_TRUE(script.Next(At(1000), job.status));
  EXPECT_FALSE(script.Next(At(1200), job.status)) << "nobody has noticed it yet";
  DemoScript early = script;
  EXPECT_FALSE(early.Next(At(1050), job.Event(1040, "worker-fenced", "f").status)) << "it must sleep its time";
  const auto cue = script.Next(At(1210), job.status);
  ASSERT_TRUE(cue);
  EXPECT_EQ(cue->act, Act::kThaw);
  // The old life's contributions are not its return.
  (void)script.Next(At(1220), job.Member("f", 5).status);
  EXPECT_FALSE(script.Complete());
  (void)script.Next(At(1230), job.Event(1225, "worker-ready", "f").status);
  EXPECT_TRUE(script.Complete());
  EXPECT_EQ(script.done().size(), 1u);
  EXPECT_EQ(script.done()[0].thawed_at_ms, 1210);
}

// ---- The report ----

struct Evidence {
  DemoNotes notes;
  json report;
  Audit audit;
  std::vector<CommitTime> commits;

  json Demo() const { return DemoReport(notes, report, audit, commits); }
};

Evidence GoodEvidence() {
  Evidence e;
  e.notes = {
      1000, 1100, 9000, {{Act::kKill, "a", 2000, 0}, {Act::kFreeze, "f", 4000, 5000}, {Act::kJoin, "n", 6000, 0}},
      true, 5,    0.8};
  Job job;
  job.Event(2010, "worker-lost", "a").Event(4200, "worker-fenced", "f").Event(5100, "worker-joined", "f");
  job.Event(5150, "worker-ready", "f").Event(6500, "worker-joined", "n");
  e.report = {{"evaluation", {{"accuracy", 0.9}}},
              {"events", job.status["events"]},
              {"members_max", 3},
              {"time", {{"goodput", 0.75}}},
              {"ended_ms", 8900.0},
              {"counters", {{"losses", 2}}}};
  e.audit.steps_committed = 6;
  e.commits = {{0, 1100, {"a"}},      {1, 1990, {"a", "f"}}, {2, 2030, {"f"}},     {3, 4250, {"b"}},
               {4, 5200, {"b", "f"}}, {5, 6550, {"b"}},      {6, 6600, {"b", "n"}}};
  return e;
}

TEST(DemoReportTest, EachActIsMatchedWithItsNoticeAndTheNextCommit) {
  const json demo = GoodEvidence().Demo();
  EXPECT_THAT(Shortcomings(demo), IsEmpty());
  const json& events = demo["events"];
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0]["kind"], "kill");
  EXPECT_EQ(events[0]["target"], "a");
  EXPECT_EQ(events[0]["at_ms"], 1000);
  EXPECT_EQ(events[0]["detected_ms"], 10);
  EXPECT_EQ(events[0]["next_commit_ms"], 30);
  EXPECT_EQ(events[0]["longest_pause_ms"], 40);
  EXPECT_EQ(events[1]["detected_ms"], 200);
  EXPECT_EQ(events[1]["thawed_ms"], 1000);
  EXPECT_EQ(events[1]["back_ms"], 1150);
  EXPECT_EQ(events[1]["contributed_ms"], 1200);
  EXPECT_EQ(events[2]["detected_ms"], 500);
  EXPECT_EQ(events[2]["contributed_ms"], 600);
  EXPECT_EQ(demo["test_accuracy"], 0.9);
  EXPECT_EQ(demo["goodput"], 0.75);
  EXPECT_EQ(demo["unplanned_losses"], 0);
  EXPECT_EQ(demo["phases"]["training_ms"], 5500);
  EXPECT_THAT(DemoText(demo), HasSubstr("accuracy   0.9000"));
}

TEST(DemoReportTest, EveryShortcomingIsNamed) {
  Evidence e = GoodEvidence();
  e.report["evaluation"]["accuracy"] = 0.79;
  EXPECT_THAT(Shortcomings(e.Demo()), Contains(HasSubstr("accuracy is 0.79")));
  e.report["evaluation"] = json::object();
  EXPECT_THAT(Shortcomings(e.Demo()), Contains(HasSubstr("no test accuracy")));
  e = GoodEvidence();
  e.audit.defects_found = 1;
  e.audit.defects = {"sample 5 is missing"};
  EXPECT_THAT(Shortcomings(e.Demo()), Contains("audit: sample 5 is missing"));
  e = GoodEvidence();
  e.notes.all_acts_seen = false;
  EXPECT_THAT(Shortcomings(e.Demo()), Contains(HasSubstr("before everything planned")));
  e = GoodEvidence();
  e.report["events"].erase(0);
  EXPECT_THAT(Shortcomings(e.Demo()), Contains("kill of a: there is no detected_ms"));
  e = GoodEvidence();
  e.commits.pop_back();
  EXPECT_THAT(Shortcomings(e.Demo()), Contains("join of n: there is no contributed_ms"));
  EXPECT_FALSE(Shortcomings(json()).empty());
}

TEST(StatusTableTest, ShowsWhatIsThereAndSurvivesWhatIsNot) {
  const json status =
      ParseJson(R"({"job":"fashion","state":"paused","mode":"sync","step":7,"steps_total":90,"now_ms":5000,
    "metrics":{"loss":0.5},"samples_per_second":1234.4,"members_max":2,
    "members":[{"name":"w\u001b[31m","ready":true,"working":false,"samples":64,"contributions":2,"seen_ms_ago":12}],
    "servers":[{"name":"ps0","address":"tcp://127.0.0.1:1","connected":false,"chunks":3,"bytes":3145728}],
    "counters":{"joins":2},"events":[{"at_ms":1000,"kind":"worker-lost","target":"w2","detail":"its link closed"}]})");
  const std::string text = StatusTable(status);
  for (const char* part : {"job fashion  paused", "step 7/90  loss 0.5000  1234 samples/s  1 worker  PAUSED", "w?[31m",
                           "waiting", "DOWN", "3.1 MB", "joins 2", "4.0 s ago  worker-lost w2: its link closed"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_EQ(text.find('\033'), std::string::npos) << "no peer may steer the terminal";
  EXPECT_THAT(StatusTable(json{{"state", "serving"}}), HasSubstr("does not coordinate"));
  for (const char* odd :
       {"null", "[]", "3", R"({"job":"x","members":[1,null],"servers":[[]],"events":[{}],"counters":7})"}) {
    EXPECT_FALSE(StatusTable(ParseJson(odd)).empty());
  }
}

}  // namespace
}  // namespace everstep::ctl
