// The README's worker: a libtorch loop of one's own, made elastic. Its data is made up: points in the plane, labelled
// by the ring they lie in.
//
//   cmake -S . -B build -DCMAKE_PREFIX_PATH=WHERE_EVERSTEP_IS_INSTALLED && cmake --build build
//   build/readme_worker tcp://127.0.0.1:7070
#include <torch/torch.h>

#include <cstdio>

#include "worker/torch_model.h"
#include "worker/worker.h"

namespace {

struct Batch {
  torch::Tensor points;
  torch::Tensor labels;
};

struct Rings {
  static uint64_t size() { return 8192; }

  // The same points on every worker, whichever samples it is lent.
  static Batch Get(const std::vector<uint64_t>& samples) {
    const auto index = torch::tensor(std::vector<int64_t>(samples.begin(), samples.end())).to(torch::kFloat);
    const auto radius = torch::frac(index * 0.7548777f) * 3;
    const auto angle = torch::frac(index * 0.5698403f) * 6.2831853f;
    return {torch::stack({radius * angle.cos(), radius * angle.sin()}, 1), radius.floor().to(torch::kLong)};
  }
};

int Fail(const everstep::Status& status) {
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return everstep::ExitCode(status.code());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return Fail({everstep::Code::kInvalidArgument, "usage: readme_worker ADDRESS-OF-A-SERVER"});
  torch::set_num_threads(1);
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(2, 64), torch::nn::ReLU(), torch::nn::Linear(64, 3),
                            torch::nn::LogSoftmax(1));

  everstep::TorchModel model(*net);
  auto joined = everstep::Worker::Join({.servers = {argv[1]}, .dataset_size = Rings::size()}, model);
  if (!joined.ok()) return Fail(joined.status());
  everstep::Worker& worker = *joined;
  while (auto step = worker.NextStep()) {  // parameters are in the model, samples are leased
    const Batch batch = Rings::Get(step->samples());
    const auto loss = torch::nll_loss(net->forward(batch.points), batch.labels);
    loss.backward();                                // gradients leave as they are produced
    step->Commit({{"loss", loss.item<double>()}});  // exactly once, or not at all
  }
  if (!worker.status().ok()) return Fail(worker.status());

  std::vector<uint64_t> all(Rings::size());
  for (uint64_t i = 0; i < all.size(); ++i) all[i] = i;
  const Batch everything = Rings::Get(all);
  const auto right = net->forward(everything.points).argmax(1).eq(everything.labels).to(torch::kFloat).mean();
  std::printf("{\"accuracy\": %.4f}\n", right.item<double>());
  return 0;
}
