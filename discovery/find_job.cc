#include "discovery/find_job.h"

#include <thread>

#include "discovery/job_keys.h"

namespace everstep {

Result<std::string> FindCoordinator(EtcdClient& etcd, const std::string& job_name, Duration patience) {
  const Time deadline = SteadyNow() + patience;
  while (true) {
    const Result<std::optional<EtcdClient::Entry>> entry = etcd.Get(CoordinatorKey(job_name));
    if (entry.ok() && *entry) return (*entry)->value;
    if (SteadyNow() >= deadline) {
      return Status(Code::kDeadlineExceeded,
                    "no coordinator of job '" + job_name + "' was found in etcd at " + etcd.urls() + " within " +
                        std::to_string(std::chrono::duration_cast<std::chrono::seconds>(patience).count()) + " s: " +
                        (entry.ok() ? "nobody has registered; is a server of it running, with --etcd?"
                                    : entry.status().message()));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

Result<std::optional<std::string>> ClaimCoordinator(EtcdClient& etcd, const std::string& job_name,
                                                    const std::string& address, Duration life) {
  const std::string key = CoordinatorKey(job_name);
  while (true) {
    EVERSTEP_ASSIGN(const EtcdClient::LeaseId lease, etcd.Grant(life));
    EVERSTEP_ASSIGN(const bool first, etcd.PutIf(key, address, 0, lease));
    if (first) return std::optional<std::string>();
    (void)etcd.Revoke(lease);
    EVERSTEP_ASSIGN(const std::optional<EtcdClient::Entry> other, etcd.Get(key));
    if (!other) continue;                                              // lapsed in this very moment
    if (other->value == address) return std::optional<std::string>();  // an earlier life of this one
    return std::optional(other->value);
  }
}

Status ResolveServers(std::vector<std::string>* servers, Duration patience) {
  std::vector<std::string> resolved;
  std::string urls;
  std::string job;
  for (const std::string& address : *servers) {
    const bool tls = address.starts_with("etcds://");
    if (!tls && !address.starts_with("etcd://")) {
      resolved.push_back(address);
      continue;
    }
    const size_t begin = tls ? 8 : 7;
    const size_t slash = address.find('/', begin);
    const std::string name = slash == std::string::npos ? "" : address.substr(slash + 1);
    if (name.empty() || (!job.empty() && name != job)) {
      return {Code::kInvalidArgument,
              "servers are found in etcd by etcd://HOST:PORT/JOB, with one JOB; got '" + address + "'"};
    }
    job = name;
    urls +=
        (urls.empty() ? "" : ",") + std::string(tls ? "https://" : "http://") + address.substr(begin, slash - begin);
  }
  if (job.empty()) return Status::Ok();
  EVERSTEP_ASSIGN(const auto etcd, EtcdClient::Make(urls));
  EVERSTEP_ASSIGN(std::string coordinator, FindCoordinator(*etcd, job, patience));
  resolved.push_back(std::move(coordinator));
  *servers = std::move(resolved);
  return Status::Ok();
}

}  // namespace everstep
