// The fields of a manifest as JSON. Each structure's fields are listed once and serve for writing and reading
// (manifest_fields.cc). No checksum and no sense here: manifest.h has both.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "checkpoint/manifest.h"

namespace everstep::manifest_fields {

std::string Hex(uint64_t value);  // sixteen lower-case digits
std::string ToJson(const Manifest& manifest);
// kCorrupt names the field that is missing or of another type; kWrongVersion: a format that this build does not know.
Result<Manifest> FromJson(std::string_view text);

}  // namespace everstep::manifest_fields
