// Whether the servers of an earlier life of a job still hold it: asked by a coordinating server that starts and finds a
// record, before it decides between taking office and a checkpoint. Blocking, with a thread of its own inside.
#pragma once

#include <set>

#include "base/clock.h"
#include "ps/config_record.h"

namespace everstep {

// Those servers of the record's map that certainly hold nothing of it any more: nobody listens at their address, or
// whoever does serves another job or none. A server that does not answer within `patience` may hold its part.
std::set<ServerId> ServersThatAreGone(const Configuration& record, Duration patience);

}  // namespace everstep
