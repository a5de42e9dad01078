#include "tests/support/replay.h"

#include "base/permutation.h"

namespace everstep::test {

std::vector<float> Replay(const std::vector<CommitLine>& commits, const ReplayJob& job, PlainModel* model) {
  const std::vector<ArrayModel::Tensor> tensors = model->Tensors();
  std::vector<std::vector<float>> sums(tensors.size());
  std::vector<std::vector<float>> momentum(tensors.size());
  for (size_t t = 0; t < tensors.size(); ++t) momentum[t].resize(tensors[t].spec.elements());
  bool first = true;
  for (const CommitLine& commit : commits) {
    if (commit.step == 0) continue;  // the initial values
    for (size_t t = 0; t < tensors.size(); ++t) sums[t].assign(tensors[t].spec.elements(), 0.0f);
    for (const ContributorLine& c : commit.contributors) {
      const Permutation order(job.seed, c.epoch, job.dataset);
      std::vector<uint64_t> samples;
      for (const auto& [begin, end] : c.ranges) {
        for (uint64_t position = begin; position < end; ++position) samples.push_back(order.At(position));
      }
      (void)model->Compute(samples);
      const auto weight = static_cast<float>(c.weight);
      for (size_t t = 0; t < tensors.size(); ++t) {
        for (size_t i = 0; i < sums[t].size(); ++i) sums[t][i] += weight * tensors[t].gradient[i];
      }
    }
    const auto scale = static_cast<float>(commit.scale);
    const auto rate = static_cast<float>(commit.learning_rate);
    const float keep = first ? 0.0f : job.momentum;  // the first update's buffer is the gradient itself
    first = false;
    for (size_t t = 0; t < tensors.size(); ++t) {
      for (size_t i = 0; i < sums[t].size(); ++i) {
        momentum[t][i] = keep * momentum[t][i] + scale * sums[t][i];
        tensors[t].values[i] -= rate * momentum[t][i];
      }
    }
  }
  return model->Values();
}

}  // namespace everstep::test
