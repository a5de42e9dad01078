#include <algorithm>
#include <cstdio>
#include <optional>
#include <vector>

#include "base/log.h"
#include "bench/step/control.h"
#include "bench/step/roles.h"
#include "bench/step/workload.h"
#include "transport/shared_memory.h"
#include "transport/tuning.h"
#include "worker/worker.h"

namespace everstep::bench {
namespace {

// ArrayModel whose gradients stay: computing and clearing them is the framework's work, which the peers are not charged
// for either.
class PreparedModel final : public Model {
 public:
  // With `shared`, a gradient in shared memory, nothing is copied.
  PreparedModel(std::vector<ArrayModel::Tensor> tensors, Buffer shared)
      : arrays_(std::move(tensors)), gradient_(std::move(shared)) {}

  // The present parameters, if they are read where the server wrote them.
  const float* shared_values() const { return reinterpret_cast<const float*>(values_.data()); }

  const ParameterSpec& spec() const override { return arrays_.spec(); }
  void ReadValues(size_t tensor, uint64_t offset, std::span<std::byte> out) const override {
    arrays_.ReadValues(tensor, offset, out);
  }
  void ReadGradient(size_t tensor, uint64_t offset, std::span<std::byte> out) const override {
    arrays_.ReadGradient(tensor, offset, out);
  }
  void WriteValues(size_t tensor, uint64_t offset, std::span<const std::byte> in) override {
    arrays_.WriteValues(tensor, offset, in);
  }
  bool ShareValues(size_t, Buffer values) override {
    if (gradient_.empty()) return false;
    values_ = std::move(values);
    return true;
  }
  std::optional<Buffer> ShareGradient(size_t, uint64_t offset, uint64_t size) const override {
    if (gradient_.empty()) return std::nullopt;
    return gradient_.Slice(offset, size);
  }
  void ClearGradients() override {}
  Status step_status() const override { return arrays_.step_status(); }

 private:
  ArrayModel arrays_;
  const Buffer gradient_;
  Buffer values_;
};

// A gradient in memory that the servers of this host read in place. Each worker's begins at other low address bits, so
// that a server does not walk all of them at the same ones.
Buffer SharedGradient(uint64_t count, unsigned index) {
  const size_t begin = (index % 8) * 5 * 64;
  auto memory = std::make_shared<MutableBuffer>(BufferPool(0, transport::SharedAllocator()).Take(begin + count * 4));
  float* const values = reinterpret_cast<float*>(memory->data() + begin);
  std::fill(values, values + count, GradientOf(index));
  return {memory, values, count * 4};
}

}  // namespace

int RunWorkerRole(const RoleOptions& options) {
  transport::TuneAllocator();
  log::SetLevel(log::Level::kWarning);
  const uint64_t count = options.bytes / sizeof(float);
  std::vector<float> parameters(count, 0.0f);
  std::vector<float> gradient(count, GradientOf(options.index));
  PreparedModel model(
      {{{"p", {static_cast<int64_t>(count)}, DType::kFloat32, Role::kTrainable}, parameters.data(), gradient.data()}},
      options.sharing == "zero" ? SharedGradient(count, options.index) : Buffer());
  WorkerOptions join;
  join.servers = {options.address};
  join.name = "w" + std::to_string(options.index);
  join.shared_memory = options.sharing != "none";
  join.timeout = std::chrono::seconds(60);
  std::optional<Worker> worker;
  std::optional<Step> step;
  const auto run = [&](uint64_t steps) -> Result<Span> {
    if (!worker) {
      EVERSTEP_ASSIGN(worker, Worker::Join(join, model));
      step = worker->NextStep();
    }
    Span span{SteadyNow(), {}};
    for (uint64_t i = 0; i < steps && step; ++i) {
      EVERSTEP_RETURN_IF_ERROR(step->Commit({{"loss", 0.0}}));
      step = worker->NextStep();
    }
    span.end = SteadyNow();
    if (!step) return Status(Code::kFailed, "the job has ended: " + worker->status().ToString());
    if (const Worker::Stats stats = worker->stats(); stats.dropped > 0 || stats.lives > 1) {
      return Status(Code::kFailed, "a contribution did not count, so steps were not those of all workers");
    }
    const float* const now = model.shared_values() != nullptr ? model.shared_values() : parameters.data();
    EVERSTEP_RETURN_IF_ERROR(CheckParameters(now, count, options.workers, step->number() - 1));
    return span;
  };
  return Serve(options.control, run);
}

}  // namespace everstep::bench
