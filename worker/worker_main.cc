// everstep-worker: trains a built-in task or a TorchScript module as one member of a job.
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/file.h"
#include "base/log.h"
#include "discovery/find_job.h"
#include "transport/tuning.h"
#include "worker/fetch_job.h"
#include "worker/stop_signal.h"
#include "worker/tasks/runtime.h"
#include "worker/tasks/task.h"
#include "worker/worker.h"

namespace everstep {
namespace {

// Steps at which the worker misbehaves, for tests of the servers; 0: never.
struct Faults {
  uint64_t nan_at_step = 0;
  bool nan_always = false;
  uint64_t hang_at_step = 0;
};

struct Flags {
  WorkerOptions worker;
  TaskOptions task;
  std::string task_name;
  std::optional<uint64_t> seed;
  int threads = 1;
  double timeout_s = 30;
  uint64_t slow_ms = 0;
  std::string log_level = "info";
  std::string report_path;
  bool no_overlap = false;
  Faults faults;
};

// What the program tells at its end.
struct Outcome {
  Status status;
  bool left = false;  // on request
  bool finished = false;
  std::string job;
  Worker::Stats stats;
  std::vector<Metric> last_step;
  std::vector<Metric> evaluation;
};

void AddFlags(CLI::App& app, Flags* flags) {
  app.add_option("--servers", flags->worker.servers,
                 "Addresses of servers, tcp://HOST:PORT,...; or where they are found: etcd://HOST:PORT/JOB")
      ->required()
      ->delimiter(',');
  app.add_option("--job", flags->worker.job, "Name of the job, to be sure that it is the right one");
  app.add_option("--name", flags->worker.name, "Name for people; a new worker of that name takes the old one's place");
  app.add_option("--task", flags->task_name, "What to train: " + TaskNames() + "; default: what the job says");
  app.add_option(
         "--data", flags->task.data,
         "Fashion-MNIST: its folder. char-transformer: a text file or a folder. script: FILE.csv (last column = "
         "label) or FEATURES,LABELS, both .npy or IDX")
      ->delimiter(',');
  app.add_option("--module", flags->task.module, "Task script: the TorchScript file");
  app.add_option("--limit", flags->task.limit, "Use at most so many samples; 0: all")->capture_default_str();
  app.add_option("--seed", flags->seed, "Of the initial values; default: the job's");
  app.add_option("--threads", flags->threads, "Threads for computing")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app.add_option("--timeout-s", flags->timeout_s, "How long to look for the servers before giving up")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 86400.0));
  app.add_flag("--no-overlap", flags->no_overlap, "Send gradients after backward instead of during it");
  app.add_flag("!--no-shared-memory", flags->worker.shared_memory,
               "Speak to servers of this host through sockets too, instead of through shared memory");
  app.add_option("--keep-contributions", flags->worker.keep_contributions,
                 "Keep every contribution in this folder, so that `everstep replay` can compute the parameters again");
  app.add_option("--report", flags->report_path, "Write a JSON report to this file at the end");
  app.add_option("--log-level", flags->log_level, "debug, info, warning, error or off")->capture_default_str();
  const std::string tests = "Fault injection, for tests";
  app.add_option("--slow-ms", flags->slow_ms, "Sleep so long in each step")->group(tests);
  app.add_option("--inject-nan-at-step", flags->faults.nan_at_step, "Contribute NaN once, at this step or after it")
      ->group(tests);
  app.add_flag("--inject-nan-always", flags->faults.nan_always, "Contribute NaN in every step")->group(tests);
  app.add_option("--hang-at-step", flags->faults.hang_at_step, "Stop computing for ever at this step or after it")
      ->group(tests);
}

// The worker while there is one, for the thread that waits for signals.
class Running {
 public:
  void Begin(Worker* worker) {
    std::lock_guard lock(mutex_);
    worker_ = worker;
  }
  // From here on the program ends by itself.
  void End() {
    std::lock_guard lock(mutex_);
    worker_ = nullptr;
    ended_ = true;
  }

  void Stop() {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    if (worker_ == nullptr) {
      // Nothing was promised to anybody yet: ending is leaving.
      log::Info("asked to stop before it joined");
      _exit(0);
    }
    log::Info("asked to stop: leaving after this step; once more to stop at once");
    worker_->RequestLeave();
  }

 private:
  std::mutex mutex_;
  Worker* worker_ = nullptr;
  bool ended_ = false;
};

void Sleep(uint64_t ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

[[noreturn]] void Hang() {
  log::Warning("hanging, as --hang-at-step asks");
  for (;;) pause();
}

// Trains until the job is complete, this worker is to leave, or something fails.
Status Train(const Flags& flags, Task& task, Worker& worker, Outcome* outcome) {
  bool nan_due = flags.faults.nan_at_step > 0;
  while (std::optional<Step> step = worker.NextStep()) {
    if (flags.faults.hang_at_step > 0 && step->number() >= flags.faults.hang_at_step) Hang();
    if (flags.slow_ms > 0) Sleep(flags.slow_ms);
    double scale = 1;
    if (flags.faults.nan_always || (nan_due && step->number() >= flags.faults.nan_at_step)) {
      scale = std::numeric_limits<double>::quiet_NaN();
      nan_due = false;
    }
    EVERSTEP_ASSIGN(outcome->last_step, task.Step(step->samples(), scale));
    // A contribution that came too late is none of our trouble, and anything worse is in worker.status().
    const Status committed = step->Commit(outcome->last_step);
    if (!committed.ok()) log::Debug("step " + std::to_string(step->number()) + ": " + committed.ToString());
  }
  return worker.status();
}

std::string Text(const std::vector<Metric>& metrics) {
  std::string text;
  for (const Metric& metric : metrics) {
    char number[64];
    std::snprintf(number, sizeof number, " %.4f", metric.value);
    text += (text.empty() ? "" : ", ") + metric.name + number;
  }
  return text;
}

Status Evaluate(Task& task, Worker& worker, Outcome* outcome) {
  EVERSTEP_ASSIGN(outcome->evaluation, task.Evaluate([&worker] { worker.KeepAlive(); }));
  worker.ReportEvaluation(outcome->evaluation);
  std::printf("evaluation: %s\n", Text(outcome->evaluation).c_str());
  std::fflush(stdout);
  return Status::Ok();
}

// The task and the seed: what the flags leave open, the job says.
Status CompleteFlags(Flags* flags) {
  if (!flags->task_name.empty() && flags->seed) {
    flags->task.seed = *flags->seed;
    return Status::Ok();
  }
  EVERSTEP_ASSIGN(const JobSpec job, FetchJob(flags->worker.servers, flags->worker.timeout));
  flags->task.seed = flags->seed.value_or(job.seed);
  if (!flags->task_name.empty()) return Status::Ok();
  flags->task_name = job.task;
  if (!job.task.empty()) return Status::Ok();
  return {Code::kInvalidArgument, "job '" + job.name + "' names no task; pass --task, one of " + TaskNames()};
}

Status Work(Flags flags, Running* running, Outcome* outcome) {
  EVERSTEP_RETURN_IF_ERROR(ResolveServers(&flags.worker.servers, flags.worker.timeout));
  EVERSTEP_RETURN_IF_ERROR(CompleteFlags(&flags));
  EVERSTEP_ASSIGN(const std::unique_ptr<Task> task, MakeTask(flags.task_name, flags.task));
  flags.worker.dataset_size = task->dataset_size();
  EVERSTEP_ASSIGN(Worker worker, Worker::Join(flags.worker, task->model()));
  outcome->job = worker.job().name;
  log::Info("joined job '" + outcome->job + "': " + flags.task_name + ", " + std::to_string(flags.worker.dataset_size) +
            " samples");
  running->Begin(&worker);
  Status status = Train(flags, *task, worker, outcome);
  outcome->left = status.code() == Code::kCancelled;
  outcome->finished = worker.finished();
  if (status.ok() && worker.finished() && worker.evaluate()) status = Evaluate(*task, worker, outcome);
  running->End();
  outcome->stats = worker.stats();
  return status;
}

nlohmann::json Json(const std::vector<Metric>& metrics) {
  nlohmann::json object = nlohmann::json::object();
  // JSON has no NaN; nlohmann writes null.
  for (const Metric& metric : metrics) object[metric.name] = metric.value;
  return object;
}

Status WriteReport(const std::string& path, const Outcome& outcome, int exit_code) {
  const Worker::Stats& stats = outcome.stats;
  const nlohmann::json report = {
      {"status", outcome.status.ok() ? "ok" : Name(outcome.status.code())},
      {"message", outcome.status.message()},
      {"exit_code", exit_code},
      {"job", outcome.job},
      {"finished", outcome.finished},
      {"left", outcome.left},
      {"stats",
       {{"lives", stats.lives},
        {"steps", stats.steps},
        {"dropped", stats.dropped},
        {"nonfinite", stats.nonfinite},
        {"links", stats.links},
        {"bytes_sent", stats.bytes_sent},
        {"bytes_received", stats.bytes_received},
        {"waiting_s", Seconds(stats.waiting)},
        {"copying_s", Seconds(stats.copying)}}},
      {"last_step", Json(outcome.last_step)},
      {"evaluation", outcome.evaluation.empty() ? nlohmann::json() : Json(outcome.evaluation)},
  };
  return WriteFileDurably(path, report.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

int Finish(const Flags& flags, const Outcome& outcome) {
  int exit_code = outcome.left ? 0 : ExitCode(outcome.status.code());
  if (exit_code != 0) log::Error(outcome.status.message());
  if (flags.report_path.empty()) return exit_code;
  if (const Status written = WriteReport(flags.report_path, outcome, exit_code); !written.ok()) {
    if (exit_code == 0) {
      log::Error(written.message());
      exit_code = ExitCode(written.code());
    }
  }
  return exit_code;
}

int Run(int argc, char** argv) {
  CLI::App app{"everstep-worker: trains as one member of a job. It may come, leave and be killed at any time."};
  Flags flags;
  AddFlags(app, &flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : ExitCode(Code::kInvalidArgument);
  }
  if (!log::SetLevel(flags.log_level)) {
    log::Error("--log-level must be debug, info, warning, error or off");
    return ExitCode(Code::kInvalidArgument);
  }
  log::SetName(flags.worker.name.empty() ? "everstep-worker" : flags.worker.name);
  transport::TuneAllocator();
  flags.worker.timeout = Duration(static_cast<int64_t>(flags.timeout_s * 1e9));
  flags.worker.overlap = !flags.no_overlap;

  Running running;
  Outcome outcome;
  {
    StopSignal stop([&running] { running.Stop(); });
    SetTorchThreads(flags.threads);
    if (const std::string warning = SlowBlasWarning(); !warning.empty()) log::Warning(warning);
    outcome.status = Work(flags, &running, &outcome);
    running.End();
  }
  return Finish(flags, outcome);
}

}  // namespace
}  // namespace everstep

int main(int argc, char** argv) { return everstep::Run(argc, argv); }
