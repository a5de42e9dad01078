#include "worker/torch_model.h"

#include <gmock/gmock.h>
#include <sys/mman.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <cstring>
#include <map>
#include <memory>
#include <span>

#include "worker/tasks/runtime.h"

namespace everstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

namespace nn = torch::nn;

// One of each kind: convolution, BatchNorm with its float and integer buffers, a scalar, a tensor without elements, a
// frozen parameter, a layer that forward does not use, and a tensor with two names.
struct Net : nn::Module {
  Net() {
    conv = register_module("conv", nn::Conv2d(nn::Conv2dOptions(2, 3, 3).bias(false)));
    norm = register_module("norm", nn::BatchNorm2d(3));
    linear = register_module("linear", nn::Linear(3 * 4 * 4, 5));
    scale = register_parameter("scale", torch::full({}, 2.0));
    empty = register_parameter("empty", torch::zeros({0, 7}));
    frozen = register_parameter("frozen", torch::full({2}, 3.0), /*requires_grad=*/false);
    unused = register_module("unused", nn::Linear(3, 2));
    register_parameter("scale_again", scale);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return linear(torch::relu(norm(conv(x))).flatten(1)) * scale + empty.sum();
  }
  nn::Conv2d conv{nullptr};
  nn::BatchNorm2d norm{nullptr};
  nn::Linear linear{nullptr}, unused{nullptr};
  torch::Tensor scale, empty, frozen;
};

class TorchModelTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { SetTorchThreads(1); }

  TorchModelTest() { torch::manual_seed(1); }

  static torch::Tensor Batch() { return torch::randn({4, 2, 6, 6}); }
  static torch::Tensor Loss(Net& net, const torch::Tensor& batch) { return net.forward(batch).square().mean(); }

  static std::vector<std::string> Names(const Model& model) {
    std::vector<std::string> names;
    for (const TensorSpec& tensor : model.spec().tensors) names.push_back(tensor.name);
    return names;
  }

  static size_t Index(const Model& model, const std::string& name) {
    const std::vector<std::string> names = Names(model);
    const auto at = std::find(names.begin(), names.end(), name);
    EXPECT_NE(at, names.end()) << name;
    return static_cast<size_t>(at - names.begin());
  }

  static std::string Values(const Model& model, size_t tensor) {
    std::string bytes(model.spec().tensors[tensor].bytes(), '?');
    model.ReadValues(tensor, 0, std::as_writable_bytes(std::span(bytes)));
    return bytes;
  }

  static std::vector<float> Gradient(const Model& model, const std::string& name) {
    const size_t tensor = Index(model, name);
    std::vector<float> values(model.spec().tensors[tensor].elements(), NAN);
    model.ReadGradient(tensor, 0, std::as_writable_bytes(std::span(values)));
    return values;
  }

  // As a C++ program would see the tensor: row-major.
  static std::vector<float> Floats(const torch::Tensor& tensor) {
    const torch::Tensor flat = tensor.detach().contiguous();
    return std::vector<float>(flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel());
  }

  // Copies all values, in parts of at most `part` bytes.
  static void CopyValues(const Model& from, Model* to, size_t part) {
    for (size_t i = 0; i < from.spec().tensors.size(); ++i) {
      const uint64_t bytes = from.spec().tensors[i].bytes();
      for (uint64_t offset = 0; offset < bytes; offset += part) {
        std::vector<std::byte> buffer(std::min<uint64_t>(part, bytes - offset));
        from.ReadValues(i, offset, buffer);
        to->WriteValues(i, offset, buffer);
      }
    }
  }
};

// Parameters in memory that nobody may write: training reads them there, gradients are the same, and the module has its
// own memory again as soon as values are written, or the model is gone.
TEST_F(TorchModelTest, SharedValuesAreReadWhereTheyLie) {
  Net shown, copied;
  auto model = std::make_unique<TorchModel>(shown, TorchModelOptions{.share_parameters = true});
  TorchModel reference(copied);
  const size_t page = 4096;
  std::map<size_t, void*> own;
  for (int version = 1; version <= 3; ++version) {
    for (size_t i = 0; i < model->spec().tensors.size(); ++i) {
      const TensorSpec& tensor = model->spec().tensors[i];
      const torch::Tensor values = torch::randn({static_cast<int64_t>(tensor.elements())});
      const std::span<const std::byte> bytes(static_cast<std::byte*>(values.data_ptr()), tensor.bytes());
      if (tensor.role != Role::kTrainable || tensor.bytes() == 0) continue;
      const size_t size = (tensor.bytes() + page - 1) / page * page;
      void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      std::memcpy(memory, bytes.data(), bytes.size());
      mprotect(memory, size, PROT_READ);
      std::shared_ptr<const void> owner(memory, [size](const void* p) { munmap(const_cast<void*>(p), size); });
      ASSERT_TRUE(model->ShareValues(i, Buffer(owner, memory, bytes.size()))) << tensor.name;
      EXPECT_FALSE(reference.ShareValues(i, Buffer(owner, memory, bytes.size()))) << "not asked for";
      reference.WriteValues(i, 0, bytes);
    }
    const torch::Tensor batch = Batch();
    for (Net* net : {&shown, &copied}) {
      net->zero_grad();
      Loss(*net, batch).backward();
    }
    EXPECT_TRUE(torch::equal(shown.conv->weight, copied.conv->weight));
    EXPECT_TRUE(torch::equal(shown.conv->weight.grad(), copied.conv->weight.grad()));
    EXPECT_TRUE(torch::equal(shown.linear->bias.grad(), copied.linear->bias.grad()));
    EXPECT_TRUE(model->step_status().ok());
  }
  const size_t bias = Index(*model, "linear.bias");
  const std::vector<float> ones(5, 1.0f);
  model->WriteValues(bias, 0, std::as_bytes(std::span(ones)));
  EXPECT_TRUE(torch::equal(shown.linear->bias, torch::ones({5})));
  model.reset();
  {
    const torch::NoGradGuard guard;
    for (torch::Tensor& parameter : shown.parameters()) parameter.fill_(0.5);  // writable again
  }
}

TEST_F(TorchModelTest, SpecListsParametersThenBuffersAndTiedOnesOnce) {
  Net net;
  const TorchModel model(net);
  ASSERT_TRUE(model.status().ok()) << model.status().ToString();
  EXPECT_TRUE(Validate(model.spec()).ok());
  EXPECT_THAT(Names(model), ElementsAre("scale", "empty", "frozen", "conv.weight", "norm.weight", "norm.bias",
                                        "linear.weight", "linear.bias", "unused.weight", "unused.bias",
                                        "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"));
  const auto tensor = [&](const char* name) { return model.spec().tensors[Index(model, name)]; };
  EXPECT_EQ(tensor("scale"), (TensorSpec{"scale", {}, DType::kFloat32, Role::kTrainable}));
  EXPECT_EQ(tensor("empty"), (TensorSpec{"empty", {0, 7}, DType::kFloat32, Role::kTrainable}));
  EXPECT_EQ(tensor("frozen"), (TensorSpec{"frozen", {2}, DType::kFloat32, Role::kBuffer}));
  EXPECT_EQ(tensor("conv.weight"), (TensorSpec{"conv.weight", {3, 2, 3, 3}, DType::kFloat32, Role::kTrainable}));
  EXPECT_EQ(tensor("norm.running_var"), (TensorSpec{"norm.running_var", {3}, DType::kFloat32, Role::kBuffer}));
  EXPECT_EQ(tensor("norm.num_batches_tracked"),
            (TensorSpec{"norm.num_batches_tracked", {}, DType::kInt64, Role::kBuffer}));
}

TEST_F(TorchModelTest, TheSameModuleHasTheSameSpec) {
  Net one, two;
  EXPECT_EQ(TorchModel(one).spec().hash(), TorchModel(two).spec().hash());
}

TEST_F(TorchModelTest, ValuesWrittenInPartsMakeTheNetworksEqual) {
  for (size_t part : {8u, 64u, 1u << 20}) {
    SCOPED_TRACE(part);
    Net one, two;
    const torch::Tensor batch = Batch();
    one.forward(batch);  // moves the BatchNorm statistics
    TorchModel from(one), to(two);
    CopyValues(from, &to, part);
    EXPECT_TRUE(from.step_status().ok());
    EXPECT_TRUE(to.step_status().ok());
    for (size_t i = 0; i < from.spec().tensors.size(); ++i) EXPECT_EQ(Values(from, i), Values(to, i)) << i;
    EXPECT_EQ(two.norm->num_batches_tracked.item<int64_t>(), 1);
    one.eval();
    two.eval();
    EXPECT_TRUE(torch::equal(one.forward(batch), two.forward(batch)));
  }
}

TEST_F(TorchModelTest, TensorsThatDoNotLieInRowMajorOrderAreReadAndWrittenSo) {
  struct Strided : nn::Module {
    Strided() {
      transposed = register_parameter("transposed", torch::arange(6, torch::kFloat).view({3, 2}).t());
      channels_last = register_parameter(
          "channels_last",
          torch::arange(24, torch::kFloat).view({2, 3, 2, 2}).contiguous(torch::MemoryFormat::ChannelsLast));
      gaps = register_buffer("gaps", torch::arange(10, torch::kLong).slice(0, 0, 10, 3));
    }
    torch::Tensor transposed, channels_last, gaps;
  };
  Strided net;
  ASSERT_FALSE(net.transposed.is_contiguous());
  ASSERT_FALSE(net.channels_last.is_contiguous());
  TorchModel model(net);
  ASSERT_TRUE(model.status().ok()) << model.status().ToString();

  std::vector<float> part(3);
  model.ReadValues(0, 8, std::as_writable_bytes(std::span(part)));
  EXPECT_THAT(part, ElementsAre(4, 1, 3));
  EXPECT_EQ(model.spec().tensors[0].shape, (std::vector<int64_t>{2, 3}));
  std::vector<int64_t> integers(4);
  model.ReadValues(2, 0, std::as_writable_bytes(std::span(integers)));
  EXPECT_THAT(integers, ElementsAre(0, 3, 6, 9));
  for (size_t begin = 0; begin < 24; begin += 5) {
    std::vector<float> run(std::min<size_t>(5, 24 - begin));
    model.ReadValues(1, begin * 4, std::as_writable_bytes(std::span(run)));
    for (size_t i = 0; i < run.size(); ++i) EXPECT_EQ(run[i], static_cast<float>(begin + i));
  }

  const std::vector<float> fresh{-1, -2, -3};
  model.WriteValues(0, 8, std::as_bytes(std::span(fresh)));
  EXPECT_THAT(Floats(net.transposed), ElementsAre(0, 2, -1, -2, -3, 5));

  // A loss whose gradient of each element is the element's own coefficient.
  const torch::Tensor coefficients = torch::tensor({{1.f, 2.f, 3.f}, {4.f, 5.f, 6.f}});
  (net.transposed * coefficients).sum().backward();
  EXPECT_THAT(Gradient(model, "transposed"), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_TRUE(model.step_status().ok()) << model.step_status().ToString();
}

TEST_F(TorchModelTest, GradientsAreAutogradsAndZerosWhereThereAreNone) {
  Net net;
  TorchModel model(net);
  Loss(net, Batch()).backward();
  EXPECT_EQ(Gradient(model, "conv.weight"), Floats(net.conv->weight.grad()));
  EXPECT_EQ(Gradient(model, "linear.weight"), Floats(net.linear->weight.grad()));
  EXPECT_EQ(Gradient(model, "scale"), Floats(net.scale.grad()));
  EXPECT_NE(Gradient(model, "scale")[0], 0);
  EXPECT_FALSE(net.unused->weight.grad().defined());
  EXPECT_THAT(Gradient(model, "unused.bias"), ElementsAre(0, 0));
  EXPECT_THAT(Gradient(model, "empty"), ElementsAre());

  model.ClearGradients();
  EXPECT_EQ(Gradient(model, "linear.bias"), std::vector<float>(5, 0.0f));
}

TEST_F(TorchModelTest, GradientsAreReportedOnceFinishedAndLastLayersFirst) {
  Net net;
  TorchModel model(net);
  std::vector<std::string> order;
  std::vector<float> seen;
  model.OnGradient([&](size_t tensor) {
    order.push_back(model.spec().tensors[tensor].name);
    if (order.back() == "linear.weight") seen = Gradient(model, "linear.weight");
  });
  for (int step = 0; step < 3; ++step) {
    order.clear();
    model.ClearGradients();
    Loss(net, Batch()).backward();
    EXPECT_TRUE(model.step_status().ok()) << model.step_status().ToString();
    const auto at = [&](const char* name) { return std::find(order.begin(), order.end(), name) - order.begin(); };
    EXPECT_EQ(order.size(), 7u) << "all but the unused layer";
    EXPECT_LT(at("scale"), at("linear.weight"));
    EXPECT_LT(at("linear.weight"), at("norm.weight"));
    EXPECT_LT(at("norm.weight"), at("conv.weight"));
    EXPECT_LT(at("conv.weight"), 7);
    EXPECT_EQ(seen, Floats(net.linear->weight.grad()));
  }
}

TEST_F(TorchModelTest, AParameterUsedTwiceIsReportedOnceWithItsWholeGradient) {
  Net net;
  TorchModel model(net);
  int reports = 0;
  model.OnGradient([&](size_t tensor) { reports += model.spec().tensors[tensor].name == "scale" ? 1 : 0; });
  (net.scale * 3 + net.scale * net.scale).backward();
  EXPECT_EQ(reports, 1);
  EXPECT_THAT(Gradient(model, "scale"), ElementsAre(3 + 2 * 2));
  EXPECT_TRUE(model.step_status().ok());
}

TEST_F(TorchModelTest, ASecondBackwardInOneStepIsAnErrorUntilTheNextStep) {
  Net net;
  TorchModel model(net);
  int reports = 0;
  model.OnGradient([&](size_t) { ++reports; });
  (net.scale * 3).backward();
  EXPECT_TRUE(model.step_status().ok());
  (net.scale * 3).backward();
  EXPECT_EQ(reports, 1);
  EXPECT_EQ(model.step_status().code(), Code::kInvalidArgument);
  EXPECT_THAT(model.step_status().message(), HasSubstr("'scale'"));
  EXPECT_THAT(model.step_status().message(), HasSubstr("overlap"));
  EXPECT_TRUE(model.status().ok()) << "the model itself is fine";
  model.ClearGradients();
  EXPECT_TRUE(model.step_status().ok());
  (net.scale * 3).backward();
  EXPECT_EQ(reports, 2);
  EXPECT_TRUE(model.step_status().ok());
}

TEST_F(TorchModelTest, WithoutAListenerBackwardMayAccumulate) {
  Net net;
  TorchModel model(net);
  model.OnGradient([](size_t) { FAIL() << "taken away"; });
  model.OnGradient({});
  (net.scale * 3).backward();
  (net.scale * 4).backward();
  EXPECT_TRUE(model.step_status().ok());
  EXPECT_THAT(Gradient(model, "scale"), ElementsAre(7));
}

TEST_F(TorchModelTest, ModelsOfOneModuleMayComeAndGo) {
  Net net;
  int reports = 0;
  for (int i = 0; i < 3; ++i) {
    TorchModel model(net);
    model.OnGradient([&](size_t) { ++reports; });
    (net.scale * 3).backward();
    EXPECT_EQ(reports, i + 1);
  }
  (net.scale * 3).backward();
  EXPECT_EQ(reports, 3);
}

TEST_F(TorchModelTest, WritingDoesNotDisturbAutograd) {
  Net net;
  TorchModel model(net);
  const torch::Tensor loss = Loss(net, Batch());
  const auto version = net.linear->weight._version();
  const size_t tensor = Index(model, "linear.weight");
  const std::string values = Values(model, tensor);
  model.WriteValues(tensor, 0, std::as_bytes(std::span(values)));
  EXPECT_EQ(net.linear->weight._version(), version);
  loss.backward();
  EXPECT_TRUE(net.linear->weight.grad().defined());
}

TEST_F(TorchModelTest, TensorsThatCannotBeTrainedAreNamed) {
  struct Bad : nn::Module {};
  const auto status = [](auto add) {
    Bad net;
    net.register_parameter("fine", torch::zeros({2}));
    add(net);
    const TorchModel model(net);
    EXPECT_EQ(model.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(model.step_status().code(), Code::kInvalidArgument);
    return model.status().message();
  };
  EXPECT_THAT(status([](Bad& net) { net.register_parameter("wide", torch::zeros({2}, torch::kDouble)); }),
              testing::AllOf(HasSubstr("parameter 'wide'"), HasSubstr("float32")));
  EXPECT_THAT(status([](Bad& net) { net.register_buffer("mask", torch::zeros({2}, torch::kBool)); }),
              testing::AllOf(HasSubstr("buffer 'mask'"), HasSubstr("int64")));
  EXPECT_THAT(status([](Bad& net) { net.register_buffer("sparse", torch::zeros({2}).to_sparse()); }),
              testing::AllOf(HasSubstr("buffer 'sparse'"), HasSubstr("dense")));
  EXPECT_THAT(status([](Bad& net) { net.register_parameter("meta", torch::empty({2}, torch::kMeta)); }),
              testing::AllOf(HasSubstr("parameter 'meta'"), HasSubstr("on meta")));
}

TEST_F(TorchModelTest, AModuleWithoutTensorsCannotBeTrained) {
  struct Nothing : nn::Module {
  } net;
  EXPECT_EQ(TorchModel(net).status().code(), Code::kInvalidArgument);
}

TEST_F(TorchModelTest, AModuleThatIsWhollyFrozenCannotBeTrained) {
  nn::Linear linear(2, 2);
  for (torch::Tensor& parameter : linear->parameters()) parameter.set_requires_grad(false);
  EXPECT_THAT(TorchModel(*linear).status().message(), HasSubstr("requires_grad"));
}

TEST_F(TorchModelTest, UndefinedTensorsAreLeftOut) {
  nn::Linear linear(nn::LinearOptions(2, 2).bias(false));
  nn::BatchNorm1d norm(nn::BatchNorm1dOptions(2).affine(false).track_running_stats(false));
  const nn::Sequential net(linear, norm);
  const TorchModel model(*net.ptr());
  EXPECT_TRUE(model.status().ok()) << model.status().ToString();
  EXPECT_THAT(Names(model), ElementsAre("0.weight"));
}

TEST_F(TorchModelTest, ASparseGradientIsTheStepsError) {
  nn::Embedding embedding(nn::EmbeddingOptions(4, 2).sparse(true));
  TorchModel model(*embedding);
  embedding(torch::tensor({1, 2})).sum().backward();
  EXPECT_EQ(Gradient(model, "weight"), std::vector<float>(8, 0.0f));
  EXPECT_THAT(model.step_status().message(), testing::AllOf(HasSubstr("'weight'"), HasSubstr("sparse")));
  model.ClearGradients();
  EXPECT_TRUE(model.step_status().ok());
}

TEST_F(TorchModelTest, ATensorWhoseShapeChangedIsTheStepsErrorAndIsNotWritten) {
  Net net;
  TorchModel model(net);
  torch::NoGradGuard no_grad;
  net.frozen.set_data(torch::ones({1}));
  const size_t tensor = Index(model, "frozen");
  EXPECT_EQ(Values(model, tensor), std::string(8, '\0'));
  const std::string bytes(8, 'x');
  model.WriteValues(tensor, 0, std::as_bytes(std::span(bytes)));
  EXPECT_EQ(net.frozen.item<float>(), 1);
  EXPECT_THAT(model.step_status().message(), HasSubstr("'frozen'"));
}

TEST_F(TorchModelTest, TorchScriptModulesWorkAlike) {
  torch::jit::Module net("Net");
  net.register_parameter("weight", torch::full({2, 3}, 0.5, torch::requires_grad()), /*is_buffer=*/false);
  net.register_parameter("count", torch::zeros({}, torch::kLong), /*is_buffer=*/true);
  net.define("def forward(self, x):\n  return x.matmul(self.weight.t())\n");
  TorchModel model(net);
  ASSERT_TRUE(model.status().ok()) << model.status().ToString();
  EXPECT_THAT(Names(model), ElementsAre("weight", "count"));
  EXPECT_EQ(model.spec().tensors[1], (TensorSpec{"count", {}, DType::kInt64, Role::kBuffer}));

  int reports = 0;
  model.OnGradient([&](size_t tensor) { reports += tensor == 0 ? 1 : 100; });
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  model.WriteValues(0, 0, std::as_bytes(std::span(values)));
  // Several rounds: the executor compiles the graph after it has watched a few.
  for (int round = 1; round <= 4; ++round) {
    model.ClearGradients();
    const torch::Tensor output = net.forward({torch::tensor({{1.f, 0.f, 2.f}})}).toTensor();
    EXPECT_THAT(Floats(output), ElementsAre(7, 16));
    output.sum().backward();
    EXPECT_EQ(reports, round);
    EXPECT_THAT(Gradient(model, "weight"), ElementsAre(1, 0, 2, 1, 0, 2));
    EXPECT_TRUE(model.step_status().ok()) << model.step_status().ToString();
  }
}

TEST_F(TorchModelTest, RangesBeyondATensorAreABug) {
  Net net;
  TorchModel model(net);
  std::vector<float> part(2);
  EXPECT_DEATH(model.ReadValues(Index(model, "scale"), 0, std::as_writable_bytes(std::span(part))), "beyond");
}

}  // namespace
}  // namespace everstep
