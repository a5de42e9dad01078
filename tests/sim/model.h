// The workers' model: initial values and contributions as pure functions of (parameters, lease, worker), so that the
// checkers can tell from the bits alone what a version was made of. No learning happens here.
#pragma once

#include <map>
#include <memory>

#include "base/bytes.h"
#include "base/random.h"
#include "schema/messages.h"
#include "schema/parameter_spec.h"

namespace everstep::sim {

using Chunks = std::map<ChunkId, Buffer>;

Chunks InitialValues(const ChunkLayout& layout, uint64_t seed);
Chunks Gradients(const ChunkLayout& layout, const Chunks& parameters, const Contribution& contribution);
// Puts a NaN or an infinity somewhere into fp32 data; false when the model has none.
bool Poison(const ChunkLayout& layout, Random& random, Chunks* chunks);

}  // namespace everstep::sim
