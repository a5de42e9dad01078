// What the tasks share on libtorch's side: its exceptions end here, and classification and regression are one class.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/tasks/dataset.h"
#include "worker/tasks/task.h"

namespace everstep {

// Runs `body`, which returns a Status or a Result; what libtorch throws becomes kInvalidArgument, since it is about
// shapes, types or the user's module.
template <typename Body>
auto Guarded(const std::string& what, Body body) -> decltype(body()) {
  try {
    return body();
  } catch (const c10::Error& error) {
    return Status(Code::kInvalidArgument, what + ": " + error.what_without_backtrace());
  } catch (const std::exception& error) {
    return Status(Code::kInvalidArgument, what + ": " + error.what());
  }
}

// A network as a task needs it, whatever its class.
struct Network {
  std::shared_ptr<void> owner;
  std::unique_ptr<Model> model;
  std::function<torch::Tensor(const torch::Tensor& batch)> forward;
  std::function<void(bool on)> train;  // training mode
};

// kInvalidArgument when `samples` is empty or names one beyond `size`.
Status CheckSamples(const std::vector<uint64_t>& samples, uint64_t size);

// Trains a network on a Dataset: cross entropy when it returns [N, C] with C >= 2, mean squared error when it returns
// one number a sample.
class DatasetTask final : public Task {
 public:
  DatasetTask(Network network, TrainAndHeldOut data) : network_(std::move(network)), data_(std::move(data)) {}

  Model& model() override { return *network_.model; }
  uint64_t dataset_size() const override { return data_.train.size(); }
  Result<std::vector<Metric>> Step(const std::vector<uint64_t>& samples, double loss_scale) override;
  Result<std::vector<Metric>> Evaluate(const std::function<void()>& alive) override;

 private:
  struct Score {
    torch::Tensor loss;    // mean over the batch
    double correct = 0;    // of the batch
    bool classes = false;  // otherwise `correct` means nothing
  };
  Result<Score> Compute(const Dataset& dataset, const std::vector<uint64_t>& samples);

  Network network_;
  const TrainAndHeldOut data_;
};

}  // namespace everstep
