// Payloads that a connection sent and whose receiver never said that it is done with them. Their memory must not be
// written again while the receiving process may still read it, whatever became of the connection; they are kept here
// until that process is gone. A receiver in this very process counts as one that never ends.
#pragma once

#include <sys/types.h>

#include <vector>

#include "base/bytes.h"

namespace everstep::transport::shm {

// Any thread.
void KeepUntilDead(pid_t receiver, std::vector<Buffer> payloads);
// Lets go of what nobody reads any more; returns how many payloads are still kept. Called with every new connection and
// from time to time while there are some.
size_t SweepOrphans();

}  // namespace everstep::transport::shm
