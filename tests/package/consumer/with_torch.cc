// A libtorch module as the worker library sees it.
#include <torch/torch.h>

#include <cstdio>

#include "worker/torch_model.h"

int main() {
  torch::nn::Linear net(3, 2);
  everstep::TorchModel model(*net);
  const size_t tensors = model.spec().tensors.size();
  std::printf("%s, %zu tensors, %s\n", TORCH_VERSION, tensors, model.status().ToString().c_str());
  return model.status().ok() && tensors == 2 ? 0 : 1;
}
