#include "worker/torch_model.h"

#include <ATen/ops/from_blob.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>

#include "base/check.h"

namespace everstep {
namespace {

// What the hooks share with the model. It outlives whichever of them goes last.
class Watch {
 public:
  explicit Watch(size_t tensors) : reported_(tensors, false) {}

  void Listen(std::function<void(size_t)> ready) {
    std::lock_guard lock(mutex_);
    ready_ = std::move(ready);
  }

  // A gradient was accumulated. The listener is called outside of the lock: it may take its time, and hooks of other
  // tensors may fire meanwhile.
  void Accumulated(size_t tensor, const std::string& name) {
    std::function<void(size_t)> ready;
    {
      std::lock_guard lock(mutex_);
      if (!ready_) return;
      if (reported_[tensor]) {
        Fail(
            Status(Code::kInvalidArgument, "the gradient of '" + name +
                                               "' grew again after it had been sent: backward ran twice in one step. " +
                                               "Call it once a step, or set WorkerOptions::overlap to false"));
        return;
      }
      reported_[tensor] = true;
      ready = ready_;
    }
    ready(tensor);
  }

  void NewStep() {
    std::lock_guard lock(mutex_);
    reported_.assign(reported_.size(), false);
    status_ = Status::Ok();
  }

  void ReportFailure(Status status) {
    std::lock_guard lock(mutex_);
    Fail(std::move(status));
  }

  Status status() const {
    std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  void Fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  mutable std::mutex mutex_;
  std::function<void(size_t)> ready_;
  std::vector<bool> reported_;
  Status status_;
};

class AccumulatedHook final : public torch::autograd::FunctionPostHook {
 public:
  AccumulatedHook(std::shared_ptr<Watch> watch, size_t tensor, std::string name)
      : watch_(std::move(watch)), tensor_(tensor), name_(std::move(name)) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    watch_->Accumulated(tensor_, name_);
    return outputs;
  }

 private:
  const std::shared_ptr<Watch> watch_;
  const size_t tensor_;
  const std::string name_;
};

// std::shared_ptr<Node> in older libtorch, an intrusive pointer in newer ones. The variable itself holds its
// accumulator only weakly, and hooks die with it.
using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

struct Entry {
  at::Tensor tensor;
  at::Tensor own;  // the tensor's own memory, while it shows another's
  Accumulator accumulator;
  std::optional<uintptr_t> hook;
};

struct Named {
  std::string name;
  at::Tensor tensor;
  bool parameter = false;
};

template <typename Text>
std::string Written(const Text& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

// What makes a tensor one that cannot be trained or synchronised, or ok.
Status Examine(const Named& named, bool trainable) {
  const std::string what = (named.parameter ? "parameter '" : "buffer '") + named.name + "'";
  const auto bad = [&](const std::string& why) { return Status(Code::kInvalidArgument, what + " " + why); };
  const at::Tensor& tensor = named.tensor;
  if (tensor.layout() != at::kStrided) {
    return bad("has layout " + Written(tensor.layout()) + "; only dense tensors can be trained here");
  }
  if (!tensor.device().is_cpu()) {
    return bad("is on " + tensor.device().str() + "; move the model with module.to(torch::kCPU)");
  }
  if (trainable && tensor.scalar_type() != at::kFloat) {
    return bad("is " + Written(tensor.scalar_type()) +
               "; trainable parameters must be float32: convert the model with module.to(torch::kFloat)");
  }
  if (tensor.scalar_type() != at::kFloat && tensor.scalar_type() != at::kLong) {
    return bad("is " + Written(tensor.scalar_type()) +
               "; what is not trained must be float32 or int64: convert it, or keep it in a plain member of the module "
               "when all workers can compute it themselves (a mask, a table)");
  }
  if (trainable && !tensor.is_leaf()) {
    return bad("is computed from other tensors; register the tensors that it is computed from instead");
  }
  return Status::Ok();
}

// Calls visit(address of the run, bytes of the run) for the elements [begin, end) of `tensor` in row-major order, in
// runs that lie together. Costs what the range costs, however the tensor is laid out: a transposed weight may be read
// chunk by chunk without being copied as a whole each time.
template <typename Visit>
void ForRuns(const at::Tensor& tensor, int64_t begin, int64_t end, Visit visit) {
  auto* base = static_cast<std::byte*>(tensor.data_ptr());
  const auto size = static_cast<int64_t>(tensor.element_size());
  if (begin >= end) return;
  if (tensor.is_contiguous()) {
    visit(base + begin * size, static_cast<size_t>((end - begin) * size));
    return;
  }
  const at::IntArrayRef sizes = tensor.sizes();
  const at::IntArrayRef strides = tensor.strides();
  const auto dimensions = static_cast<int64_t>(sizes.size());
  std::vector<int64_t> index(sizes.size());
  int64_t offset = 0;
  for (int64_t d = dimensions - 1, rest = begin; d >= 0; --d) {
    index[d] = rest % sizes[d];
    rest /= sizes[d];
    offset += index[d] * strides[d];
  }
  for (int64_t i = begin; i < end; ++i) {
    visit(base + offset * size, static_cast<size_t>(size));
    for (int64_t d = dimensions - 1; d >= 0; --d) {
      offset += strides[d];
      if (++index[d] < sizes[d]) break;
      offset -= sizes[d] * strides[d];
      index[d] = 0;
    }
  }
}

template <typename Copy>
void ForRange(const at::Tensor& tensor, uint64_t offset, uint64_t bytes, Copy copy) {
  const uint64_t size = tensor.element_size();
  EVERSTEP_CHECK(offset % size == 0 && bytes % size == 0, "ranges hold whole elements");
  EVERSTEP_CHECK(offset <= tensor.nbytes() && bytes <= tensor.nbytes() - offset, "a range beyond its tensor");
  ForRuns(tensor, static_cast<int64_t>(offset / size), static_cast<int64_t>((offset + bytes) / size), copy);
}

void Read(const at::Tensor& tensor, uint64_t offset, std::span<std::byte> out) {
  std::byte* to = out.data();
  ForRange(tensor, offset, out.size(), [&to](const std::byte* from, size_t bytes) {
    std::memcpy(to, from, bytes);
    to += bytes;
  });
}

}  // namespace

struct TorchModel::Impl {
  Impl(std::vector<Named> tensors, TorchModelOptions model_options) : options(model_options) {
    std::set<const c10::TensorImpl*> seen;
    for (Named& named : tensors) {
      // Undefined: an option that was left out, such as a Linear's bias. Seen: tied weights.
      if (!named.tensor.defined() || !seen.insert(named.tensor.unsafeGetTensorImpl()).second) continue;
      const bool trainable = named.parameter && named.tensor.requires_grad();
      if (const Status examined = Examine(named, trainable); !examined.ok()) {
        if (status.ok()) status = examined;
        continue;
      }
      spec.tensors.push_back({.name = named.name,
                              .shape = named.tensor.sizes().vec(),
                              .dtype = named.tensor.scalar_type() == at::kLong ? DType::kInt64 : DType::kFloat32,
                              .role = trainable ? Role::kTrainable : Role::kBuffer});
      Entry& entry = entries.emplace_back();
      entry.tensor = named.tensor;
      if (trainable) entry.accumulator = torch::autograd::impl::grad_accumulator(entry.tensor);
    }
    if (status.ok()) status = Validate(spec);
    const auto trains = [](const Entry& entry) { return entry.accumulator && entry.tensor.numel() > 0; };
    if (status.ok() && std::none_of(entries.begin(), entries.end(), trains)) {
      status =
          Status(Code::kInvalidArgument, "no parameter of the module has requires_grad; there is nothing to train");
    }
    watch = std::make_shared<Watch>(entries.size());
  }

  ~Impl() {
    watch->Listen({});
    for (Entry& entry : entries) {
      if (entry.hook) entry.accumulator->del_post_hook(*entry.hook);
    }
  }

  // Hooks cost a call per tensor and backward, so only those who listen pay.
  void AddHooks() {
    for (size_t i = 0; i < entries.size(); ++i) {
      Entry& entry = entries[i];
      if (!entry.accumulator || entry.hook) continue;
      entry.hook = entry.accumulator->add_post_hook(std::make_unique<AccumulatedHook>(watch, i, spec.tensors[i].name));
    }
  }

  // Runs what touches libtorch's tensors. Its exceptions end here, as the step's failure.
  template <typename Body>
  bool Guarded(size_t tensor, Body body) const {
    std::string problem;
    try {
      at::NoGradGuard guard;
      if (entries.at(tensor).tensor.sizes() == at::IntArrayRef(spec.tensors[tensor].shape)) {
        body();
        return true;
      }
      problem = "its shape changed to " + Written(entries[tensor].tensor.sizes());
    } catch (const c10::Error& error) {
      problem = error.what_without_backtrace();
    } catch (const std::exception& error) {
      problem = error.what();
    }
    watch->ReportFailure(Status(Code::kInvalidArgument,
                                "tensor '" + spec.tensors[tensor].name + "' cannot be used any more: " + problem));
    return false;
  }

  // The tensor shows its own memory again.
  void Unshare(Entry& entry) {
    if (entry.own.defined()) entry.tensor.set_data(std::exchange(entry.own, at::Tensor()));
  }

  const TorchModelOptions options;
  std::vector<Entry> entries;
  ParameterSpec spec;
  Status status;
  std::shared_ptr<Watch> watch;
};

namespace {

std::vector<Named> TensorsOf(const torch::nn::Module& module) {
  std::vector<Named> tensors;
  for (const auto& item : module.named_parameters()) tensors.push_back({item.key(), item.value(), true});
  for (const auto& item : module.named_buffers()) tensors.push_back({item.key(), item.value(), false});
  return tensors;
}

std::vector<Named> TensorsOf(const torch::jit::Module& module) {
  std::vector<Named> tensors;
  for (const auto& item : module.named_parameters()) tensors.push_back({item.name, item.value, true});
  for (const auto& item : module.named_buffers()) tensors.push_back({item.name, item.value, false});
  return tensors;
}

}  // namespace

TorchModel::TorchModel(torch::nn::Module& module, TorchModelOptions options)
    : impl_(std::make_unique<Impl>(TensorsOf(module), options)) {}

TorchModel::TorchModel(torch::jit::Module& module, TorchModelOptions options)
    : impl_(std::make_unique<Impl>(TensorsOf(module), options)) {}

TorchModel::~TorchModel() {
  at::NoGradGuard guard;
  for (Entry& entry : impl_->entries) impl_->Unshare(entry);
}

const Status& TorchModel::status() const { return impl_->status; }

const ParameterSpec& TorchModel::spec() const { return impl_->spec; }

void TorchModel::ReadValues(size_t tensor, uint64_t offset, std::span<std::byte> out) const {
  if (!impl_->Guarded(tensor, [&] { Read(impl_->entries[tensor].tensor, offset, out); })) {
    std::fill(out.begin(), out.end(), std::byte{0});
  }
}

void TorchModel::ReadGradient(size_t tensor, uint64_t offset, std::span<std::byte> out) const {
  const bool read = impl_->Guarded(tensor, [&] {
    EVERSTEP_CHECK(impl_->entries[tensor].accumulator, "a buffer has no gradient");
    const at::Tensor& gradient = impl_->entries[tensor].tensor.grad();
    if (!gradient.defined()) {
      std::fill(out.begin(), out.end(), std::byte{0});
    } else {
      TORCH_CHECK(gradient.layout() == at::kStrided, "its gradient is sparse; use a dense one (e.g. sparse(false))");
      Read(gradient, offset, out);
    }
  });
  if (!read) std::fill(out.begin(), out.end(), std::byte{0});
}

void TorchModel::WriteValues(size_t tensor, uint64_t offset, std::span<const std::byte> in) {
  const std::byte* from = in.data();
  impl_->Guarded(tensor, [&] {
    impl_->Unshare(impl_->entries[tensor]);
    ForRange(impl_->entries[tensor].tensor, offset, in.size(), [&from](std::byte* to, size_t bytes) {
      std::memcpy(to, from, bytes);
      from += bytes;
    });
  });
}

bool TorchModel::ShareValues(size_t tensor, Buffer values) {
  if (!impl_->options.share_parameters) return false;
  bool shared = false;
  impl_->Guarded(tensor, [&] {
    Entry& entry = impl_->entries[tensor];
    if (!entry.tensor.is_contiguous()) return;
    auto* data = const_cast<std::byte*>(values.data());  // nobody writes: see TorchModelOptions
    const at::Tensor view = at::from_blob(
        data, entry.tensor.sizes(), [values](void*) {}, entry.tensor.options().requires_grad(false));
    if (!entry.own.defined()) entry.own = entry.tensor.tensor_data();
    entry.tensor.set_data(view);
    shared = true;
  });
  return shared;
}

void TorchModel::ClearGradients() {
  impl_->watch->NewStep();
  for (Entry& entry : impl_->entries) {
    // Dropped, not zeroed: backward then hands over the memory it computed into instead of adding to this one.
    if (entry.accumulator) entry.tensor.mutable_grad() = at::Tensor();
  }
}

void TorchModel::OnGradient(std::function<void(size_t tensor)> ready) {
  if (ready) impl_->AddHooks();
  impl_->watch->Listen(std::move(ready));
}

Status TorchModel::step_status() const { return impl_->status.ok() ? impl_->watch->status() : impl_->status; }

}  // namespace everstep
