#include <gmock/gmock.h>

#include <cstring>
#include <vector>

#include "worker/model.h"

namespace everstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TensorSpec Spec(std::string name, std::vector<int64_t> shape, Role role = Role::kTrainable) {
  return {.name = std::move(name), .shape = std::move(shape), .dtype = DType::kFloat32, .role = role};
}

struct Arrays {
  std::vector<float> weight{1, 2, 3, 4, 5, 6};
  std::vector<float> gradient{-1, -2, -3, -4, -5, -6};
  float scalar = 7;
  std::vector<float> mean{8, 9};

  ArrayModel Model() {
    return ArrayModel({{Spec("weight", {2, 3}), weight.data(), gradient.data()},
                       {Spec("scalar", {}), &scalar, nullptr},
                       {Spec("empty", {0, 4}), nullptr, nullptr},
                       {Spec("mean", {2}, Role::kBuffer), mean.data(), nullptr}});
  }
};

TEST(ArrayModel, HasTheSpecItWasGiven) {
  Arrays arrays;
  const ArrayModel model = arrays.Model();
  ASSERT_TRUE(model.step_status().ok()) << model.step_status().ToString();
  ASSERT_EQ(model.spec().tensors.size(), 4u);
  EXPECT_EQ(model.spec().tensors[0], Spec("weight", {2, 3}));
  EXPECT_EQ(model.spec().tensors[3].role, Role::kBuffer);
}

TEST(ArrayModel, ReadsPartsOfValuesAndGradients) {
  Arrays arrays;
  const ArrayModel model = arrays.Model();
  std::vector<float> part(2);
  model.ReadValues(0, 8, std::as_writable_bytes(std::span(part)));
  EXPECT_THAT(part, ElementsAre(3, 4));
  model.ReadGradient(0, 16, std::as_writable_bytes(std::span(part)));
  EXPECT_THAT(part, ElementsAre(-5, -6));
  model.ReadValues(2, 0, {});
}

TEST(ArrayModel, ATensorWithoutAGradientContributesZeros) {
  Arrays arrays;
  const ArrayModel model = arrays.Model();
  std::vector<float> gradient{5};
  model.ReadGradient(1, 0, std::as_writable_bytes(std::span(gradient)));
  EXPECT_THAT(gradient, ElementsAre(0));
}

TEST(ArrayModel, WritesPartsIntoTheUsersArrays) {
  Arrays arrays;
  ArrayModel model = arrays.Model();
  const std::vector<float> fresh{30, 40};
  model.WriteValues(0, 8, std::as_bytes(std::span(fresh)));
  EXPECT_THAT(arrays.weight, ElementsAre(1, 2, 30, 40, 5, 6));
  model.WriteValues(3, 0, std::as_bytes(std::span(fresh)));
  EXPECT_THAT(arrays.mean, ElementsAre(30, 40));
}

TEST(ArrayModel, ClearGradientsZerosThem) {
  Arrays arrays;
  ArrayModel model = arrays.Model();
  model.ClearGradients();
  EXPECT_THAT(arrays.gradient, ElementsAre(0, 0, 0, 0, 0, 0));
  EXPECT_THAT(arrays.weight, ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST(ArrayModel, NamesTheTensorThatItCannotHold) {
  float value = 0;
  TensorSpec counter = Spec("counter", {1}, Role::kBuffer);
  counter.dtype = DType::kInt64;
  const ArrayModel integer({{Spec("weight", {1}), &value, nullptr}, {counter, &value, nullptr}});
  EXPECT_EQ(integer.step_status().code(), Code::kInvalidArgument);
  EXPECT_THAT(integer.step_status().message(), HasSubstr("'counter'"));

  const ArrayModel missing({{Spec("weight", {1}), nullptr, nullptr}});
  EXPECT_THAT(missing.step_status().message(), HasSubstr("'weight' has no array"));

  const ArrayModel twice({{Spec("weight", {1}), &value, nullptr}, {Spec("weight", {1}), &value, nullptr}});
  EXPECT_THAT(twice.step_status().message(), HasSubstr("weight"));

  const ArrayModel impossible({{Spec("weight", {-1}), &value, nullptr}});
  EXPECT_THAT(impossible.step_status().message(), HasSubstr("weight"));
}

TEST(ArrayModelDeathTest, ARangeBeyondATensorIsABug) {
  Arrays arrays;
  const ArrayModel model = arrays.Model();
  std::vector<float> part(2);
  EXPECT_DEATH(model.ReadValues(0, 20, std::as_writable_bytes(std::span(part))), "beyond tensor weight");
}

}  // namespace
}  // namespace everstep
