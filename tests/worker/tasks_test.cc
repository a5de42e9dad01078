// The built-in tasks, each trained for a few plain SGD steps in this process, through the interface that the worker
// uses.
#include "worker/tasks/task.h"

#include <gmock/gmock.h>
#include <torch/script.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <numeric>

#include "tests/support/temp_dir.h"
#include "worker/tasks/runtime.h"

namespace everstep {
namespace {

using testing::HasSubstr;

class TasksTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { SetTorchThreads(1); }

  static std::unique_ptr<Task> Make(const std::string& name, const TaskOptions& options) {
    Result<std::unique_ptr<Task>> task = MakeTask(name, options);
    EXPECT_TRUE(task.ok()) << task.status().ToString();
    return task.ok() ? std::move(*task) : nullptr;
  }

  static std::string Values(Task& task) {
    std::string all;
    const Model& model = task.model();
    for (size_t i = 0; i < model.spec().tensors.size(); ++i) {
      std::string bytes(model.spec().tensors[i].bytes(), '?');
      model.ReadValues(i, 0, std::as_writable_bytes(std::span(bytes)));
      all += bytes;
    }
    return all;
  }

  static double Value(const std::vector<Metric>& metrics, const std::string& name) {
    for (const Metric& metric : metrics) {
      if (metric.name == name) return metric.value;
    }
    ADD_FAILURE() << "no metric " << name;
    return NAN;
  }

  // values -= rate * gradient, as the servers would do it.
  static void Descend(Model& model, float rate) {
    for (size_t i = 0; i < model.spec().tensors.size(); ++i) {
      const TensorSpec& spec = model.spec().tensors[i];
      if (spec.role != Role::kTrainable) continue;
      std::vector<float> values(spec.elements()), gradient(spec.elements());
      model.ReadValues(i, 0, std::as_writable_bytes(std::span(values)));
      model.ReadGradient(i, 0, std::as_writable_bytes(std::span(gradient)));
      for (size_t j = 0; j < values.size(); ++j) values[j] -= rate * gradient[j];
      model.WriteValues(i, 0, std::as_bytes(std::span(values)));
    }
  }

  // 20 steps on the samples in turn; the mean loss of the first and of the last three.
  static std::pair<double, double> Train(Task& task, uint64_t batch, float rate) {
    std::vector<double> losses;
    for (uint64_t step = 0; step < 20; ++step) {
      std::vector<uint64_t> samples(batch);
      for (uint64_t i = 0; i < batch; ++i) samples[i] = (step * batch + i) % task.dataset_size();
      task.model().ClearGradients();
      Result<std::vector<Metric>> metrics = task.Step(samples);
      EXPECT_TRUE(metrics.ok()) << metrics.status().ToString();
      if (!metrics.ok()) break;
      losses.push_back(Value(*metrics, "loss"));
      Descend(task.model(), rate);
    }
    EXPECT_TRUE(task.model().step_status().ok()) << task.model().step_status().ToString();
    if (losses.size() < 20) return {0, 0};
    return {std::accumulate(losses.begin(), losses.begin() + 3, 0.0) / 3,
            std::accumulate(losses.end() - 3, losses.end(), 0.0) / 3};
  }

  static bool HasFashionMnist() { return MakeTask("fashion-mnist-mlp", {.limit = 10}).ok(); }

  // y = 3 classes apart by where x lies on a line.
  static std::string Csv(int samples) {
    std::string text = "x,y,class\n";
    for (int i = 0; i < samples; ++i) {
      text += std::to_string(i % 3 - 1) + "," + std::to_string((i % 7) * 0.1) + "," + std::to_string(i % 3) + "\n";
    }
    return text;
  }

  static void Write(const std::string& path, const std::string& contents) {
    std::ofstream(path, std::ios::binary) << contents;
  }

  // x @ weight + bias, [N, outputs].
  static void SaveScript(const std::string& path, int64_t inputs, int64_t outputs) {
    torch::manual_seed(3);
    torch::jit::Module net("Net");
    net.register_parameter("weight", (torch::randn({inputs, outputs}) * 0.1).requires_grad_(true), /*is_buffer=*/false);
    net.register_parameter("bias", torch::zeros({outputs}, torch::requires_grad()), /*is_buffer=*/false);
    net.define("def forward(self, x):\n  return x.matmul(self.weight) + self.bias\n");
    net.save(path);
  }

  test::TempDir dir_;
};

TEST_F(TasksTest, FashionMnistMlpLearns) {
  if (!HasFashionMnist()) GTEST_SKIP() << "needs the package dataset-fashion-mnist";
  const auto task = Make("fashion-mnist-mlp", {.limit = 640});
  EXPECT_EQ(task->dataset_size(), 640u);
  const auto [before, after] = Train(*task, 64, 0.1f);
  EXPECT_LT(after, 0.7 * before);
}

TEST_F(TasksTest, FashionMnistCnnLearnsAndMovesItsStatistics) {
  if (!HasFashionMnist()) GTEST_SKIP() << "needs the package dataset-fashion-mnist";
  const auto task = Make("fashion-mnist-cnn", {.limit = 640});
  const auto [before, after] = Train(*task, 64, 0.1f);
  EXPECT_LT(after, 0.7 * before);
  const ParameterSpec& spec = task->model().spec();
  for (size_t i = 0; i < spec.tensors.size(); ++i) {
    if (spec.tensors[i].name != "norm1.num_batches_tracked") continue;
    int64_t batches = 0;
    task->model().ReadValues(i, 0, std::as_writable_bytes(std::span(&batches, 1)));
    EXPECT_EQ(batches, 20);
  }
  const std::vector<Metric> metrics = task->Evaluate({}).value();
  EXPECT_GT(Value(metrics, "accuracy"), 0.2) << "a tenth is guessing";
  EXPECT_EQ(Values(*task).size(), spec.bytes());
}

TEST_F(TasksTest, CharTransformerLearns) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "the quick brown fox jumps over the lazy dog " + std::to_string(i) + "\n";
  Write(dir_ / "text", text);
  const auto task = Make("char-transformer", {.data = {dir_ / "text"}});
  EXPECT_EQ(task->dataset_size(), (text.size() - text.size() / 10 - 1) / 64);
  const auto [before, after] = Train(*task, 8, 0.1f);
  EXPECT_NEAR(before, std::log(256), 1.5);
  EXPECT_LT(after, 0.8 * before);
  int alive = 0;
  const std::vector<Metric> metrics = task->Evaluate([&] { ++alive; }).value();
  EXPECT_GT(alive, 0);
  EXPECT_NEAR(Value(metrics, "perplexity"), std::exp(Value(metrics, "loss")), 1e-6);
}

TEST_F(TasksTest, CharTransformersSamplesAreTheWindowsOfTheText) {
  std::string text(650, 'a');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>('a' + i * 7 % 26);
  Write(dir_ / "one", text);
  text[65] = '#';  // in the second window, and the first byte after what the first one reads and predicts
  Write(dir_ / "two", text);
  const auto one = Make("char-transformer", {.data = {dir_ / "one"}});
  const auto two = Make("char-transformer", {.data = {dir_ / "two"}});
  const auto loss = [](Task& task, uint64_t sample) { return Value(task.Step({sample}).value(), "loss"); };
  EXPECT_EQ(loss(*one, 0), loss(*two, 0));
  EXPECT_NE(loss(*one, 1), loss(*two, 1));
}

TEST_F(TasksTest, ScriptClassifies) {
  Write(dir_ / "data.csv", Csv(200));
  SaveScript(dir_ / "net.pt", 2, 3);
  const auto task = Make("script", {.data = {dir_ / "data.csv"}, .module = dir_ / "net.pt"});
  ASSERT_EQ(task->dataset_size(), 180u);
  const auto [before, after] = Train(*task, 30, 1.0f);
  EXPECT_LT(after, 0.7 * before);
  EXPECT_GT(Value(task->Evaluate({}).value(), "accuracy"), 0.9);
}

TEST_F(TasksTest, ScriptPredictsNumbers) {
  Write(dir_ / "data.csv", Csv(200));
  SaveScript(dir_ / "net.pt", 2, 1);
  const auto task = Make("script", {.data = {dir_ / "data.csv"}, .module = dir_ / "net.pt"});
  const auto [before, after] = Train(*task, 30, 0.1f);
  EXPECT_LT(after, 0.5 * before);
  const std::vector<Metric> metrics = task->Evaluate({}).value();
  ASSERT_EQ(metrics.size(), 1u) << "no accuracy";
  EXPECT_LT(Value(metrics, "loss"), before);
}

TEST_F(TasksTest, ScriptSaysWhatIsWrong) {
  Write(dir_ / "data.csv", Csv(200));
  Write(dir_ / "junk.pt", "this is no module");
  SaveScript(dir_ / "net.pt", 2, 2);
  SaveScript(dir_ / "wide.pt", 5, 3);
  const auto error = [&](const std::string& module) {
    return MakeTask("script", {.data = {dir_ / "data.csv"}, .module = module}).status();
  };
  EXPECT_THAT(error("").message(), HasSubstr("--module"));
  EXPECT_EQ(error(dir_ / "missing.pt").code(), Code::kNotFound);
  EXPECT_EQ(error(dir_ / "junk.pt").code(), Code::kInvalidArgument);
  EXPECT_THAT(error(dir_ / "junk.pt").message(), HasSubstr("junk.pt"));

  const auto step = [&](const std::string& module) {
    return Make("script", {.data = {dir_ / "data.csv"}, .module = module})->Step({0, 1, 2}).status();
  };
  EXPECT_THAT(step(dir_ / "net.pt").message(), HasSubstr("2 classes")) << "class 2 is one too many";
  EXPECT_EQ(step(dir_ / "wide.pt").code(), Code::kInvalidArgument);
}

TEST_F(TasksTest, TheSameSeedGivesTheSameValuesAndAnotherSeedOthers) {
  std::string text(2000, 'x');
  Write(dir_ / "text", text);
  std::vector<std::string> names = {"char-transformer"};
  if (HasFashionMnist()) names.insert(names.end(), {"fashion-mnist-mlp", "fashion-mnist-cnn"});
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    TaskOptions options{.limit = 20, .seed = 5};
    if (name == "char-transformer") options.data = {dir_ / "text"};
    const auto one = Make(name, options);
    torch::manual_seed(99);  // what ran before must not matter
    const auto two = Make(name, options);
    options.seed = 6;
    const auto other = Make(name, options);
    EXPECT_EQ(Values(*one), Values(*two));
    EXPECT_NE(Values(*one), Values(*other));
    EXPECT_EQ(one->model().spec(), two->model().spec());
    const std::vector<uint64_t> samples = {0, 3, 7};
    EXPECT_EQ(Value(one->Step(samples).value(), "loss"), Value(two->Step(samples).value(), "loss"));
  }
}

TEST_F(TasksTest, GradientsOfABatchAreTheWeightedMeanOfItsParts) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += std::to_string(i * i) + " ";
  Write(dir_ / "text", text);
  const auto task = Make("char-transformer", {.data = {dir_ / "text"}});
  const auto gradient = [&](const std::vector<uint64_t>& samples) {
    task->model().ClearGradients();
    EXPECT_TRUE(task->Step(samples).ok());
    std::vector<float> values(256 * 96);
    const auto& tensors = task->model().spec().tensors;
    const auto at =
        std::find_if(tensors.begin(), tensors.end(), [](const auto& t) { return t.name == "output.weight"; });
    EXPECT_NE(at, tensors.end());
    task->model().ReadGradient(static_cast<size_t>(at - tensors.begin()), 0, std::as_writable_bytes(std::span(values)));
    return values;
  };
  const auto whole = gradient({0, 1, 2, 3, 4});
  const auto part1 = gradient({0, 1});
  const auto part2 = gradient({2, 3, 4});
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(whole[i], 0.4f * part1[i] + 0.6f * part2[i], 1e-5) << i;
}

TEST_F(TasksTest, APoisonedLossPoisonsTheGradientAndNotTheMetric) {
  Write(dir_ / "data.csv", Csv(200));
  SaveScript(dir_ / "net.pt", 2, 3);
  const auto task = Make("script", {.data = {dir_ / "data.csv"}, .module = dir_ / "net.pt"});
  EXPECT_TRUE(std::isfinite(Value(task->Step({0, 1}, NAN).value(), "loss")));
  std::vector<float> gradient(6);
  task->model().ReadGradient(0, 0, std::as_writable_bytes(std::span(gradient)));
  EXPECT_TRUE(std::isnan(gradient[0]));
}

TEST_F(TasksTest, SamplesThatAreNotThereAreRefused) {
  Write(dir_ / "data.csv", Csv(200));
  SaveScript(dir_ / "net.pt", 2, 3);
  const auto task = Make("script", {.data = {dir_ / "data.csv"}, .module = dir_ / "net.pt"});
  EXPECT_EQ(task->Step({180}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(task->Step({}).status().code(), Code::kInvalidArgument);
}

TEST_F(TasksTest, UnknownTasksAndMissingFilesAreTold) {
  EXPECT_THAT(MakeTask("imagenet", {}).status().message(), HasSubstr("fashion-mnist-cnn"));
  EXPECT_THAT(MakeTask("fashion-mnist-cnn", {.data = {dir_.path()}}).status().message(),
              HasSubstr("dataset-fashion-mnist"));
  EXPECT_EQ(MakeTask("char-transformer", {.data = {dir_ / "nothing"}}).status().code(), Code::kNotFound);
  Write(dir_ / "short", "too short");
  EXPECT_THAT(MakeTask("char-transformer", {.data = {dir_ / "short"}}).status().message(), HasSubstr("too little"));
}

TEST(Runtime, TellsAFastBlasByTheFilesThatAreMapped) {
  EXPECT_TRUE(
      MapsFastBlas("7f00-7f01 r-xp 00000000 08:01 1 /usr/lib/x86_64-linux-gnu/openblas-pthread/libblas.so.3\n"));
  EXPECT_TRUE(MapsFastBlas("7f00-7f01 r-xp 00000000 08:01 1 /opt/intel/libmkl_core.so.2\n"));
  EXPECT_FALSE(MapsFastBlas("7f00-7f01 r-xp 00000000 08:01 1 /usr/lib/x86_64-linux-gnu/blas/libblas.so.3.11.0\n"));
}

}  // namespace
}  // namespace everstep
