// everstep-plain-worker: a worker without libtorch, for process tests, proofs and benches. It trains one of the models
// of tests/support/plain_models.h, and can be told to misbehave. Its last line on standard output is a JSON object with
// how it went.
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/file.h"
#include "base/log.h"
#include "base/random.h"
#include "tests/support/plain_models.h"
#include "transport/tuning.h"
#include "worker/worker.h"

namespace everstep {
namespace {

constexpr int64_t kNever = -1;

struct Options {
  WorkerOptions worker;
  std::string model = "vector";
  uint64_t model_seed = 1;
  uint64_t elements = 1024;
  uint64_t dataset = 1000;
  bool odd_shapes = false;
  bool steps_only = false;
  double compute_ms = 0;
  double jitter_ms = 0;
  uint64_t jitter_seed = 0;
  double slow_ms = 0;
  // Steps at (or after) which something happens.
  int64_t slow_at = kNever;
  int64_t nan_at = kNever;
  int64_t nan_from = kNever;
  int64_t hang_at = kNever;
  int64_t die_at = kNever;
  bool announce = false;
  bool trace = false;
  std::string dump;
};

bool Due(int64_t at, uint64_t step) { return at != kNever && step >= static_cast<uint64_t>(at); }

void Sleep(double ms) {
  if (ms > 0) std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms));
}

// Waits for SIGTERM and SIGINT on a thread of its own: the first lets the worker leave in order, the second ends the
// process. Before the worker has joined there is nothing to hand back.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    std::thread([this] { Take(); }).detach();
  }
  // Null again before the worker goes.
  void Serve(Worker* worker) {
    std::lock_guard lock(mutex_);
    worker_ = worker;
  }

 private:
  void Take() {
    int signal = 0;
    sigwait(&set_, &signal);
    {
      std::lock_guard lock(mutex_);
      if (worker_ == nullptr) _exit(0);
      worker_->RequestLeave();
    }
    sigwait(&set_, &signal);
    _exit(130);
  }

  sigset_t set_;
  std::mutex mutex_;
  Worker* worker_ = nullptr;
};

// Everything that a step was told to suffer before its contribution.
void Misbehave(Options& options, uint64_t step, Random& jitter) {
  if (Due(options.die_at, step)) raise(SIGKILL);
  while (Due(options.hang_at, step)) pause();
  if (Due(options.slow_at, step)) {
    options.slow_at = kNever;
    Sleep(options.slow_ms);
  }
  Sleep(options.compute_ms + options.jitter_ms * jitter.Uniform());
}

void Train(Options& options, Worker& worker, test::PlainModel& plain) {
  Random jitter(options.jitter_seed);
  while (auto step = worker.NextStep()) {
    const uint64_t number = step->number();
    if (options.announce) {
      std::printf("begin %llu\n", static_cast<unsigned long long>(number));
      std::fflush(stdout);
    }
    const double loss = plain.Compute(step->samples());
    Misbehave(options, number, jitter);
    if (Due(options.nan_at, number) || Due(options.nan_from, number)) {
      plain.Poison(__builtin_nanf(""));
      options.nan_at = kNever;
    }
    const Status committed = step->Commit({{"loss", loss}});
    if (options.trace) {
      std::printf("step %llu samples %zu loss %g %s\n", static_cast<unsigned long long>(number), step->samples().size(),
                  loss, committed.ToString().c_str());
    }
  }
}

void PrintResult(const Worker& worker, const std::vector<float>& values) {
  const Worker::Stats s = worker.stats();
  double norm = 0;
  for (float v : values) norm += static_cast<double>(v) * v;
  std::printf("%s\n", nlohmann::json{{"status", worker.status().ToString()},
                                     {"finished", worker.finished()},
                                     {"lives", s.lives},
                                     {"links", s.links},
                                     {"steps", s.steps},
                                     {"dropped", s.dropped},
                                     {"nonfinite", s.nonfinite},
                                     {"p0", values.empty() ? 0.0f : values[0]},
                                     {"norm", std::sqrt(norm)},
                                     {"bytes_sent", s.bytes_sent},
                                     {"bytes_received", s.bytes_received},
                                     {"waiting_ms", Milliseconds(s.waiting)},
                                     {"copying_ms", Milliseconds(s.copying)}}
                          .dump()
                          .c_str());
  std::fflush(stdout);
}

int Fail(const Status& why) {
  log::Error(why.message());
  return ExitCode(why.code());
}

// Writes what is left to write when the last step is over.
int Finish(const Options& options, Worker& worker, const std::vector<float>& values) {
  PrintResult(worker, values);
  if (!options.dump.empty()) {
    const std::string_view bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    if (Status written = WriteFileDurably(options.dump, bytes); !written.ok()) return Fail(written);
  }
  if (worker.evaluate()) worker.ReportEvaluation({{"p0", static_cast<double>(values.empty() ? 0.0f : values[0])}});
  const Status ended = worker.status();
  return ended.ok() || ended.code() == Code::kCancelled ? 0 : Fail(ended);
}

int Run(Options options) {
  Signals& signals = *new Signals;  // its thread outlives everything
  const auto plain = options.model == "mlp" ? test::MakeMlpModel(options.model_seed)
                                            : test::MakeVectorModel(options.elements, options.odd_shapes);
  ArrayModel model(plain->Tensors());
  options.worker.dataset_size = options.steps_only ? 0 : options.dataset;
  Result<Worker> joined = Worker::Join(options.worker, model);
  if (!joined.ok()) return Fail(joined.status());
  Worker& worker = *joined;
  signals.Serve(&worker);
  Train(options, worker, *plain);
  const int code = Finish(options, worker, plain->Values());
  signals.Serve(nullptr);
  return code;
}

void AddOptions(CLI::App& app, Options* o) {
  app.add_option("--servers", o->worker.servers, "Addresses, comma-separated")->delimiter(',')->required();
  app.add_option("--job", o->worker.job);
  app.add_option("--name", o->worker.name);
  app.add_option("--model", o->model, "vector or mlp")->check(CLI::IsMember({"vector", "mlp"}));
  app.add_option("--model-seed", o->model_seed, "mlp: of the initial weights");
  app.add_option("--elements", o->elements, "vector: float32 elements");
  app.add_flag("--odd-shapes", o->odd_shapes, "vector: also a scalar, an empty tensor and a buffer");
  app.add_option("--dataset", o->dataset, "Samples of one epoch");
  app.add_flag("--steps-only", o->steps_only, "No dataset");
  app.add_option("--compute-ms", o->compute_ms, "Sleep in each step");
  app.add_option("--jitter-ms", o->jitter_ms, "Sleep up to that much longer, at random");
  app.add_option("--jitter-seed", o->jitter_seed);
  app.add_option("--slow-at", o->slow_at, "One step, at or after this one, takes slow-ms longer");
  app.add_option("--slow-ms", o->slow_ms);
  app.add_option("--nan-at", o->nan_at, "Contribute one NaN at or after this step");
  app.add_option("--nan-from", o->nan_from, "Contribute NaN in each step from this one on");
  app.add_option("--hang-at", o->hang_at, "Never come back from this step");
  app.add_option("--die-at", o->die_at, "SIGKILL itself in this step");
  app.add_flag("--announce", o->announce, "Print `begin STEP` when a step begins");
  app.add_flag("--trace", o->trace, "A line a step");
  app.add_option("--keep-contributions", o->worker.keep_contributions, "Folder for all contributions");
  app.add_option("--dump", o->dump, "Write the final parameters to this file, raw float32");
}

}  // namespace
}  // namespace everstep

int main(int argc, char** argv) {
  CLI::App app{"everstep-plain-worker: a worker without libtorch, for tests and benches"};
  everstep::Options options;
  double timeout_s = 30;
  std::string log_level = "info";
  everstep::AddOptions(app, &options);
  app.add_option("--timeout-s", timeout_s, "How long to try to join");
  app.add_option("--log-level", log_level);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  everstep::log::SetLevel(log_level);
  everstep::log::SetName(options.worker.name);
  options.worker.timeout = everstep::Duration(static_cast<int64_t>(timeout_s * 1e9));
  everstep::transport::TuneAllocator();
  return everstep::Run(std::move(options));
}
