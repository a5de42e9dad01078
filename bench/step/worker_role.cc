#include <cstdio>
#include <optional>
#include <vector>

#include "base/log.h"
#include "bench/step/control.h"
#include "bench/step/roles.h"
#include "bench/step/workload.h"
#include "transport/tuning.h"
#include "worker/worker.h"

namespace everstep::bench {
namespace {

// ArrayModel whose gradients stay: computing and clearing them is the framework's work, which the peers are not charged
// for either.
class PreparedModel final : public Model {
 public:
  explicit PreparedModel(std::vector<ArrayModel::Tensor> tensors) : arrays_(std::move(tensors)) {}

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
  void ClearGradients() override {}
  Status step_status() const override { return arrays_.step_status(); }

 private:
  ArrayModel arrays_;
};

}  // namespace

int RunWorkerRole(const RoleOptions& options) {
  transport::TuneAllocator();
  log::SetLevel(log::Level::kWarning);
  const uint64_t count = options.bytes / sizeof(float);
  std::vector<float> parameters(count, 0.0f);
  std::vector<float> gradient(count, GradientOf(options.index));
  PreparedModel model(
      {{{"p", {static_cast<int64_t>(count)}, DType::kFloat32, Role::kTrainable}, parameters.data(), gradient.data()}});
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
    EVERSTEP_RETURN_IF_ERROR(CheckParameters(parameters.data(), count, options.workers, step->number() - 1));
    return span;
  };
  return Serve(options.control, run);
}

}  // namespace everstep::bench
