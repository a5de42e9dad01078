// everstep demo: a whole training job on this host, and what it withstands. Children are watched, told and asked from
// this one thread; nothing is timed by sleeping: acts follow the job's progress and each other's visible effects.
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "base/file.h"
#include "checkpoint/loader.h"
#include "ctl/commands.h"
#include "ctl/demo_cast.h"
#include "ctl/demo_report.h"
#include "ctl/demo_script.h"
#include "ctl/status_client.h"
#include "ctl/status_table.h"

namespace everstep::ctl {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kPollEvery = milliseconds(100);
constexpr Duration kLineEvery = seconds(2);
constexpr Duration kStartPatience = seconds(60);
constexpr Duration kStallPatience = seconds(60);  // without a step, while training
constexpr Duration kEndPatience = seconds(120);   // evaluation and everybody's exit
constexpr Duration kFreeze = seconds(5);
constexpr double kAccuracyWanted = 0.87;
constexpr int kInterrupted = 130;
constexpr size_t kLogTailLines = 15;

// Lease = timeout / 10 = 2 s: a frozen worker is excluded well within its 5 s of sleep.
constexpr const char* kJob = R"(# Written by everstep demo.
name = "demo"
task = "fashion-mnist-cnn"
mode = "sync"
servers = 3
replication = 2
workers = "1:16"
batch = 192
epochs = %u
optimizer = "sgd"
learning-rate = 0.05
momentum = 0.9
nesterov = true
weight-decay = 0.0005
schedule = "cosine"
warmup-steps = 50
chunk-bytes = 65536
timeout-s = 20
)";

// Two of the servers are there at any time: as many as the job keeps copies.
const std::vector<PlannedAct> kPlan{{0.06, Act::kKill, "w2"},
                                    {0.12, Act::kKill, "ps1", Role::kServer},
                                    {0.20, Act::kJoin, "ps3", Role::kServer},
                                    {0.28, Act::kJoin, "w4"},
                                    {0.36, Act::kDrain, "ps2", Role::kServer},
                                    {0.44, Act::kFreeze, "w1"},
                                    {0.60, Act::kJoin, "ps4", Role::kServer},
                                    {0.66, Act::kKill, "", Role::kCoordinator},
                                    {0.74, Act::kDrain, "w3"},
                                    {0.80, Act::kJoin, "w5"}};

struct Options {
  std::string report;
  std::string keep;
  unsigned epochs = 8;
  unsigned threads = 1;
};

double NowMs() { return static_cast<double>(SteadyNow().ns) / 1e6; }

// Ctrl-C and SIGTERM, read instead of suffered, so that children and files never stay behind. Made before any thread
// is.
class Interrupts {
 public:
  Interrupts() {
    sigset_t signals;
    sigemptyset(&signals);
    for (int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
    sigprocmask(SIG_BLOCK, &signals, nullptr);
    fd_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    // A closed terminal or pipe must not end us before the children.
    signal(SIGPIPE, SIG_IGN);
  }
  ~Interrupts() { close(fd_); }

  // True once a signal has come; waits for one at most so long.
  bool Wait(Duration patience) {
    if (came_) return true;
    pollfd ready{fd_, POLLIN, 0};
    came_ = poll(&ready, 1, static_cast<int>(Milliseconds(patience))) > 0;
    return came_;
  }

 private:
  int fd_ = -1;
  bool came_ = false;
};

// The folder of the run: a temporary one that vanishes unless it is kept, or the user's.
class Folder {
 public:
  static Result<Folder> Make(const std::string& keep) {
    if (!keep.empty()) {
      EVERSTEP_RETURN_IF_ERROR(CreateFolders(keep));
      return Folder(std::filesystem::absolute(keep).string(), true);
    }
    std::error_code error;
    std::string name = (std::filesystem::temp_directory_path(error) / "everstep-demo-XXXXXX").string();
    if (error || mkdtemp(name.data()) == nullptr) {
      return Status(Code::kUnavailable,
                    "cannot make a temporary folder: " + std::string(std::strerror(errno)) + "; give --keep DIR");
    }
    return Folder(std::move(name), false);
  }
  Folder(Folder&& other) noexcept : path_(std::exchange(other.path_, {})), kept_(other.kept_) {}
  Folder& operator=(Folder&&) = delete;
  ~Folder() {
    if (path_.empty() || kept_) return;
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  bool kept() const { return kept_; }
  void Keep() { kept_ = true; }

 private:
  Folder(std::string path, bool kept) : path_(std::move(path)), kept_(kept) {}
  std::string path_;
  bool kept_;
};

// One run. A Status of kCancelled means that the user has interrupted it.
class Demo {
 public:
  Demo(Options options, Cast::Options cast, Interrupts& interrupts)
      : options_(std::move(options)), interrupts_(interrupts), cast_(std::move(cast)), script_(kPlan, kFreeze) {
    notes_.started_ms = NowMs();
    notes_.accuracy_wanted = kAccuracyWanted;
  }

  Status Perform() {
    EVERSTEP_RETURN_IF_ERROR(Start());
    EVERSTEP_RETURN_IF_ERROR(Train());
    EVERSTEP_RETURN_IF_ERROR(AwaitEnd());
    return Report();
  }
  Cast& cast() { return cast_; }

 private:
  void Say(const std::string& line) const {
    std::printf("%7.1f s  %s\n", (NowMs() - notes_.started_ms) / 1000, line.c_str());
    std::fflush(stdout);
  }

  Status Pause(Duration patience = kPollEvery) {
    return interrupts_.Wait(patience) ? Status(Code::kCancelled, "interrupted") : Status::Ok();
  }

  Status Start();
  Status AwaitAddress(const std::string& server);
  void FindServers();
  Status Train();
  Status Observe(json* status);
  void KeepEvents(const json& events);
  Status Do(const DemoScript::Cue& cue);
  Status DoToServer(const DemoScript::Cue& cue);
  Status AwaitEnd();
  Status VerifyCheckpoints();
  Status Report();

  const Options options_;
  Interrupts& interrupts_;
  Cast cast_;
  DemoScript script_;
  DemoNotes notes_;
  std::unique_ptr<StatusClient> client_;
  std::vector<std::string> asked_;  // its addresses
  Time next_line_;
  double last_step_ = -1;
  Time last_progress_;
};

Status Demo::AwaitAddress(const std::string& server) {
  const Time deadline = SteadyNow() + kStartPatience;
  while (cast_.AddressOf(server).empty()) {
    EVERSTEP_RETURN_IF_ERROR(cast_.Check(true));
    if (SteadyNow() > deadline) return {Code::kDeadlineExceeded, server + " does not listen"};
    EVERSTEP_RETURN_IF_ERROR(Pause(milliseconds(5)));
  }
  return Status::Ok();
}

Status Demo::Start() {
  Say("starting 3 servers, which keep two copies of everything, and 3 workers");
  EVERSTEP_RETURN_IF_ERROR(cast_.StartCoordinator("ps0"));
  EVERSTEP_RETURN_IF_ERROR(AwaitAddress("ps0"));
  const std::string address = cast_.AddressOf("ps0");
  Say("the job is at " + address + "  (look at it: everstep status --servers " + address + ")");
  for (const char* name : {"ps1", "ps2"}) EVERSTEP_RETURN_IF_ERROR(cast_.StartServer(name));
  for (const char* name : {"ps1", "ps2"}) EVERSTEP_RETURN_IF_ERROR(AwaitAddress(name));
  for (const char* name : {"w1", "w2", "w3"}) EVERSTEP_RETURN_IF_ERROR(cast_.StartWorker(name));
  last_progress_ = SteadyNow();
  return Status::Ok();
}

// Asks those who are there: the coordinator may be any of them.
void Demo::FindServers() {
  std::vector<std::string> addresses = cast_.Addresses();
  if (addresses == asked_ || addresses.empty()) return;
  asked_ = std::move(addresses);
  client_ = std::make_unique<StatusClient>(asked_);
}

// Until the job is complete or somebody has gone who should not, which Check() judges.
Status Demo::Train() {
  while (true) {
    EVERSTEP_RETURN_IF_ERROR(Pause());
    FindServers();
    const Result<std::string> answer = client_->Ask(seconds(2));
    EVERSTEP_RETURN_IF_ERROR(cast_.Check(true));
    if (!answer.ok()) {
      if (SteadyNow() - last_progress_ > kStallPatience)
        return answer.status().With("the coordinating server does not answer");
      continue;
    }
    json status = ParseJson(*answer);
    EVERSTEP_RETURN_IF_ERROR(Observe(&status));
    const std::string state = Text(status, "state");
    if (state == "finished") return Status::Ok();
    if (state == "failed") return {Code::kFailed, "the job failed: " + Printable(Text(status, "failure"))};
    if (const auto cue = script_.Next(SteadyNow(), status)) EVERSTEP_RETURN_IF_ERROR(Do(*cue));
  }
}

// A coordinator tells all that happened in its time of office, each time: what of it is new is shown and kept.
void Demo::KeepEvents(const json& events) {
  if (!events.is_array()) return;
  for (const json& event : events) {
    if (std::find(notes_.events.rbegin(), notes_.events.rend(), event) != notes_.events.rend()) continue;
    Say("    " + EventText(event));
    notes_.events.push_back(event);
  }
}

Status Demo::Observe(json* status) {
  KeepEvents(At(*status, "events"));
  (*status)["events"] = notes_.events;
  const std::string coordinator = Text(*status, "coordinator");
  if (!coordinator.empty() && (notes_.coordinators.empty() || notes_.coordinators.back() != coordinator))
    notes_.coordinators.push_back(coordinator);
  for (const json& server : At(*status, "servers")) {
    const std::string name = Text(server, "name");
    if (Count(server, "bytes") > 0 &&
        std::find(notes_.servers.begin(), notes_.servers.end(), name) == notes_.servers.end())
      notes_.servers.push_back(name);
  }
  const Time now = SteadyNow();
  const double step = Number(*status, "step");
  if (step > last_step_) {
    last_step_ = step;
    last_progress_ = now;
  }
  if (step > 0 && now >= next_line_) {
    next_line_ = now + kLineEvery;
    Say(ProgressLine(*status));
  }
  if (now - last_progress_ > kStallPatience) {
    return {Code::kDeadlineExceeded, "no step for 60 s, at step " + std::to_string(static_cast<uint64_t>(last_step_)) +
                                         ", waiting for " + script_.WaitsFor()};
  }
  return Status::Ok();
}

Status Demo::DoToServer(const DemoScript::Cue& cue) {
  switch (cue.act) {
    case Act::kKill: return cast_.Kill(cue.target);
    case Act::kJoin: return cast_.StartServer(cue.target);
    case Act::kDrain:
      EVERSTEP_RETURN_IF_ERROR(client_->Drain(cue.target, seconds(5)).With("draining " + cue.target));
      cast_.MayLeave(cue.target);
      return Status::Ok();
    case Act::kFreeze:
    case Act::kThaw: break;
  }
  return {Code::kInvalidArgument, "the demo's plan does not freeze servers"};
}

Status Demo::Do(const DemoScript::Cue& cue) {
  const std::string role = cue.role == Role::kWorker ? "" : ", the " + std::string(Name(cue.role));
  const std::string who = cue.target + role + " (pid " + std::to_string(cast_.pid(cue.target)) + ")";
  switch (cue.act) {
    case Act::kKill: Say("==> kill -9 " + who); break;
    case Act::kFreeze: Say("==> kill -STOP " + who + ": frozen for 5 s"); break;
    case Act::kThaw: Say("==> kill -CONT " + who + ": it wakes up"); break;
    case Act::kDrain:
      Say(cue.role == Role::kWorker ? "==> kill -TERM " + who + ": asked to leave" : "==> everstep drain " + who);
      break;
    case Act::kJoin: Say("==> a new " + std::string(Name(cue.role)) + ", " + cue.target); break;
  }
  if (cue.role != Role::kWorker) return DoToServer(cue);
  switch (cue.act) {
    case Act::kKill: return cast_.Kill(cue.target);
    case Act::kFreeze: return cast_.Freeze(cue.target);
    case Act::kThaw: return cast_.Thaw(cue.target);
    case Act::kDrain: return cast_.Drain(cue.target);
    case Act::kJoin: return cast_.StartWorker(cue.target);
  }
  return Status::Ok();
}

// One worker evaluates, everybody else may go; then the servers do.
Status Demo::AwaitEnd() {
  notes_.all_acts_seen = script_.Complete();
  if (!notes_.all_acts_seen)
    Say("the job is complete, and the demo still waited for " + script_.WaitsFor() + "; try --epochs " +
        std::to_string(2 * options_.epochs));
  client_.reset();
  Say("training is complete; one worker evaluates the model");
  const Time deadline = SteadyNow() + kEndPatience;
  while (!cast_.AllEnded()) {
    EVERSTEP_RETURN_IF_ERROR(cast_.Check(false));
    if (SteadyNow() > deadline) return {Code::kDeadlineExceeded, cast_.StillRunning() + " did not end"};
    EVERSTEP_RETURN_IF_ERROR(Pause(milliseconds(10)));
  }
  notes_.ended_ms = NowMs();
  EVERSTEP_RETURN_IF_ERROR(cast_.Check(false));
  return cast_.CheckNothingLeft();
}

// What the job has saved, with other eyes than the servers': every byte is read.
Status Demo::VerifyCheckpoints() {
  EVERSTEP_ASSIGN(std::unique_ptr<Store> made, MakeDirectoryStore(cast_.checkpoints_folder(), false));
  const std::shared_ptr<Store> store = std::move(made);
  EVERSTEP_ASSIGN(const std::vector<CheckpointEntry> entries, ListCheckpoints(*store));
  CheckpointsFound& found = notes_.checkpoints;
  for (const CheckpointEntry& entry : entries) {
    // A server that was killed while it wrote leaves what never became a checkpoint.
    if (!entry.has_manifest) continue;
    Result<Checkpoint> opened = Checkpoint::Open(store, entry.label);
    const Status fine = opened.ok() ? opened->Verify() : opened.status();
    if (!fine.ok()) {
      found.broken.push_back(entry.label + ": " + fine.message());
      continue;
    }
    if (found.complete++ > 0) continue;
    char digest[20];
    std::snprintf(digest, sizeof digest, "%016llx",
                  static_cast<unsigned long long>(opened->manifest().seal.digest.value));
    found.version = entry.version.value;
    found.label = entry.label;
    found.digest = digest;
  }
  return Status::Ok();
}

Status Demo::Report() {
  const std::string last = notes_.coordinators.empty() ? "ps0" : notes_.coordinators.back();
  const std::string report_path = cast_.ReportPath(last);
  EVERSTEP_ASSIGN(const std::string text, ReadFile(report_path));
  const json report = ParseJson(text);
  if (!report.is_object()) return {Code::kCorrupt, report_path + " is no JSON"};
  for (const json& event : At(report, "events")) {
    if (std::find(notes_.events.begin(), notes_.events.end(), event) == notes_.events.end())
      notes_.events.push_back(event);
  }
  EVERSTEP_RETURN_IF_ERROR(VerifyCheckpoints());
  AuditOptions audit_options;
  if (const uint64_t size = Count(At(report, "samples"), "dataset"); size > 0) {
    audit_options.dataset = size;
    audit_options.dataset_from = "report";
  }
  EVERSTEP_ASSIGN(Audit audit, AuditFiles({cast_.records_folder()}, audit_options));
  CompareWithReport(report, &audit);
  EVERSTEP_ASSIGN(const std::vector<CommitTime> commits, ReadCommitTimes(cast_.records_folder()));
  notes_.acts = script_.done();
  notes_.processes = cast_.size();
  json demo = DemoReport(notes_, report, audit, commits);
  const std::vector<std::string> shortcomings = Shortcomings(demo);
  demo["passed"] = shortcomings.empty();
  demo["shortcomings"] = shortcomings;
  std::printf("%s", DemoText(demo).c_str());
  std::printf("processes  %zu ended as expected, nothing is left behind\n", cast_.size());
  if (!options_.report.empty()) EVERSTEP_RETURN_IF_ERROR(WriteFileDurably(options_.report, demo.dump(2) + "\n"));
  if (shortcomings.empty()) return Status::Ok();
  std::string all;
  for (const std::string& line : shortcomings) all += (all.empty() ? "" : "; ") + line;
  return {Code::kFailed, all};
}

std::string JobFile(unsigned epochs) {
  char text[1024];
  std::snprintf(text, sizeof text, kJob, epochs);
  return text;
}

int Run(const Options& options) {
  Interrupts interrupts;
  Result<std::string> programs = ProgramFolder();
  if (!programs.ok()) return Complain(programs.status());
  Result<Folder> folder = Folder::Make(options.keep);
  if (!folder.ok()) return Complain(folder.status());
  Demo demo(options, {*programs, folder->path(), JobFile(options.epochs), options.threads}, interrupts);
  const Status outcome = demo.Perform();
  if (outcome.ok()) {
    std::printf("PASSED%s\n", folder->kept() ? ("; logs, records and report are in " + folder->path()).c_str() : "");
    return 0;
  }
  demo.cast().End();
  if (outcome.code() == Code::kCancelled) {
    std::printf("interrupted; all processes were ended\n");
    return kInterrupted;
  }
  folder->Keep();
  std::printf("%s", demo.cast().LogTails(kLogTailLines).c_str());
  std::printf("FAILED: %s\nlogs, records and report are in %s\n", outcome.message().c_str(), folder->path().c_str());
  return 1;
}

}  // namespace

void AddDemoCommand(CLI::App& app, Command* chosen) {
  CLI::App* command = app.add_subcommand("demo",
                                         "Train on this host with 3 servers and 3 workers; of both some are killed, "
                                         "drained and added, the coordinator too");
  auto options = std::make_shared<Options>();
  command->add_option("--report", options->report, "Write the findings to this file, as JSON (docs/reports.md)");
  command->add_option("--keep", options->keep, "Put job file, logs and records into this folder and leave them there");
  command->add_option("--epochs", options->epochs, "Passes over the data")
      ->check(CLI::Range(1u, 1000u))
      ->capture_default_str();
  command->add_option("--threads", options->threads, "Threads of each process")
      ->check(CLI::Range(1u, 256u))
      ->capture_default_str();
  command->footer(
      "Takes about a minute on 2 cores. Exit code 0: the accuracy is reached, every sample was used exactly\n"
      "once, the last checkpoint is whole, and all processes ended as they should. Next: everstep audit,\n"
      "everstep-ps --help.");
  command->callback([options, chosen] { *chosen = [options] { return Run(*options); }; });
}

}  // namespace everstep::ctl
