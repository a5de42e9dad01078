// The models of everstep-plain-worker: small, without a framework, and pure functions of parameters and samples, so
// that two runs that saw the same samples with the same parameters produce the same bits. One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "worker/model.h"

namespace everstep::test {

class PlainModel {
 public:
  virtual ~PlainModel() = default;

  // Writes the gradient of the mean loss over `samples` (zeros for none), and returns that loss.
  virtual double Compute(const std::vector<uint64_t>& samples) = 0;

  // Views of the arrays, which live as long as this object.
  std::vector<ArrayModel::Tensor> Tensors();
  // The float32 values of all tensors, in order.
  std::vector<float> Values() const;
  // Puts `value` into the first element of the first tensor's gradient.
  void Poison(float value);

 protected:
  struct Array {
    TensorSpec spec;
    std::vector<float> values;
    std::vector<float> gradient;  // empty for buffers
  };
  // Zeros. The reference stays valid.
  Array& Add(std::string name, std::vector<int64_t> shape, Role role = Role::kTrainable);

 private:
  std::deque<Array> arrays_;
};

// One vector of zeros; sample i asks for the value t(i) in every element: loss = mean (p - t)^2 / 2, gradient = p -
// mean t. All elements stay equal for ever, whichever server holds them, unless some server summed other contributions
// than the others. With `odd_shapes` also a tensor without elements, a scalar (decays to 0) and a buffer.
std::unique_ptr<PlainModel> MakeVectorModel(uint64_t elements, bool odd_shapes);

// A perceptron with one hidden layer of tanh and a softmax, 16-32-4: samples are drawn from a fixed random stream and
// labelled by a fixed linear teacher. `seed` is that of the initial weights.
std::unique_ptr<PlainModel> MakeMlpModel(uint64_t seed);

}  // namespace everstep::test
