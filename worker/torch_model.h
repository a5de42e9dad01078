// The torch bridge: any torch::nn::Module (or TorchScript module) as a Model. The only header that brings in libtorch.
//
// Trainable are the parameters with requires_grad, float32 and on the CPU; buffers (BatchNorm statistics and the like)
// are synchronised too: float32 as weighted means, int64 counters as maxima. Parameters without requires_grad are
// treated as buffers. Gradients are watched by hooks on their accumulators, which fire as backward produces them, so
// that they leave at once; a second backward within one step is an error (turn WorkerOptions::overlap off for that).
//
// Threads: hooks may fire on autograd's threads; everything else is the user's thread.
#pragma once

#include <memory>

#include "worker/model.h"

namespace torch::nn {
class Module;
}
namespace torch::jit {
struct Module;
}

namespace everstep {

struct TorchModelOptions {
  // During training, parameters are read where the servers of this host published them, instead of being copied into
  // memory of the module's own: they are then read-only, and a program that writes to one (rather than training it)
  // ends with a segmentation fault. Without effect on what comes through sockets in pieces. The finished parameters are
  // always the module's own.
  bool share_parameters = false;
};

class TorchModel final : public Model {
 public:
  // The module must outlive this object and keep its tensors. CHECKs nothing: problems (a float64 or CUDA parameter, a
  // boolean buffer) are told by status(), and by Worker::Join. A tensor registered under several names (tied weights)
  // goes by its first one.
  explicit TorchModel(torch::nn::Module& module, TorchModelOptions options = {});
  explicit TorchModel(torch::jit::Module& module, TorchModelOptions options = {});
  ~TorchModel() override;

  // kInvalidArgument, naming the tensor, when the module holds what cannot be trained here.
  const Status& status() const;

  const ParameterSpec& spec() const override;
  void ReadValues(size_t tensor, uint64_t offset, std::span<std::byte> out) const override;
  void ReadGradient(size_t tensor, uint64_t offset, std::span<std::byte> out) const override;
  void WriteValues(size_t tensor, uint64_t offset, std::span<const std::byte> in) override;
  bool ShareValues(size_t tensor, Buffer values) override;
  void ClearGradients() override;
  void OnGradient(std::function<void(size_t tensor)> ready) override;
  // status(), then whether a gradient of this step grew after it was reported, or could not be read.
  Status step_status() const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace everstep
