// What everstep-worker trains: a model, its samples by index, the loss on some of them, and an evaluation. The worker
// program knows nothing else of a task; libtorch stays behind this interface.
//
// The same name, options and seed give the same samples and the same initial values in every process.
//
// Threads: a Task belongs to one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "schema/messages.h"
#include "worker/model.h"

namespace everstep {

struct TaskOptions {
  std::vector<std::string> data = {};  // files or a folder, as the task wants them; empty: its default
  std::string module = {};             // task script: the TorchScript file
  uint64_t limit = 0;                  // use at most so many samples (and so many held-out ones); 0: all
  uint64_t seed = 1;                   // of the initial values
};

class Task {
 public:
  virtual ~Task() = default;

  // Lives as long as the task.
  virtual Model& model() = 0;
  // Training samples: one epoch.
  virtual uint64_t dataset_size() const = 0;

  // Leaves the gradients of the mean loss over exactly `samples` in the model, whose gradients were cleared before.
  // `loss_scale` multiplies the loss before backward; fault injection passes NaN. Metrics of the step: "loss" and more.
  virtual Result<std::vector<Metric>> Step(const std::vector<uint64_t>& samples, double loss_scale = 1) = 0;

  // Metrics over the held-out samples with the model's present values. `alive` is called before each batch.
  virtual Result<std::vector<Metric>> Evaluate(const std::function<void()>& alive) = 0;
};

// kInvalidArgument for a name that is none (the message lists them) or options that do not fit; otherwise what is wrong
// with the files.
Result<std::unique_ptr<Task>> MakeTask(std::string_view name, const TaskOptions& options);

// "fashion-mnist-cnn, ...", for help texts.
std::string TaskNames();

}  // namespace everstep
