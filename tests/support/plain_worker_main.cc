// everstep-plain-worker: a worker without libtorch, for process tests, proofs and benches. Its model is one vector p (and
// optionally more tensors); sample i asks for the value t(i) in every element, so the loss is mean (p - t)^2 / 2 and the
// gradient p - mean t: cheap, exact, and a pure function of parameters and samples.
#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/random.h"
#include "transport/tuning.h"
#include "worker/worker.h"

namespace everstep {
namespace {

double Target(uint64_t sample) { return static_cast<double>(Mix64(sample) % 1000) / 1000.0; }

struct Options {
  WorkerOptions worker;
  uint64_t elements = 1024;
  uint64_t dataset = 1000;
  bool odd_shapes = false;   // also a scalar, an empty tensor and a buffer
  bool steps_only = false;   // no dataset
  double compute_ms = 0;
  int64_t nan_at = -1;
  bool trace = false;
};

int Run(Options options) {
  std::vector<float> p(options.elements, 0.0f), g(options.elements, 0.0f);
  float scalar = 1, scalar_gradient = 0, statistic = 0;
  std::vector<ArrayModel::Tensor> tensors{{{"p", {static_cast<int64_t>(options.elements)}, DType::kFloat32, Role::kTrainable}, p.data(), g.data()}};
  if (options.odd_shapes) {
    tensors.push_back({{"empty", {0, 7}, DType::kFloat32, Role::kTrainable}, nullptr, nullptr});
    tensors.push_back({{"scalar", {}, DType::kFloat32, Role::kTrainable}, &scalar, &scalar_gradient});
    tensors.push_back({{"statistic", {1}, DType::kFloat32, Role::kBuffer}, &statistic, nullptr});
  }
  ArrayModel model(std::move(tensors));
  options.worker.dataset_size = options.steps_only ? 0 : options.dataset;
  Result<Worker> joined = Worker::Join(options.worker, model);
  if (!joined.ok()) {
    log::Error(joined.status().message());
    return ExitCode(joined.status().code());
  }
  Worker& worker = *joined;
  // Signals are taken by a thread of their own; workers leave in order.
  std::thread([&worker] {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    int signal = 0;
    sigwait(&set, &signal);
    worker.RequestLeave();
    sigwait(&set, &signal);
    _exit(130);
  }).detach();
  while (auto step = worker.NextStep()) {
    double target = 0;
    for (uint64_t sample : step->samples()) target += Target(sample);
    if (!step->samples().empty()) target /= static_cast<double>(step->samples().size());
    double loss = 0;
    for (uint64_t i = 0; i < options.elements; ++i) {
      g[i] = p[i] - static_cast<float>(target);
      if (i < 1024) loss += 0.5 * g[i] * g[i] / static_cast<double>(std::min<uint64_t>(options.elements, 1024));
    }
    scalar_gradient = scalar;
    statistic = static_cast<float>(target);
    if (options.nan_at >= 0 && step->number() >= static_cast<uint64_t>(options.nan_at)) {
      g[0] = __builtin_nanf("");
      options.nan_at = -1;
    }
    if (options.compute_ms > 0) std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(options.compute_ms));
    const Status committed = step->Commit({{"loss", loss}});
    if (options.trace) std::printf("step %llu samples %zu loss %g %s\n", static_cast<unsigned long long>(step->number()), step->samples().size(), loss, committed.ToString().c_str());
  }
  const Worker::Stats stats = worker.stats();
  std::printf("{\"status\":\"%s\",\"finished\":%s,\"lives\":%llu,\"links\":%llu,\"steps\":%llu,\"dropped\":%llu,\"p0\":%.9g,\"waiting_ms\":%.1f,\"copying_ms\":%.1f}\n",
              worker.status().ToString().c_str(), worker.finished() ? "true" : "false", static_cast<unsigned long long>(stats.lives),
              static_cast<unsigned long long>(stats.links), static_cast<unsigned long long>(stats.steps), static_cast<unsigned long long>(stats.dropped),
              static_cast<double>(p.empty() ? 0.0f : p[0]), Milliseconds(stats.waiting), Milliseconds(stats.copying));
  std::fflush(stdout);
  if (worker.evaluate()) worker.ReportEvaluation({{"p0", static_cast<double>(p[0])}});
  const Status ended = worker.status();
  if (!ended.ok() && ended.code() != Code::kCancelled) {
    log::Error(ended.message());
    return ExitCode(ended.code());
  }
  return 0;
}

}  // namespace
}  // namespace everstep

int main(int argc, char** argv) {
  CLI::App app{"everstep-plain-worker: a worker without libtorch, for tests and benches"};
  everstep::Options options;
  double timeout_s = 30;
  std::string log_level = "info";
  app.add_option("--servers", options.worker.servers, "Addresses, comma-separated")->delimiter(',')->required();
  app.add_option("--job", options.worker.job);
  app.add_option("--name", options.worker.name);
  app.add_option("--timeout-s", timeout_s);
  app.add_option("--elements", options.elements, "float32 elements of the model");
  app.add_option("--dataset", options.dataset, "Samples of one epoch");
  app.add_flag("--odd-shapes", options.odd_shapes);
  app.add_flag("--steps-only", options.steps_only, "No dataset");
  app.add_option("--compute-ms", options.compute_ms, "Sleep in each step");
  app.add_option("--nan-at", options.nan_at, "Contribute one NaN at or after this step");
  app.add_flag("--trace", options.trace, "A line a step");
  app.add_option("--log-level", log_level);
  CLI11_PARSE(app, argc, argv);
  everstep::log::SetLevel(log_level);
  everstep::log::SetName(options.worker.name);
  options.worker.timeout = everstep::Duration(static_cast<int64_t>(timeout_s * 1e9));
  everstep::transport::TuneAllocator();
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  return everstep::Run(std::move(options));
}
