// One model.safetensors of a checkpoint: the parameters as named tensors in their shapes, as PyTorch users load them.
#pragma once

#include <string>

#include "base/status.h"
#include "checkpoint/loader.h"

namespace everstep {

// Writes it to `path`, whole or not at all, a slice at a time. int64 tensors come first, so that every tensor is
// aligned.
Status ExportModel(Checkpoint& checkpoint, const std::string& path);

}  // namespace everstep
