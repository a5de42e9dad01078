// A client of etcd v3 through its JSON gateway (https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/): what Everstep
// needs of it, and no more. Blocking, with a deadline for every call; drivers keep it off their loops. Thread-safe.
//
// Errors: kUnavailable when no endpoint answered (the message names each and why), kFailed when etcd answered with an
// error, kCorrupt when the answer is not what etcd would say.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace everstep {

class EtcdClient {
 public:
  // Keys that are bound to a lease are gone when it is.
  struct LeaseId {
    LeaseId(uint64_t id = 0) : value(id) {}  // NOLINT: 0 is no lease
    uint64_t value;

    friend bool operator==(LeaseId, LeaseId) = default;
  };
  struct Entry {
    std::string key;
    std::string value;
    uint64_t revision = 0;  // of its last change; never 0
    LeaseId lease;
  };

  // `urls`: "http://HOST:PORT" or "https://HOST:PORT" (checked against the system's certificates), several separated by
  // commas; they are one cluster. `timeout`: of one call to one of them. kInvalidArgument for anything else.
  static Result<std::unique_ptr<EtcdClient>> Make(const std::string& urls, Duration timeout = std::chrono::seconds(2));
  ~EtcdClient();

  Result<std::optional<Entry>> Get(const std::string& key);
  // All whose keys begin with `prefix` (not empty), in order.
  Result<std::vector<Entry>> List(const std::string& prefix);
  Status Put(const std::string& key, const std::string& value, LeaseId lease = {});
  // Writes if the key still is at `revision` (0: does not exist). False when it is not. After an error it is unknown
  // whether it was written.
  Result<bool> PutIf(const std::string& key, const std::string& value, uint64_t revision, LeaseId lease = {});
  Status Delete(const std::string& key);

  // At least `life` (whole seconds, at least one) after the last KeepAlive, etcd forgets it.
  Result<LeaseId> Grant(Duration life);
  // False when etcd does not know the lease (any more).
  Result<bool> KeepAlive(LeaseId lease);
  Status Revoke(LeaseId lease);

  const std::string& urls() const { return urls_; }

 private:
  class Endpoint;
  EtcdClient(std::string urls, std::vector<std::unique_ptr<Endpoint>> endpoints);
  // The answer's body. Goes on to the next endpoint only when nothing can have been done by this one.
  Result<std::string> Post(const std::string& path, const std::string& body);

  const std::string urls_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
  size_t current_ = 0;  // answered last
};

}  // namespace everstep
