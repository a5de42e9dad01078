// The names under which a job is found in etcd. Several jobs share one etcd by their names.
#pragma once

#include <string>

namespace everstep {

// Everything of a job begins so.
inline std::string JobKeys(const std::string& job_name) { return "/everstep/" + job_name + "/"; }

// The configuration record, as ps/config_record.h serialises it.
inline std::string ConfigurationKey(const std::string& job_name) { return JobKeys(job_name) + "configuration"; }

// The address of the server that coordinates, as text. Bound to its lease: absent while nobody is in office.
inline std::string CoordinatorKey(const std::string& job_name) { return JobKeys(job_name) + "coordinator"; }

}  // namespace everstep
