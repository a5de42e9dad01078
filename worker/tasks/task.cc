#include "worker/tasks/task.h"

#include "worker/tasks/factories.h"

namespace everstep {
namespace {

struct Entry {
  std::string_view name;
  Result<std::unique_ptr<Task>> (*make)(const TaskOptions& options);
};

constexpr Entry kTasks[] = {
    {"fashion-mnist-mlp", MakeFashionMnistMlp},
    {"fashion-mnist-cnn", MakeFashionMnistCnn},
    {"char-transformer", MakeCharTransformer},
    {"script", MakeScript},
};

}  // namespace

Result<std::unique_ptr<Task>> MakeTask(std::string_view name, const TaskOptions& options) {
  for (const Entry& entry : kTasks) {
    if (entry.name == name) return entry.make(options);
  }
  return Status(Code::kInvalidArgument, "there is no task '" + std::string(name) + "'; tasks are " + TaskNames());
}

std::string TaskNames() {
  std::string names;
  for (const Entry& entry : kTasks) names += (names.empty() ? "" : ", ") + std::string(entry.name);
  return names;
}

}  // namespace everstep
