// A model as the worker library sees it: named tensors whose values can be read and written in parts. libtorch users
// take worker/torch_model.h, which does this for any torch::nn::Module; users of other frameworks implement Model, or
// use ArrayModel for plain arrays.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "schema/parameter_spec.h"

namespace everstep {

class Model {
 public:
  virtual ~Model() = default;

  // Names, shapes and roles in a fixed order; does not change while a worker lives.
  virtual const ParameterSpec& spec() const = 0;

  // Copies bytes [offset, offset + out.size()) of tensor `tensor` (row-major, contiguous) into `out`: its values ...
  virtual void ReadValues(size_t tensor, uint64_t offset, std::span<std::byte> out) const = 0;
  // ... or its gradient, zeros when there is none. Only for trainable tensors.
  virtual void ReadGradient(size_t tensor, uint64_t offset, std::span<std::byte> out) const = 0;
  // Overwrites the values.
  virtual void WriteValues(size_t tensor, uint64_t offset, std::span<const std::byte> in) = 0;

  // Called before a step is handed to the user: gradients must not carry over.
  virtual void ClearGradients() = 0;

  // If the model can tell when a tensor's gradient of this step is complete (libtorch's hooks can), it calls `ready`
  // with the tensor's index then, on any thread, at most once a tensor and step; so gradients leave while backward
  // still runs. Tensors never named are read at Commit. An empty function takes the listener away.
  virtual void OnGradient(std::function<void(size_t tensor)> ready) { (void)ready; }

  // ---- Without a copy, for models that can ----

  // A trainable tensor's new values, row-major, where they lie: read-only memory that others read too, the same as long
  // as `values` lives. A model that takes them as its own keeps `values` and returns true; others get WriteValues. Only
  // in training: the finished parameters are always written.
  virtual bool ShareValues(size_t tensor, Buffer values) {
    (void)tensor, (void)values;
    return false;
  }
  // Bytes [offset, offset + size) of the gradient where they lie, if the model promises not to write there as long as
  // the Buffer lives (until the servers have summed it). Nothing: ReadGradient is asked. No copy is made when the
  // memory comes from transport::SharedAllocator().
  virtual std::optional<Buffer> ShareGradient(size_t tensor, uint64_t offset, uint64_t size) const {
    (void)tensor, (void)offset, (void)size;
    return std::nullopt;
  }

  // Why this model, or its present step, must not be contributed: asked by Join, and by Commit before anything is
  // promised. What went wrong in one step (a gradient that grew again after it was reported) ends with
  // ClearGradients(); what is wrong with the model itself stays. Any thread.
  virtual Status step_status() const { return Status::Ok(); }
};

// A model over float32 arrays that the user owns and that outlive it. Tensors of another type, or without values, are
// reported by step_status(); a trainable tensor without a gradient array contributes zeros.
class ArrayModel final : public Model {
 public:
  struct Tensor {
    TensorSpec spec;
    float* values = nullptr;
    float* gradient = nullptr;  // trainable tensors
  };
  explicit ArrayModel(std::vector<Tensor> tensors);

  const ParameterSpec& spec() const override { return spec_; }
  void ReadValues(size_t tensor, uint64_t offset, std::span<std::byte> out) const override;
  void ReadGradient(size_t tensor, uint64_t offset, std::span<std::byte> out) const override;
  void WriteValues(size_t tensor, uint64_t offset, std::span<const std::byte> in) override;
  void ClearGradients() override;
  Status step_status() const override { return status_; }

 private:
  std::vector<Tensor> tensors_;
  ParameterSpec spec_;
  Status status_;
};

}  // namespace everstep
