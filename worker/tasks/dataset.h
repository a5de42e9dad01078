// Samples in memory, by index: features of one shape and a label each. What everstep-worker's classifiers train on.
// Immutable once made; the same files give the same samples under the same indices on every machine.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/status.h"
#include "worker/tasks/array_file.h"

namespace everstep {

class Dataset {
 public:
  // `features` [N, ...] and one label per sample; kInvalidArgument when the numbers do not agree or nothing is there.
  // Keeps the first `limit` samples, all for 0. Integers become floats; bytes (pixels) become value / 255 when they are
  // read.
  static Result<Dataset> Make(Array features, std::vector<double> labels, uint64_t limit);

  uint64_t size() const { return labels_.size(); }
  // Of one sample. Greyscale images, [N, height, width] bytes, have a channel: {1, height, width}.
  const std::vector<int64_t>& sample_shape() const { return sample_shape_; }
  uint64_t sample_elements() const { return sample_elements_; }

  double label(uint64_t sample) const { return labels_[sample]; }
  // REQUIRES: sample < size(), out.size() == sample_elements().
  void CopyFeatures(uint64_t sample, std::span<float> out) const;

  // Takes out every tenth sample (9, 19, ...) for evaluation and returns them: spread evenly, since files are often
  // sorted by label. kInvalidArgument with fewer than ten samples.
  Result<Dataset> SplitOffHeldOut();

 private:
  std::vector<int64_t> sample_shape_;
  uint64_t sample_elements_ = 1;
  std::variant<std::vector<uint8_t>, std::vector<float>> features_;
  std::vector<double> labels_;
};

// Training and held-out samples of Fashion-MNIST from Debian's package dataset-fashion-mnist, or from `folder` if it is
// not empty; at most `limit` of each, all for 0.
struct TrainAndHeldOut {
  Dataset train;
  Dataset held_out;
};
Result<TrainAndHeldOut> LoadFashionMnist(const std::string& folder, uint64_t limit);

// What --data names: one .csv file (last column = label), or a pair features, labels of .npy or IDX files; each may be
// packed by gzip (.gz).
Result<TrainAndHeldOut> LoadDataset(const std::vector<std::string>& paths, uint64_t limit);

}  // namespace everstep
