// From messages to bytes and back: the only door to FlatBuffers. Decode treats its input as hostile: it is verified,
// every length is checked against base/limits.h, every enum against its values, and anything odd is kCorrupt with a
// reason. Thread-safe: no state.
#pragma once

#include "base/bytes.h"
#include "base/status.h"
#include "schema/messages.h"

namespace everstep {

Buffer Encode(const Envelope& envelope);

// kCorrupt: not a message of ours. kWrongVersion: a peer of another protocol version; the message names both.
Result<Envelope> Decode(const Buffer& bytes);

}  // namespace everstep
