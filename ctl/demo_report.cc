#include "ctl/demo_report.h"

#include <algorithm>
#include <cmath>

#include "ctl/records.h"
#include "ctl/text.h"

namespace everstep::ctl {
namespace {

double Tenths(double ms) { return std::round(ms * 10) / 10; }

// A time since another, or null when it never came.
json Since(std::optional<double> at, double since) { return at ? json(Tenths(*at - since)) : json(nullptr); }

std::optional<double> FirstCommit(const std::vector<CommitTime>& commits, double after_ms) {
  for (const CommitTime& commit : commits) {
    if (commit.at_ms >= after_ms) return commit.at_ms;
  }
  return std::nullopt;
}

std::optional<double> FirstContribution(const std::vector<CommitTime>& commits, const std::string& worker,
                                        double after_ms) {
  for (const CommitTime& commit : commits) {
    if (commit.at_ms < after_ms) continue;
    if (std::find(commit.workers.begin(), commit.workers.end(), worker) != commit.workers.end()) return commit.at_ms;
  }
  return std::nullopt;
}

// The longest time without a commit of which a part lies in [from, to].
double LongestPause(const std::vector<CommitTime>& commits, double from, double to) {
  double longest = 0;
  for (size_t i = 1; i < commits.size(); ++i) {
    if (commits[i].at_ms > from && commits[i - 1].at_ms < to)
      longest = std::max(longest, commits[i].at_ms - commits[i - 1].at_ms);
  }
  return longest;
}

json ActJson(const DoneAct& act, double started_ms, const json& events, const std::vector<CommitTime>& commits) {
  const auto detected = Noticed(events, act);
  const auto next = detected ? FirstCommit(commits, *detected) : std::nullopt;
  json out{{"kind", Name(act.act)},
           {"role", Name(act.role)},
           {"target", act.target},
           {"at_ms", Tenths(act.at_ms - started_ms)},
           {"detected_ms", Since(detected, act.at_ms)},
           {"next_commit_ms", Since(next, act.at_ms)},
           {"longest_pause_ms", Tenths(LongestPause(commits, act.at_ms, next.value_or(act.at_ms)))}};
  if (act.role != Role::kWorker) {
    out["whole_ms"] = Since(act.whole_at_ms > 0 ? std::optional(act.whole_at_ms) : std::nullopt, act.at_ms);
    return out;
  }
  if (act.act == Act::kJoin) {
    out["contributed_ms"] = Since(FirstContribution(commits, act.target, act.at_ms), act.at_ms);
  }
  if (act.act == Act::kFreeze) {
    out["thawed_ms"] = Tenths(act.thawed_at_ms - act.at_ms);
    out["back_ms"] = Since(FirstEvent(events, KindsOf(Act::kThaw), act.target, act.thawed_at_ms), act.at_ms);
    out["contributed_ms"] = Since(FirstContribution(commits, act.target, act.thawed_at_ms), act.at_ms);
  }
  return out;
}

double Percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

// From the granting of the work, or the commit before, to the commit.
json StepTimes(const std::vector<CommitTime>& commits) {
  std::vector<double> ms;
  for (size_t i = 1; i < commits.size(); ++i)
    ms.push_back(commits[i].at_ms - std::max(commits[i].granted_ms, commits[i - 1].at_ms));
  return {{"median", Tenths(Percentile(ms, 0.5))},
          {"p90", Tenths(Percentile(ms, 0.9))},
          {"p99", Tenths(Percentile(ms, 0.99))},
          {"max", Tenths(Percentile(ms, 1))}};
}

// Where the time went. Lost is what steps took over the median from one commit to the next while an act had been done
// and was not overcome yet.
json TimeSpent(const std::vector<CommitTime>& commits, const json& acts, double started_ms) {
  std::vector<double> ms;
  for (size_t i = 1; i < commits.size(); ++i) ms.push_back(commits[i].at_ms - commits[i - 1].at_ms);
  const double median = Percentile(ms, 0.5);
  double lost = 0;
  for (size_t i = 1; i < commits.size(); ++i) {
    const bool hit = std::any_of(acts.begin(), acts.end(), [&](const json& act) {
      const double from = started_ms + Number(act, "at_ms");
      return commits[i].at_ms > from && commits[i - 1].at_ms < from + Number(act, "next_commit_ms");
    });
    if (hit) lost += std::max(0.0, ms[i - 1] - median);
  }
  const double total = commits.empty() ? 0 : commits.back().at_ms - commits.front().at_ms;
  return {{"total_ms", Tenths(total)},
          {"lost_ms", Tenths(lost)},
          {"useful_ms", Tenths(total - lost)},
          {"goodput", total > 0 ? (total - lost) / total : 0.0}};
}

// Workers and servers that were lost although nobody had killed or frozen them.
size_t UnplannedLosses(const std::vector<DoneAct>& acts, const json& events) {
  size_t losses = 0;
  for (const json& event : events) {
    const std::string kind = Text(event, "kind");
    if (kind != "worker-lost" && kind != "worker-fenced" && kind != "server-lost") continue;
    losses += std::none_of(acts.begin(), acts.end(), [&](const DoneAct& act) {
      return (act.act == Act::kKill || act.act == Act::kFreeze) && act.target == Text(event, "target") &&
             act.at_ms <= Number(event, "at_ms");
    });
  }
  return losses;
}

json ToJson(const CheckpointsFound& found, const json& events) {
  const auto taken = std::count_if(events.begin(), events.end(),
                                   [](const json& event) { return Text(event, "kind") == "checkpoint"; });
  return {{"taken", taken},           {"complete", found.complete}, {"broken", found.broken},
          {"version", found.version}, {"digest", found.digest},     {"label", found.label}};
}

// "12 ms" or "-".
std::string Ms(const json& value) { return value.is_number() ? Format("%.0f ms", value.get<double>()) : "-"; }

std::string Pad(const std::string& text, size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

}  // namespace

Result<std::vector<CommitTime>> ReadCommitTimes(const std::string& records) {
  EVERSTEP_ASSIGN(RecordReader reader, RecordReader::Open({records}));
  std::vector<CommitTime> commits;
  while (const auto record = reader.Next()) {
    CommitTime commit{Count(*record, "step"), Number(*record, "committed_ms"), {}, Number(*record, "granted_ms")};
    for (const json& c : At(*record, "contributors")) commit.workers.push_back(Text(c, "name"));
    commits.push_back(std::move(commit));
  }
  EVERSTEP_RETURN_IF_ERROR(reader.status());
  return commits;
}

json DemoReport(const DemoNotes& notes, const json& report, const Audit& audit,
                const std::vector<CommitTime>& commits) {
  const json& events = notes.events;
  json acts = json::array();
  for (const DoneAct& act : notes.acts) acts.push_back(ActJson(act, notes.started_ms, events, commits));
  const double first = commits.empty() ? notes.ready_ms : commits.front().at_ms;
  const double last = commits.empty() ? first : commits.back().at_ms;
  // The evaluating worker leaves last; after that the servers wait a while for latecomers.
  double evaluated = last;
  for (const json& event : events) {
    if (Text(event, "kind") == "worker-left") evaluated = std::max(evaluated, Number(event, "at_ms"));
  }
  const json time = TimeSpent(commits, acts, notes.started_ms);
  return {{"test_accuracy", At(At(report, "evaluation"), "accuracy")},
          {"accuracy_wanted", notes.accuracy_wanted},
          {"steps_committed", audit.steps_committed},
          {"samples_expected", audit.samples_expected},
          {"samples_committed", audit.samples_committed},
          {"samples_duplicated", audit.samples_duplicated},
          {"samples_missing", audit.samples_missing},
          {"audit", ToJson(audit)},
          {"members_max", audit.members_max},
          {"servers", notes.servers},
          {"coordinators", notes.coordinators},
          {"checkpoints", ToJson(notes.checkpoints, events)},
          {"events", std::move(acts)},
          {"all_effects_seen", notes.all_acts_seen},
          {"unplanned_losses", UnplannedLosses(notes.acts, events)},
          {"goodput", At(time, "goodput")},
          {"time", time},
          {"step_ms", StepTimes(commits)},
          {"phases",
           {{"starting_ms", Tenths(first - notes.started_ms)},
            {"training_ms", Tenths(last - first)},
            {"evaluating_ms", Tenths(evaluated - last)},
            {"ending_ms", Tenths(std::max(0.0, notes.ended_ms - evaluated))},
            {"total_ms", Tenths(notes.ended_ms - notes.started_ms)}}},
          {"processes", notes.processes}};
}

std::vector<std::string> Shortcomings(const json& demo) {
  std::vector<std::string> list;
  const json& accuracy = At(demo, "test_accuracy");
  if (!accuracy.is_number()) {
    list.push_back("the job's report holds no test accuracy");
  } else if (!(accuracy.get<double>() >= Number(demo, "accuracy_wanted"))) {
    list.push_back("the test accuracy is " + Format("%.4f", accuracy.get<double>()) + ", wanted is " +
                   Format("%.2f", Number(demo, "accuracy_wanted")));
  }
  const json& defects = At(At(demo, "audit"), "defects");
  if (!Truth(At(demo, "audit"), "ok")) {
    for (const json& defect : defects)
      list.push_back("audit: " + (defect.is_string() ? defect.get<std::string>() : defect.dump()));
    if (defects.empty()) list.push_back("the audit was not passed");
  }
  const json& checkpoints = At(demo, "checkpoints");
  for (const json& broken : At(checkpoints, "broken"))
    list.push_back("checkpoint " + (broken.is_string() ? broken.get<std::string>() : broken.dump()));
  // One while the job ran, and the last version's.
  if (Number(checkpoints, "taken") < 2) list.push_back("no checkpoint was taken while the job ran");
  if (Count(checkpoints, "version") != Count(demo, "steps_committed") + 1) {
    list.push_back("the newest checkpoint is of version " + std::to_string(Count(checkpoints, "version")) +
                   ", the job ended at version " + std::to_string(Count(demo, "steps_committed") + 1));
  } else if (Text(checkpoints, "digest") != Text(At(demo, "audit"), "digest")) {
    list.push_back("the newest checkpoint is of another history than the records");
  }
  if (!Truth(demo, "all_effects_seen"))
    list.push_back("the job was complete before everything planned had been tried and seen");
  for (const json& act : At(demo, "events")) {
    for (const char* key : {"detected_ms", "next_commit_ms", "contributed_ms", "back_ms", "whole_ms"}) {
      if (act.contains(key) && !act[key].is_number()) {
        list.push_back(Text(act, "kind") + " of " + Text(act, "target") + ": there is no " + key);
      }
    }
  }
  return list;
}

std::string DemoText(const json& demo) {
  std::string text = "\nwhat was done                   noticed   next step   longest pause   then\n";
  for (const json& act : At(demo, "events")) {
    std::string then;
    if (act.contains("back_ms")) {
      then = "woken after " + Ms(act["thawed_ms"]) + ", back " +
             Ms(json(Number(act, "back_ms") - Number(act, "thawed_ms"))) + " later";
    } else if (act.contains("whole_ms")) {
      then = "two copies of everything after " + Ms(act["whole_ms"]);
    } else if (act.contains("contributed_ms")) {
      then = "first contribution after " + Ms(act["contributed_ms"]);
    }
    const std::string role = Text(act, "role") == "worker" ? "" : " (" + Text(act, "role") + ")";
    std::string what = Text(act, "kind") + " " + Text(act, "target") + role;
    what.resize(std::max<size_t>(what.size(), 22), ' ');
    text += Pad(Format("%.1f s", Number(act, "at_ms") / 1000), 8) + "  " + what + Pad(Ms(At(act, "detected_ms")), 11) +
            Pad(Ms(At(act, "next_commit_ms")), 12) + Pad(Ms(At(act, "longest_pause_ms")), 16) +
            (then.empty() ? "" : "   " + then) + "\n";
  }
  const json& phases = At(demo, "phases");
  const json& step = At(demo, "step_ms");
  const auto seconds = [&](const char* key) { return Format("%.1f s", Number(phases, key) / 1000); };
  const auto count = [&](const char* key) { return Format("%.0f", Number(demo, key)); };
  text += "\naccuracy   " + Format("%.4f", Number(demo, "test_accuracy")) + " on the test images (at least " +
          Format("%.2f", Number(demo, "accuracy_wanted")) + " wanted)\n";
  text += "samples    " + count("samples_expected") + " expected, " + count("samples_committed") + " committed, " +
          count("samples_duplicated") + " duplicated, " + count("samples_missing") + " missing (by the auditor)\n";
  text += "steps      " + count("steps_committed") + " committed; median " + Format("%.0f ms", Number(step, "median")) +
          ", p99 " + Format("%.0f ms", Number(step, "p99")) + ", slowest " + Format("%.0f ms", Number(step, "max")) +
          "; at most " + count("members_max") + " workers\n";
  const auto names = [&](const char* key) {
    std::string all;
    for (const json& name : At(demo, key))
      all += (all.empty() ? "" : ", ") + (name.is_string() ? name.get<std::string>() : name.dump());
    return all;
  };
  const json& checkpoints = At(demo, "checkpoints");
  text += "servers    " + names("servers") + " held the parameters; coordinated by " + names("coordinators") + "\n";
  text += "saved      " + Format("%.0f", Number(checkpoints, "taken")) + " checkpoints";
  if (Number(checkpoints, "version") > 0)
    text +=
        "; the newest, of step " + Format("%.0f", Number(checkpoints, "version") - 1) + ", verified to the last byte";
  text += "\n";
  text += "time       " + seconds("total_ms") + ": starting " + seconds("starting_ms") + ", training " +
          seconds("training_ms") + ", evaluating " + seconds("evaluating_ms") + ", ending " + seconds("ending_ms") +
          "\n";
  text += "goodput    " + Format("%.3f", Number(demo, "goodput")) + " (lost " +
          Format("%.0f ms", Number(At(demo, "time"), "lost_ms")) + " to what was done to it)\n";
  if (Number(demo, "unplanned_losses") > 0) {
    text += "note       " + count("unplanned_losses") +
            " more processes were lost for a while; this host is busy, or was asleep\n";
  }
  return text;
}

}  // namespace everstep::ctl
