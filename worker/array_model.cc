#include <cstring>

#include "base/check.h"
#include "worker/model.h"

namespace everstep {
namespace {

// The part of `array` that the caller asks for. A range beyond the tensor is the driver's own bug.
std::byte* Part(const TensorSpec& spec, float* array, uint64_t offset, uint64_t size) {
  EVERSTEP_CHECK(offset <= spec.bytes() && size <= spec.bytes() - offset, "a range beyond tensor " + spec.name);
  return reinterpret_cast<std::byte*>(array) + offset;
}

}  // namespace

ArrayModel::ArrayModel(std::vector<Tensor> tensors) : tensors_(std::move(tensors)) {
  for (const Tensor& tensor : tensors_) spec_.tensors.push_back(tensor.spec);
  status_ = Validate(spec_);
  for (const Tensor& tensor : tensors_) {
    if (!status_.ok()) return;
    if (tensor.spec.dtype != DType::kFloat32) {
      status_ = Status(Code::kInvalidArgument,
                       "tensor '" + tensor.spec.name + "' is not float32, which is all that ArrayModel holds");
    } else if (tensor.values == nullptr && tensor.spec.elements() > 0) {
      status_ = Status(Code::kInvalidArgument, "tensor '" + tensor.spec.name + "' has no array of values");
    }
  }
}

void ArrayModel::ReadValues(size_t tensor, uint64_t offset, std::span<std::byte> out) const {
  if (out.empty()) return;
  const Tensor& from = tensors_.at(tensor);
  std::memcpy(out.data(), Part(from.spec, from.values, offset, out.size()), out.size());
}

void ArrayModel::ReadGradient(size_t tensor, uint64_t offset, std::span<std::byte> out) const {
  if (out.empty()) return;
  const Tensor& from = tensors_.at(tensor);
  EVERSTEP_CHECK(from.spec.role == Role::kTrainable, "a buffer has no gradient: " + from.spec.name);
  if (from.gradient == nullptr) {
    std::memset(out.data(), 0, out.size());
  } else {
    std::memcpy(out.data(), Part(from.spec, from.gradient, offset, out.size()), out.size());
  }
}

void ArrayModel::WriteValues(size_t tensor, uint64_t offset, std::span<const std::byte> in) {
  if (in.empty()) return;
  const Tensor& to = tensors_.at(tensor);
  std::memcpy(Part(to.spec, to.values, offset, in.size()), in.data(), in.size());
}

void ArrayModel::ClearGradients() {
  for (const Tensor& tensor : tensors_) {
    if (tensor.gradient != nullptr && tensor.spec.bytes() > 0) std::memset(tensor.gradient, 0, tensor.spec.bytes());
  }
}

}  // namespace everstep
