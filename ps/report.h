// What a job tells about itself, as JSON: its commit records, its status, its report at the end. docs/reports.md lists
// the fields.
#pragma once

#include <string>

#include "ps/coordinator.h"
#include "ps/replica.h"
#include "transport/transport.h"

namespace everstep {

struct RunHistory;

// First line of a records file: the job as it was started.
std::string JobToJson(JobUid uid, const JobSpec& job);
// One line of a records file.
std::string CommitToJson(const CommitRecord& record);

// A coordinating server's view of the whole job, for `everstep status`.
std::string StatusJson(Time now, Coordinator& coordinator, const RunHistory& history, const Replica& replica,
                       const transport::Counters& counters);
// A server that does not coordinate.
std::string StatusJson(const Replica& replica, const transport::Counters& counters);

// The whole run, at its end: steps, samples by the ledger, events, and where the time went (goodput).
std::string ReportJson(Time now, Coordinator& coordinator, const RunHistory& history);

}  // namespace everstep
