#include "worker/tasks/factories.h"
#include "worker/tasks/torch_task.h"
#include "worker/torch_model.h"

namespace everstep {
namespace {

namespace nn = torch::nn;

// Over the training images' pixels, scaled to 0..1.
constexpr double kMean = 0.2860;
constexpr double kDeviation = 0.3530;

torch::Tensor Normalised(const torch::Tensor& images) { return (images - kMean) / kDeviation; }

struct Mlp : nn::Module {
  Mlp() {
    hidden = register_module("hidden", nn::Linear(784, 128));
    output = register_module("output", nn::Linear(128, 10));
  }
  torch::Tensor forward(const torch::Tensor& images) {
    return output(torch::relu(hidden(Normalised(images).flatten(1))));
  }
  nn::Linear hidden{nullptr}, output{nullptr};
};

// Strides early, so that a step costs a CPU core little.
struct Cnn : nn::Module {
  Cnn() {
    conv1 = register_module("conv1", nn::Conv2d(nn::Conv2dOptions(1, 16, 3).stride(2).padding(1).bias(false)));
    norm1 = register_module("norm1", nn::BatchNorm2d(16));
    conv2 = register_module("conv2", nn::Conv2d(nn::Conv2dOptions(16, 32, 3).stride(2).padding(1).bias(false)));
    norm2 = register_module("norm2", nn::BatchNorm2d(32));
    hidden = register_module("hidden", nn::Linear(32 * 7 * 7, 64));
    output = register_module("output", nn::Linear(64, 10));
  }
  torch::Tensor forward(const torch::Tensor& images) {
    torch::Tensor x = torch::relu(norm1(conv1(Normalised(images))));  // [N, 16, 14, 14]
    x = torch::relu(norm2(conv2(x)));                                 // [N, 32, 7, 7]
    return output(torch::relu(hidden(x.flatten(1))));
  }
  nn::Conv2d conv1{nullptr}, conv2{nullptr};
  nn::BatchNorm2d norm1{nullptr}, norm2{nullptr};
  nn::Linear hidden{nullptr}, output{nullptr};
};

template <typename Net>
Result<std::unique_ptr<Task>> Make(const TaskOptions& options) {
  if (options.data.size() > 1) return Status(Code::kInvalidArgument, "--data must name one folder for Fashion-MNIST");
  EVERSTEP_ASSIGN(TrainAndHeldOut data,
                  LoadFashionMnist(options.data.empty() ? std::string() : options.data[0], options.limit));
  return Guarded("the network could not be made", [&]() -> Result<std::unique_ptr<Task>> {
    torch::manual_seed(options.seed);
    auto net = std::make_shared<Net>();
    return std::unique_ptr<Task>(std::make_unique<DatasetTask>(
        Network{.owner = net,
                .model = std::make_unique<TorchModel>(*net, TorchModelOptions{.share_parameters = true}),
                .forward = [net = net.get()](const torch::Tensor& batch) { return net->forward(batch); },
                .train = [net = net.get()](bool on) { net->train(on); }},
        std::move(data)));
  });
}

}  // namespace

Result<std::unique_ptr<Task>> MakeFashionMnistMlp(const TaskOptions& options) { return Make<Mlp>(options); }

Result<std::unique_ptr<Task>> MakeFashionMnistCnn(const TaskOptions& options) { return Make<Cnn>(options); }

}  // namespace everstep
