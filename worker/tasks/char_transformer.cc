#include <cmath>

#include "worker/tasks/factories.h"
#include "worker/tasks/text.h"
#include "worker/tasks/torch_task.h"
#include "worker/torch_model.h"

namespace everstep {
namespace {

namespace nn = torch::nn;

constexpr int64_t kBytes = 256;  // the vocabulary
constexpr int64_t kWindow = 64;
constexpr int64_t kWidth = 96;
constexpr int64_t kHeads = 4;
constexpr int64_t kLayers = 2;
constexpr uint64_t kEvaluationBatch = 32;

struct Block : nn::Module {
  Block() {
    norm1 = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
    attend = register_module("attend", nn::Linear(kWidth, 3 * kWidth));
    merge = register_module("merge", nn::Linear(kWidth, kWidth));
    norm2 = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
    widen = register_module("widen", nn::Linear(kWidth, 4 * kWidth));
    narrow = register_module("narrow", nn::Linear(4 * kWidth, kWidth));
  }

  // x: [N, T, width]; mask: [T, T], -inf where the future is.
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& mask) {
    const int64_t n = x.size(0);
    const int64_t t = x.size(1);
    const torch::Tensor qkv = attend(norm1(x)).view({n, t, 3, kHeads, kWidth / kHeads}).permute({2, 0, 3, 1, 4});
    const torch::Tensor scores = torch::matmul(qkv[0], qkv[1].transpose(-2, -1)) / std::sqrt(kWidth / kHeads);
    const torch::Tensor mixed = torch::matmul(torch::softmax(scores + mask, -1), qkv[2]);  // [N, heads, T, width/heads]
    const torch::Tensor y = x + merge(mixed.transpose(1, 2).reshape({n, t, kWidth}));
    return y + narrow(torch::relu(widen(norm2(y))));
  }

  nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  nn::Linear attend{nullptr}, merge{nullptr}, widen{nullptr}, narrow{nullptr};
};

struct Transformer : nn::Module {
  Transformer() {
    bytes = register_module("bytes", nn::Embedding(kBytes, kWidth));
    positions = register_parameter("positions", torch::randn({kWindow, kWidth}) * 0.02);
    for (int64_t i = 0; i < kLayers; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<Block>()));
    }
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
    output = register_module("output", nn::Linear(kWidth, kBytes));
    torch::NoGradGuard no_grad;
    bytes->weight.mul_(0.1);
    mask = torch::triu(torch::full({kWindow, kWindow}, -INFINITY), 1);
  }

  // tokens: [N, T] -> logits [N, T, 256]
  torch::Tensor forward(const torch::Tensor& tokens) {
    torch::Tensor x = bytes(tokens) + positions;
    for (const auto& block : blocks) x = block->forward(x, mask);
    return output(norm(x));
  }

  nn::Embedding bytes{nullptr};
  torch::Tensor positions, mask;
  std::vector<std::shared_ptr<Block>> blocks;
  nn::LayerNorm norm{nullptr};
  nn::Linear output{nullptr};
};

// Sample i reads bytes [i * window, (i + 1) * window) and predicts, for each of them, the one that follows.
class CharTransformer final : public Task {
 public:
  CharTransformer(Text text, uint64_t limit)
      : text_(std::move(text)),
        limit_(limit),
        net_(std::make_shared<Transformer>()),
        model_(*net_, {.share_parameters = true}) {}

  Model& model() override { return model_; }
  uint64_t dataset_size() const override { return Windows(text_.train); }

  Result<std::vector<Metric>> Step(const std::vector<uint64_t>& samples, double loss_scale) override {
    EVERSTEP_RETURN_IF_ERROR(CheckSamples(samples, dataset_size()));
    return Guarded("the training step failed", [&]() -> Result<std::vector<Metric>> {
      const torch::Tensor loss = Loss(text_.train, samples);
      (loss_scale == 1 ? loss : loss * loss_scale).backward();
      return std::vector<Metric>{{"loss", loss.item<double>()}};
    });
  }

  Result<std::vector<Metric>> Evaluate(const std::function<void()>& alive) override {
    return Guarded("the evaluation failed", [&]() -> Result<std::vector<Metric>> {
      torch::NoGradGuard no_grad;
      const uint64_t windows = Windows(text_.held_out);
      double sum = 0;
      for (uint64_t begin = 0; begin < windows; begin += kEvaluationBatch) {
        if (alive) alive();
        std::vector<uint64_t> samples;
        for (uint64_t i = begin; i < std::min(begin + kEvaluationBatch, windows); ++i) samples.push_back(i);
        sum += Loss(text_.held_out, samples).item<double>() * static_cast<double>(samples.size());
      }
      const double loss = sum / static_cast<double>(windows);
      return std::vector<Metric>{{"loss", loss}, {"perplexity", std::exp(loss)}};
    });
  }

  uint64_t held_out_size() const { return Windows(text_.held_out); }

 private:
  uint64_t Windows(const std::string& text) const {
    const uint64_t windows = text.empty() ? 0 : (text.size() - 1) / kWindow;
    return limit_ == 0 ? windows : std::min(windows, limit_);
  }

  torch::Tensor Loss(const std::string& text, const std::vector<uint64_t>& samples) {
    const auto rows = static_cast<int64_t>(samples.size());
    torch::Tensor windows = torch::empty({rows, kWindow + 1}, torch::kLong);
    auto* to = windows.data_ptr<int64_t>();
    for (uint64_t sample : samples) {
      const char* from = text.data() + sample * kWindow;
      to = std::transform(from, from + kWindow + 1, to, [](char c) { return static_cast<uint8_t>(c); });
    }
    const torch::Tensor logits = net_->forward(windows.slice(1, 0, kWindow));
    return torch::cross_entropy_loss(logits.view({-1, kBytes}), windows.slice(1, 1).reshape({-1}));
  }

  const Text text_;
  const uint64_t limit_;
  std::shared_ptr<Transformer> net_;
  TorchModel model_;  // reads parameters where the servers publish them
};

}  // namespace

Result<std::unique_ptr<Task>> MakeCharTransformer(const TaskOptions& options) {
  if (options.data.size() > 1) {
    return Status(Code::kInvalidArgument, "--data must name one text file, or one folder of them");
  }
  EVERSTEP_ASSIGN(Text text, LoadText(options.data.empty() ? std::string() : options.data[0]));
  return Guarded("the network could not be made", [&]() -> Result<std::unique_ptr<Task>> {
    torch::manual_seed(options.seed);
    auto task = std::make_unique<CharTransformer>(std::move(text), options.limit);
    if (task->dataset_size() == 0 || task->held_out_size() == 0) {
      return Status(Code::kInvalidArgument,
                    "too little text: at least " + std::to_string(10 * (kWindow + 1)) + " bytes are needed (--data)");
    }
    return std::unique_ptr<Task>(std::move(task));
  });
}

}  // namespace everstep
