// The configuration record in etcd, for servers on several machines, and the names under which a job is found there.
#pragma once

#include <memory>
#include <string>

#include "discovery/etcd_client.h"
#include "ps/config_record.h"

namespace everstep {

// Compare-and-swap by etcd's transaction on the key's revision.
std::unique_ptr<ConfigRecord> MakeEtcdRecord(std::unique_ptr<EtcdClient> client, const std::string& job_name);

}  // namespace everstep
