// Keeps one key in etcd for as long as the object lives: with a lease, so that it is gone soon after its process is.
// On a thread of its own; trouble with etcd is waited out, never passed on (one transient error must not end a lease,
// let alone a process).
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/loop.h"
#include "discovery/etcd_client.h"

namespace everstep {

class Registration {
 public:
  // Returns at once; the key is there soon, or as soon as etcd is. `life`: how long the key outlives a process that
  // died.
  Registration(std::unique_ptr<EtcdClient> client, std::string key, std::string value, Duration life);
  ~Registration();  // takes the key away, if etcd answers

 private:
  void Beat();
  Status Renew();

  const std::unique_ptr<EtcdClient> client_;
  const std::string key_;
  const std::string value_;
  const Duration life_;
  EtcdClient::LeaseId lease_;
  bool silent_ = false;  // etcd's silence was logged
  LoopThread thread_;    // last: ends first
};

}  // namespace everstep
