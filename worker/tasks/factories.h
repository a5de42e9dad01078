// The tasks behind MakeTask, one file each.
#pragma once

#include "worker/tasks/task.h"

namespace everstep {

// 784-128-10 perceptron and a small convolutional network with BatchNorm; --data: the dataset's folder.
Result<std::unique_ptr<Task>> MakeFashionMnistMlp(const TaskOptions& options);
Result<std::unique_ptr<Task>> MakeFashionMnistCnn(const TaskOptions& options);

// A small GPT over bytes; --data: a text file or a folder of them. A sample is a window; windows do not overlap, so
// that each byte is predicted once an epoch.
Result<std::unique_ptr<Task>> MakeCharTransformer(const TaskOptions& options);

// A user's TorchScript module (--module) on a user's samples (--data). It takes a float batch [N, ...] and returns
// logits [N, C] of classes, or one prediction a sample, [N] or [N, 1], for the mean squared error.
Result<std::unique_ptr<Task>> MakeScript(const TaskOptions& options);

}  // namespace everstep
