#include <torch/script.h>

#include "base/file.h"
#include "worker/tasks/factories.h"
#include "worker/tasks/torch_task.h"
#include "worker/torch_model.h"

namespace everstep {

Result<std::unique_ptr<Task>> MakeScript(const TaskOptions& options) {
  if (options.module.empty()) {
    return Status(Code::kInvalidArgument, "task script needs --module FILE, saved by torch.jit.script(net).save(FILE)");
  }
  if (!FileExists(options.module)) return Status(Code::kNotFound, options.module + " does not exist (--module)");
  EVERSTEP_ASSIGN(TrainAndHeldOut data, LoadDataset(options.data, options.limit));
  return Guarded(options.module + " is not a TorchScript module of this libtorch, " TORCH_VERSION,
                 [&]() -> Result<std::unique_ptr<Task>> {
                   torch::manual_seed(options.seed);
                   auto module = std::make_shared<torch::jit::Module>(torch::jit::load(options.module));
                   module->train();
                   auto model = std::make_unique<TorchModel>(*module);
                   if (!model->status().ok()) return model->status().With(options.module);
                   return std::unique_ptr<Task>(std::make_unique<DatasetTask>(
                       Network{.owner = module,
                               .model = std::move(model),
                               .forward = [net = module.get()](
                                              const torch::Tensor& batch) { return net->forward({batch}).toTensor(); },
                               .train = [net = module.get()](bool on) { net->train(on); }},
                       std::move(data)));
                 });
}

}  // namespace everstep
