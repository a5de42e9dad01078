// How cores name the other ends of their links. A core never sees a socket: its driver gives every live link a PeerId
// and delivers what the core puts into its outbox.
#pragma once

#include <utility>
#include <vector>

#include "base/bytes.h"
#include "schema/messages.h"

namespace everstep {

// One life of one link, as numbered by the driver. Never reused.
using PeerId = StrongId<struct PeerTag, uint64_t>;

struct Outgoing {
  PeerId to;
  Envelope envelope;
  Buffer payload;  // chunk messages only
};

}  // namespace everstep
