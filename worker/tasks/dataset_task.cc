#include <cmath>
#include <numeric>

#include "worker/tasks/torch_task.h"

namespace everstep {
namespace {

constexpr uint64_t kEvaluationBatch = 500;

torch::Tensor FeaturesOf(const Dataset& dataset, const std::vector<uint64_t>& samples) {
  std::vector<int64_t> shape = {static_cast<int64_t>(samples.size())};
  shape.insert(shape.end(), dataset.sample_shape().begin(), dataset.sample_shape().end());
  torch::Tensor batch = torch::empty(shape, torch::kFloat);
  auto* to = batch.data_ptr<float>();
  for (uint64_t sample : samples) {
    dataset.CopyFeatures(sample, {to, dataset.sample_elements()});
    to += dataset.sample_elements();
  }
  return batch;
}

// The labels as classes below `classes`.
Result<torch::Tensor> ClassesOf(const Dataset& dataset, const std::vector<uint64_t>& samples, int64_t classes) {
  torch::Tensor labels = torch::empty({static_cast<int64_t>(samples.size())}, torch::kLong);
  auto* to = labels.data_ptr<int64_t>();
  for (uint64_t sample : samples) {
    const double label = dataset.label(sample);
    if (!(label >= 0 && label < static_cast<double>(classes) && label == std::floor(label))) {
      return Status(Code::kInvalidArgument, "the label of sample " + std::to_string(sample) + " is " +
                                                std::to_string(label) + ", but the module tells " +
                                                std::to_string(classes) + " classes, 0 to " +
                                                std::to_string(classes - 1) + ", apart");
    }
    *to++ = static_cast<int64_t>(label);
  }
  return labels;
}

torch::Tensor ValuesOf(const Dataset& dataset, const std::vector<uint64_t>& samples) {
  torch::Tensor labels = torch::empty({static_cast<int64_t>(samples.size())}, torch::kFloat);
  auto* to = labels.data_ptr<float>();
  for (uint64_t sample : samples) *to++ = static_cast<float>(dataset.label(sample));
  return labels;
}

}  // namespace

Status CheckSamples(const std::vector<uint64_t>& samples, uint64_t size) {
  if (samples.empty()) return {Code::kInvalidArgument, "a step without samples: this task needs the job's dataset"};
  for (uint64_t sample : samples) {
    if (sample >= size) {
      return {Code::kInvalidArgument,
              "sample " + std::to_string(sample) + " was lent, but the dataset has " + std::to_string(size)};
    }
  }
  return Status::Ok();
}

Result<DatasetTask::Score> DatasetTask::Compute(const Dataset& dataset, const std::vector<uint64_t>& samples) {
  const torch::Tensor output = network_.forward(FeaturesOf(dataset, samples));
  const auto rows = static_cast<int64_t>(samples.size());
  const bool one_each = (output.dim() == 1 || (output.dim() == 2 && output.size(1) == 1)) && output.size(0) == rows;
  if (one_each) {
    return Score{.loss = torch::mse_loss(output.reshape({rows}), ValuesOf(dataset, samples))};
  }
  if (output.dim() != 2 || output.size(0) != rows) {
    std::ostringstream shape;
    shape << output.sizes();
    return Status(Code::kInvalidArgument, "the module returned " + shape.str() + " for " + std::to_string(rows) +
                                              " samples; it must return logits [N, C] or predictions [N]");
  }
  EVERSTEP_ASSIGN(const torch::Tensor labels, ClassesOf(dataset, samples, output.size(1)));
  torch::NoGradGuard no_grad;
  const double correct = output.argmax(1).eq(labels).sum().item<double>();
  torch::AutoGradMode grad(output.requires_grad());
  return Score{.loss = torch::cross_entropy_loss(output, labels), .correct = correct, .classes = true};
}

Result<std::vector<Metric>> DatasetTask::Step(const std::vector<uint64_t>& samples, double loss_scale) {
  EVERSTEP_RETURN_IF_ERROR(CheckSamples(samples, dataset_size()));
  return Guarded("the training step failed", [&]() -> Result<std::vector<Metric>> {
    EVERSTEP_ASSIGN(const Score score, Compute(data_.train, samples));
    (loss_scale == 1 ? score.loss : score.loss * loss_scale).backward();
    std::vector<Metric> metrics = {{"loss", score.loss.item<double>()}};
    if (score.classes) metrics.push_back({"accuracy", score.correct / static_cast<double>(samples.size())});
    return metrics;
  });
}

Result<std::vector<Metric>> DatasetTask::Evaluate(const std::function<void()>& alive) {
  network_.train(false);
  auto result = Guarded("the evaluation failed", [&]() -> Result<std::vector<Metric>> {
    torch::NoGradGuard no_grad;
    const Dataset& data = data_.held_out;
    double loss = 0;
    double correct = 0;
    bool classes = false;
    for (uint64_t begin = 0; begin < data.size(); begin += kEvaluationBatch) {
      if (alive) alive();
      std::vector<uint64_t> samples(std::min(kEvaluationBatch, data.size() - begin));
      std::iota(samples.begin(), samples.end(), begin);
      EVERSTEP_ASSIGN(const Score score, Compute(data, samples));
      loss += score.loss.item<double>() * static_cast<double>(samples.size());
      correct += score.correct;
      classes = score.classes;
    }
    const auto total = static_cast<double>(data.size());
    std::vector<Metric> metrics = {{"loss", loss / total}};
    if (classes) metrics.push_back({"accuracy", correct / total});
    return metrics;
  });
  network_.train(true);
  return result;
}

}  // namespace everstep
