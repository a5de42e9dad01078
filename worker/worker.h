// The worker API: a training loop that never stops. One Worker is one member of one job.
//
//   everstep::TorchModel model(*net);                                                // worker/torch_model.h
//   auto worker = everstep::Worker::Join({.servers = {"tcp://ps0:7070"}, .dataset_size = data.size()}, model).value();
//   while (auto step = worker.NextStep()) {          // parameters are in the model, samples are leased
//     auto loss = Loss(net, data.Batch(step->samples()));
//     loss.backward();                               // gradients leave as they are produced
//     step->Commit({{"loss", loss.item<double>()}});  // exactly once, or not at all
//   }
//   // worker.status(): ok when the job is complete; the finished parameters are in the model.
//
// What happens on failure: a lost server link, a coordinator's restart or a fence (this process was frozen) is handled
// inside; NextStep just takes longer. When nothing can be reached within the job's timeout, or the job fails, NextStep
// returns nothing and status() says why.
//
// Threads: a Worker and its Steps belong to one user thread at a time; RequestLeave() may be called from any thread.
// Several Workers may live in one process. A Worker has one background thread. No exceptions are thrown.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "schema/job.h"
#include "schema/messages.h"
#include "worker/model.h"

namespace everstep {

namespace internal {
class WorkerImpl;
}

struct WorkerOptions {
  // Addresses of servers, e.g. "tcp://ps0:7070"; the first must be one that hosts the coordinator, others are tried
  // when it does not answer.
  std::vector<std::string> servers;
  // The job's name, to be sure that it is the right one; empty: whatever runs there.
  std::string job = {};
  // Shown to people. A new worker with the name of a present one takes its place at once. Empty: host name and pid.
  std::string name = {};
  // Samples of one epoch; 0 when the loop brings its own data (then the job needs max-steps).
  uint64_t dataset_size = 0;
  // Speak to servers of this host through shared memory, whatever their address; false: through sockets.
  bool shared_memory = true;
  // How long Join tries before it gives up. Once in, the job's own timeout holds.
  Duration timeout = std::chrono::seconds(30);
  // Push gradients while backward still runs, where the model can tell when they are complete. Turn off when a step
  // runs backward more than once.
  bool overlap = true;
  // A folder, which exists, to keep every contribution in (schema/kept_contribution.h), so that `everstep replay` can
  // compute the parameters again. A file of the model's size each: for tests of a job, not for its production.
  std::string keep_contributions = {};
};

// One step of work. Movable. Destroying it without Commit gives its samples back.
class Step {
 public:
  Step(Step&&) noexcept;
  Step& operator=(Step&&) noexcept;
  ~Step();

  // Training step, from 1. In asynchronous modes the version that the gradients are based on.
  uint64_t number() const;
  // Pass over the data, from 0.
  uint64_t epoch() const;
  // Indices into the dataset that this step is to compute on: the mean loss over exactly these.
  const std::vector<uint64_t>& samples() const;

  // Contributes the gradients (and buffers) that are in the model now. kStale: the step went on without this
  // contribution (this worker was too slow or was fenced); go on with NextStep. Any other error is also in
  // Worker::status(). REQUIRES: not committed yet.
  Status Commit(std::vector<Metric> metrics = {});

 private:
  friend class internal::WorkerImpl;
  struct State;
  explicit Step(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

class Worker {
 public:
  // Joins the job and pulls its parameters into `model` (which must outlive the Worker), or offers the model's own
  // values if it is the first. Returns when the coordinator has admitted this worker, or kUnavailable /
  // kDeadlineExceeded (nobody answers), kWrongJob, kWrongSpec (another model or dataset), kWrongVersion,
  // kResourceExhausted (full), kFinished (complete).
  static Result<Worker> Join(WorkerOptions options, Model& model);

  Worker(Worker&&) noexcept;
  Worker& operator=(Worker&&) noexcept;
  // Leaves if the job is still going on: waits for the fate of what was contributed, at most a lease's time.
  ~Worker();

  // Waits for the next step, with its parameters in the model and its gradients cleared. Nothing when the job is
  // complete, this worker was asked to leave, or something failed: see status().
  std::optional<Step> NextStep();

  // Ok: running or complete. kCancelled: left on request. Otherwise why NextStep ended.
  Status status() const;
  // The job is complete and the model holds its final parameters.
  bool finished() const;
  // This worker is the one that was asked to evaluate the final model.
  bool evaluate() const;
  // Hands the evaluation of the finished model to the coordinator's report.
  void ReportEvaluation(std::vector<Metric> metrics);

  // Any thread and signal-safe enough for a signal-handling thread (not from a signal handler itself): NextStep ends
  // after the present step, whose contribution still counts.
  void RequestLeave();
  // Tells that slow work outside of a step (evaluation, saving) moves, so that it is not taken for a hang.
  void KeepAlive();

  // What the servers handed out.
  const JobSpec& job() const;

  struct Stats {
    uint64_t lives = 0;      // times this worker joined; over 1: it was fenced and came back
    uint64_t steps = 0;      // contributions made
    uint64_t dropped = 0;    // ... that did not count
    uint64_t nonfinite = 0;  // ... because of NaN or Inf
    uint64_t links = 0;      // connections opened
    uint64_t bytes_sent = 0;
    uint64_t bytes_received = 0;
    Duration waiting{0};  // in NextStep
    Duration copying{0};  // of that, copying parameters into the model
  };
  Stats stats() const;

 private:
  explicit Worker(std::unique_ptr<internal::WorkerImpl> impl);
  std::unique_ptr<internal::WorkerImpl> impl_;
};

}  // namespace everstep
