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

// Servers by name, with the bytes that each holds.
void SetServers(Job& job, const char* coordinator, const std::vector<std::pair<const char*, uint64_t>>& servers) {
  job.status["coordinator"] = coordinator;
  job.status["servers"] = json::array();
  for (const auto& [name, bytes] : servers) job.status["servers"].push_back({{"name", name}, {"bytes", bytes}});
}

TEST(DemoScriptTest, AKilledServerIsOvercomeOnceAllCopiesAreThereAgain) {
  DemoScript script({{0, Act::kKill, "p1", Role::kServer}}, milliseconds(10));
  Job job;
  SetServers(job, "p0", {{"p0", 40}, {"p1", 40}, {"p2", 40}});
  const auto cue = script.Next(At(5), job.status);
  ASSERT_TRUE(cue);
  EXPECT_EQ(cue->role, Role::kServer);
  SetServers(job, "p0", {{"p0", 60}, {"p2", 60}});
  (void)script.Next(At(6), job.status);
  EXPECT_FALSE(script.Complete()) << "nobody has said that it is lost";
  job.Event(6, "server-lost", "p1");
  SetServers(job, "p0", {{"p0", 40}, {"p2", 60}});
  (void)script.Next(At(7), job.status);
  EXPECT_FALSE(script.Complete()) << "not all copies have been made again";
  EXPECT_THAT(script.WaitsFor(), HasSubstr("p1 to be reported lost and its copies to be made again"));
  SetServers(job, "p0", {{"p0", 60}, {"p2", 60}});
  (void)script.Next(At(8), job.status);
  EXPECT_TRUE(script.Complete());
  EXPECT_EQ(script.done()[0].whole_at_ms, 8);
}

TEST(DemoScriptTest, AServerHasJoinedOnceItHoldsAShareAndLeftOnceItHoldsNothing) {
  DemoScript script({{0, Act::kJoin, "p2", Role::kServer}, {0, Act::kDrain, "p1", Role::kServer}}, milliseconds(10));
  Job job;
  SetServers(job, "p0", {{"p0", 60}, {"p1", 60}});
  ASSERT_TRUE(script.Next(At(5), job.status));
  job.Event(6, "server-joined", "p2");
  SetServers(job, "p0", {{"p0", 60}, {"p1", 60}, {"p2", 0}});
  EXPECT_FALSE(script.Next(At(7), job.status));
  SetServers(job, "p0", {{"p0", 40}, {"p1", 40}, {"p2", 40}});
  ASSERT_TRUE(script.Next(At(8), job.status)) << "the next act";
  job.Event(9, "server-drained", "p1");
  (void)script.Next(At(10), job.status);
  EXPECT_FALSE(script.Complete()) << "it still holds something";
  SetServers(job, "p0", {{"p0", 60}, {"p1", 0}, {"p2", 60}});
  (void)script.Next(At(11), job.status);
  EXPECT_TRUE(script.Complete());
}

TEST(DemoScriptTest, WhoeverCoordinatesIsKilledAndAnotherMustTakeOffice) {
  DemoScript script({{0, Act::kKill, "", Role::kCoordinator}}, milliseconds(10));
  Job job;
  job.status["servers"] = json::array();
  EXPECT_FALSE(script.Next(At(4), job.status)) << "nobody has said who coordinates";
  SetServers(job, "p1", {{"p0", 40}, {"p1", 40}, {"p2", 40}});
  job.Event(3, "recovered", "1");  // of earlier
  const auto cue = script.Next(At(5), job.status);
  ASSERT_TRUE(cue);
  EXPECT_EQ(cue->target, "p1");
  EXPECT_FALSE(script.Next(At(6), json{{"state", "serving"}})) << "only who does not coordinate answers";
  SetServers(job, "p0", {{"p0", 60}, {"p2", 60}});
  (void)script.Next(At(7), job.status);
  EXPECT_FALSE(script.Complete());
  job.Event(7, "recovered", "4");
  (void)script.Next(At(8), job.status);
  EXPECT_TRUE(script.Complete());
  EXPECT_EQ(script.done()[0].target, "p1");
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
  e.notes.started_ms = 1000;
  e.notes.ready_ms = 1100;
  e.notes.ended_ms = 9000;
  e.notes.acts = {{Act::kKill, "a", 2000, 0},
                  {Act::kFreeze, "f", 4000, 5000},
                  {Act::kJoin, "n", 6000, 0},
                  {Act::kKill, "p0", 6560, 0, Role::kCoordinator, 6620}};
  e.notes.all_acts_seen = true;
  e.notes.processes = 5;
  e.notes.accuracy_wanted = 0.8;
  e.notes.coordinators = {"p0", "p1"};
  e.notes.servers = {"p0", "p1", "p2"};
  e.notes.checkpoints = {2, {}, 7, "00000000000000d7", "v7"};
  Job job;
  job.Event(2010, "worker-lost", "a").Event(4200, "worker-fenced", "f").Event(5100, "worker-joined", "f");
  job.Event(5150, "worker-ready", "f").Event(6500, "worker-joined", "n").Event(6510, "checkpoint", "v3");
  job.Event(6580, "recovered", "2").Event(6610, "checkpoint", "v7");
  e.notes.events = job.status["events"];
  e.report = {{"evaluation", {{"accuracy", 0.9}}}};
  e.audit.steps_committed = 6;
  e.audit.digest = "00000000000000d7";
  e.commits = {{0, 1100, {"a"}},      {1, 1990, {"a", "f"}}, {2, 2030, {"f"}},     {3, 4250, {"b"}},
               {4, 5200, {"b", "f"}}, {5, 6550, {"b"}},      {6, 6600, {"b", "n"}}};
  return e;
}

TEST(DemoReportTest, EachActIsMatchedWithItsNoticeAndTheNextCommit) {
  const json demo = GoodEvidence().Demo();
  EXPECT_THAT(Shortcomings(demo), IsEmpty());
  const json& events = demo["events"];
  ASSERT_EQ(events.size(), 4u);
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
  EXPECT_EQ(events[3]["role"], "coordinator");
  EXPECT_EQ(events[3]["detected_ms"], 20);
  EXPECT_EQ(events[3]["next_commit_ms"], 40);
  EXPECT_EQ(events[3]["whole_ms"], 60);
  EXPECT_EQ(demo["checkpoints"]["taken"], 2);
  EXPECT_EQ(demo["unplanned_losses"], 0);
  EXPECT_EQ(demo["phases"]["training_ms"], 5500);
  EXPECT_THAT(DemoText(demo), HasSubstr("accuracy   0.9000"));
  EXPECT_THAT(DemoText(demo), HasSubstr("coordinated by p0, p1"));
}

TEST(DemoReportTest, WhatStepsTookIsByTheRecordsAndWhatTheActsCostIsOverTheMedian) {
  Evidence e;
  e.notes.acts = {{Act::kKill, "a", 1250, 0}};
  e.notes.events = {{{"at_ms", 1260.0}, {"kind", "worker-lost"}, {"target", "a"}},
                    {{"at_ms", 1270.0}, {"kind", "server-lost"}, {"target", "p"}}};
  e.commits = {{0, 1000, {}, 900}, {1, 1100, {}, 1000}, {2, 1200, {}, 1150}, {3, 1500, {}, 1200}, {4, 1600, {}, 1500}};
  const json demo = e.Demo();
  EXPECT_EQ(demo["step_ms"]["max"], 300);
  EXPECT_EQ(demo["step_ms"]["median"], 100);
  EXPECT_EQ(demo["time"]["total_ms"], 600);
  EXPECT_EQ(demo["time"]["lost_ms"], 200) << "one step of 300 ms instead of 100";
  EXPECT_EQ(demo["unplanned_losses"], 1) << "nobody has killed p";
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
  e.notes.events.erase(0);
  EXPECT_THAT(Shortcomings(e.Demo()), Contains("kill of a: there is no detected_ms"));
  e = GoodEvidence();
  e.notes.acts[3].whole_at_ms = 0;
  EXPECT_THAT(Shortcomings(e.Demo()), Contains("kill of p0: there is no whole_ms"));
  e = GoodEvidence();
  e.notes.checkpoints.broken = {"v5: ps0's file is cut off"};
  EXPECT_THAT(Shortcomings(e.Demo()), Contains("checkpoint v5: ps0's file is cut off"));
  e = GoodEvidence();
  e.notes.checkpoints.version = 6;
  EXPECT_THAT(Shortcomings(e.Demo()), Contains(HasSubstr("of version 6, the job ended at version 7")));
  e = GoodEvidence();
  e.notes.checkpoints.digest = "00000000000000d6";
  EXPECT_THAT(Shortcomings(e.Demo()), Contains(HasSubstr("another history")));
  e = GoodEvidence();
  e.notes.events.erase(e.notes.events.size() - 1);
  EXPECT_THAT(Shortcomings(e.Demo()), Contains(HasSubstr("no checkpoint was taken while")));
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
