// everstep-gloo-baseline: one rank of what a step costs without a parameter server: all-reduce of the gradients by
// c10d's Gloo (its ring algorithm) over loopback, then momentum SGD on every rank in one fused loop, the fastest form a
// peer could choose. A program of its own, because it needs Gloo's headers and a libtorch that was built with them;
// everstep-bench-step starts it when it is there.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "bench/step/control.h"
#include "bench/step/workload.h"

namespace everstep::bench {
namespace {

struct Options {
  std::string control;
  std::string store;
  unsigned index = 0;
  unsigned workers = 1;
  uint64_t bytes = 0;
};

void UpdateAll(float* __restrict p, float* __restrict m, const float* __restrict g, int64_t count, float share) {
  for (int64_t i = 0; i < count; ++i) {
    m[i] = kMomentum * m[i] + share * g[i];
    p[i] -= kLearningRate * m[i];
  }
}

class Rank {
 public:
  explicit Rank(const Options& options) : options_(options) {
    const auto count = static_cast<int64_t>(options.bytes / sizeof(float));
    parameters_ = torch::zeros({count});
    momentum_ = torch::zeros({count});
    gradient_ = torch::zeros({count});
    store_ = c10::make_intrusive<c10d::FileStore>(options.store, static_cast<int>(options.workers));
    auto settings = c10d::ProcessGroupGloo::Options::create();
    settings->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store_, static_cast<int>(options.index),
                                                         static_cast<int>(options.workers), settings);
  }

  // All-reduce works in place, so what a rank contributes next is the last sum: `workers` times as much as before,
  // which the share takes out again. Writing a fresh gradient is backward's work and would be charged to the peer here;
  // it is done only before the numbers grow out of range.
  void Step() {
    if (share_ < kLeastShare) {
      gradient_.fill_(GradientOf(options_.index));
      share_ = 1;
    }
    std::vector<at::Tensor> tensors{gradient_};
    group_->allreduce(tensors)->wait();
    share_ /= static_cast<float>(options_.workers);
    UpdateAll(parameters_.data_ptr<float>(), momentum_.data_ptr<float>(), gradient_.data_ptr<float>(),
              parameters_.numel(), share_);
    ++updates_;
  }

  Status Check() const {
    return CheckParameters(parameters_.data_ptr<float>(), options_.bytes / sizeof(float), options_.workers, updates_);
  }

 private:
  static constexpr float kLeastShare = 0x1p-60f;

  const Options& options_;
  torch::Tensor parameters_, momentum_, gradient_;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  float share_ = 0;
  uint64_t updates_ = 0;
};

int Main(int argc, char** argv) {
  CLI::App app{"everstep-gloo-baseline: one rank of an all-reduce with a local update; started by everstep-bench-step"};
  Options options;
  app.add_option("--control", options.control)->required();
  app.add_option("--store", options.store)->required();
  app.add_option("--index", options.index)->required();
  app.add_option("--workers", options.workers)->required();
  app.add_option("--bytes", options.bytes)->required();
  CLI11_PARSE(app, argc, argv);
  std::unique_ptr<Rank> rank;  // made at the first question: its constructor waits for the other ranks
  return Serve(options.control, [&](uint64_t steps) -> Result<Span> {
    try {
      if (!rank) rank = std::make_unique<Rank>(options);
      Span span{SteadyNow(), {}};
      for (uint64_t i = 0; i < steps; ++i) rank->Step();
      span.end = SteadyNow();
      EVERSTEP_RETURN_IF_ERROR(rank->Check());
      return span;
    } catch (const std::exception& error) {
      return Status(Code::kFailed, std::string(error.what()).substr(0, 200));
    }
  });
}

}  // namespace
}  // namespace everstep::bench

int main(int argc, char** argv) { return everstep::bench::Main(argc, argv); }
