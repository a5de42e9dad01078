// Asks a running job what it is, without joining it.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "schema/job.h"

namespace everstep {

// Tries the addresses in turn until one answers. kUnavailable with the reason of the last attempt; what the coordinator
// refuses with otherwise.
Result<JobSpec> FetchJob(const std::vector<std::string>& servers, Duration timeout);

}  // namespace everstep
