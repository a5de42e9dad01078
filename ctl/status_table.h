// A job's status for people: from the JSON that a server answers to a few aligned lines. Pure.
#pragma once

#include <string>

#include "ctl/json.h"

namespace everstep::ctl {

// Ends with a newline. Shows what is there: a server that does not coordinate knows only about itself.
std::string StatusTable(const json& status);

// "step 120/940  loss 0.4321  5123 samples/s  3 workers", with PAUSED behind it while the job waits for workers.
std::string ProgressLine(const json& status);

// "worker-lost w2: its link closed".
std::string EventText(const json& event);

}  // namespace everstep::ctl
