// Finding a job by its name in etcd, for servers, workers and tools.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "discovery/etcd_client.h"

namespace everstep {

// The address of the job's coordinator. Asks until there is one; kDeadlineExceeded after `patience`, with what etcd
// said.
Result<std::string> FindCoordinator(EtcdClient& etcd, const std::string& job_name, Duration patience);

// Makes `address` the job's coordinator's unless there is one: nothing when this one is it, else the other's address.
// The claim lapses after `life`, by when a Registration must keep it.
Result<std::optional<std::string>> ClaimCoordinator(EtcdClient& etcd, const std::string& job_name,
                                                    const std::string& address, Duration life);

// Replaces addresses of the form etcd://HOST:PORT/JOB (etcds:// for TLS) by the address of that job's coordinator,
// asking for up to `patience`; others stay. kInvalidArgument for malformed ones, kDeadlineExceeded when none of them
// knew.
Status ResolveServers(std::vector<std::string>* servers, Duration patience);

}  // namespace everstep
