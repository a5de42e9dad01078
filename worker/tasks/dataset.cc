#include "worker/tasks/dataset.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/limits.h"
#include "worker/tasks/data_file.h"

namespace everstep {
namespace {

constexpr uint64_t kHeldOutEvery = 10;
constexpr char kFashionMnistFolder[] = "/usr/share/datasets/fashion-mnist";

Status Invalid(std::string what) { return {Code::kInvalidArgument, std::move(what)}; }

// Removes the elements of the samples that `keep` is false for.
template <typename T>
void Keep(std::vector<T>* values, uint64_t per_sample, uint64_t samples, bool (*keep)(uint64_t)) {
  uint64_t kept = 0;
  for (uint64_t i = 0; i < samples; ++i) {
    if (!keep(i)) continue;
    std::copy_n(values->begin() + static_cast<ptrdiff_t>(i * per_sample), per_sample,
                values->begin() + static_cast<ptrdiff_t>(kept * per_sample));
    ++kept;
  }
  values->resize(kept * per_sample);
}

bool IsHeldOut(uint64_t i) { return i % kHeldOutEvery == kHeldOutEvery - 1; }
bool IsTraining(uint64_t i) { return !IsHeldOut(i); }

bool EndsIn(std::string_view path, std::string_view ending) {
  if (path.ends_with(".gz")) path.remove_suffix(3);
  return path.ends_with(ending);
}

Result<Array> LoadArray(const std::string& path) {
  EVERSTEP_ASSIGN(const std::string bytes, ReadDataFile(path));
  Result<Array> array = EndsIn(path, ".npy") ? ParseNpy(bytes) : ParseIdx(bytes);
  if (!array.ok()) return array.status().With(path);
  return array;
}

// Labels: one number each.
Result<std::vector<double>> LoadLabels(const std::string& path) {
  EVERSTEP_ASSIGN(const Array array, LoadArray(path));
  if (array.shape.size() != 1) return Invalid(path + ": labels must have one dimension");
  return std::visit([](const auto& values) { return std::vector<double>(values.begin(), values.end()); }, array.values);
}

Result<Dataset> LoadPair(const std::string& features_path, const std::string& labels_path, uint64_t limit) {
  EVERSTEP_ASSIGN(Array features, LoadArray(features_path));
  EVERSTEP_ASSIGN(std::vector<double> labels, LoadLabels(labels_path));
  Result<Dataset> dataset = Dataset::Make(std::move(features), std::move(labels), limit);
  if (!dataset.ok()) return dataset.status().With(features_path);
  return dataset;
}

Result<Dataset> LoadCsv(const std::string& path, uint64_t limit) {
  EVERSTEP_ASSIGN(const std::string text, ReadDataFile(path));
  Result<Table> table = ParseCsv(text);
  if (!table.ok()) return table.status().With(path);
  return Dataset::Make(std::move(table->features), std::move(table->labels), limit);
}

Status CheckFashionMnist(const Dataset& dataset, const std::string& folder) {
  bool ok = dataset.sample_shape() == std::vector<int64_t>{1, 28, 28};
  for (uint64_t i = 0; ok && i < dataset.size(); ++i) ok = dataset.label(i) >= 0 && dataset.label(i) < 10;
  if (ok) return Status::Ok();
  return {Code::kCorrupt, folder + " does not hold Fashion-MNIST (28x28 images, labels 0 to 9)"};
}

}  // namespace

Result<Dataset> Dataset::Make(Array features, std::vector<double> labels, uint64_t limit) {
  if (features.shape.empty() || features.shape[0] == 0) return Invalid("there are no samples");
  const auto samples = static_cast<uint64_t>(features.shape[0]);
  if (samples != labels.size()) {
    return Invalid(std::to_string(samples) + " samples, but " + std::to_string(labels.size()) + " labels");
  }
  Dataset dataset;
  dataset.sample_shape_.assign(features.shape.begin() + 1, features.shape.end());
  dataset.sample_elements_ = features.size() / samples;
  if (dataset.sample_elements_ == 0) return Invalid("the samples have no elements");
  const uint64_t kept = limit == 0 ? samples : std::min(limit, samples);
  labels.resize(kept);
  dataset.labels_ = std::move(labels);
  if (auto* bytes = std::get_if<std::vector<uint8_t>>(&features.values)) {
    if (features.shape.size() == 3) dataset.sample_shape_.insert(dataset.sample_shape_.begin(), 1);
    bytes->resize(kept * dataset.sample_elements_);
    bytes->shrink_to_fit();
    dataset.features_ = std::move(*bytes);
  } else if (auto* floats = std::get_if<std::vector<float>>(&features.values)) {
    floats->resize(kept * dataset.sample_elements_);
    dataset.features_ = std::move(*floats);
    const auto& values = std::get<std::vector<float>>(dataset.features_);
    if (!std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); })) {
      return Invalid("the features hold NaN or Inf; clean the data first");
    }
  } else {
    const auto& integers = std::get<std::vector<int64_t>>(features.values);
    dataset.features_ = std::vector<float>(integers.begin(),
                                           integers.begin() + static_cast<ptrdiff_t>(kept * dataset.sample_elements_));
  }
  return dataset;
}

void Dataset::CopyFeatures(uint64_t sample, std::span<float> out) const {
  EVERSTEP_CHECK(sample < size() && out.size() == sample_elements_, "a sample beyond its dataset");
  const auto begin = static_cast<ptrdiff_t>(sample * sample_elements_);
  if (const auto* bytes = std::get_if<std::vector<uint8_t>>(&features_)) {
    std::transform(bytes->begin() + begin, bytes->begin() + begin + static_cast<ptrdiff_t>(sample_elements_),
                   out.begin(), [](uint8_t v) { return static_cast<float>(v) / 255.0f; });
  } else {
    std::copy_n(std::get<std::vector<float>>(features_).begin() + begin, sample_elements_, out.begin());
  }
}

Result<Dataset> Dataset::SplitOffHeldOut() {
  const uint64_t samples = size();
  if (samples < kHeldOutEvery) {
    return Invalid(std::to_string(samples) + " samples; at least " + std::to_string(kHeldOutEvery) +
                   " are needed, since every tenth is kept for evaluation");
  }
  Dataset held_out = *this;
  const auto keep = [samples](Dataset* dataset, bool (*which)(uint64_t)) {
    std::visit([&](auto& values) { Keep(&values, dataset->sample_elements_, samples, which); }, dataset->features_);
    Keep(&dataset->labels_, 1, samples, which);
  };
  keep(&held_out, IsHeldOut);
  keep(this, IsTraining);
  return held_out;
}

Result<TrainAndHeldOut> LoadFashionMnist(const std::string& folder, uint64_t limit) {
  const std::string from = folder.empty() ? kFashionMnistFolder : folder;
  const auto load = [&](const std::string& part) -> Result<Dataset> {
    EVERSTEP_ASSIGN(Dataset dataset, LoadPair(from + "/" + part + "-images-idx3-ubyte.gz",
                                              from + "/" + part + "-labels-idx1-ubyte.gz", limit));
    EVERSTEP_RETURN_IF_ERROR(CheckFashionMnist(dataset, from));
    return dataset;
  };
  const auto advise = [](const Status& status) {
    if (status.code() != Code::kNotFound) return status;
    return Status(Code::kNotFound, "Fashion-MNIST is not there (" + status.message() +
                                       "); install the Debian package dataset-fashion-mnist, or name a folder that "
                                       "holds the four .gz files with --data");
  };
  Result<Dataset> train = load("train");
  if (!train.ok()) return advise(train.status());
  Result<Dataset> held_out = load("t10k");
  if (!held_out.ok()) return advise(held_out.status());
  return TrainAndHeldOut{std::move(*train), std::move(*held_out)};
}

Result<TrainAndHeldOut> LoadDataset(const std::vector<std::string>& paths, uint64_t limit) {
  const bool csv = paths.size() == 1 && EndsIn(paths[0], ".csv");
  if (!csv && paths.size() != 2) {
    return Invalid("--data must name one .csv file, or two files, features,labels, both .npy or both IDX");
  }
  EVERSTEP_ASSIGN(Dataset train, csv ? LoadCsv(paths[0], limit) : LoadPair(paths[0], paths[1], limit));
  EVERSTEP_ASSIGN(Dataset held_out, train.SplitOffHeldOut());
  return TrainAndHeldOut{std::move(train), std::move(held_out)};
}

}  // namespace everstep
