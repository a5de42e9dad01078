// The zlib door: reads a data file whole, packed by gzip or not. A file is not trusted to be small: what unpacks to
// more than `max_bytes` is refused, not read.
#pragma once

#include <cstddef>
#include <string>

#include "base/limits.h"
#include "base/status.h"

namespace everstep {

Result<std::string> ReadDataFile(const std::string& path, size_t max_bytes = limits::kMaxDataFileBytes);

}  // namespace everstep
