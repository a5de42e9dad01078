// Contributions kept as files, for `everstep replay` (docs/reports.md): a worker that was told to writes one before it
// contributes, named by what the commit records say about it.
//
//   the tensors' bytes, one after the other in the order of the parameter spec, without padding: gradients of trainable
//   tensors, values of buffers and of the initialisation; then their XXH3, 8 bytes, little-endian
#pragma once

#include <span>
#include <string>

#include "base/bytes.h"
#include "base/status.h"
#include "schema/messages.h"

namespace everstep {

// "<worker>-<base>-<lease>.contribution", ids as 16 hex digits.
std::string KeptName(WorkerId worker, Version base, LeaseId lease);

// Not synced: it survives the process, which is what is tried here, not the machine.
Status WriteKept(const std::string& path, std::span<const std::byte> tensors);

// kNotFound; kCorrupt when it is not `bytes` long or was damaged.
Result<Buffer> ReadKept(const std::string& path, uint64_t bytes);

}  // namespace everstep
