#include "discovery/registration.h"

#include "base/log.h"

namespace everstep {

Registration::Registration(std::unique_ptr<EtcdClient> client, std::string key, std::string value, Duration life)
    : client_(std::move(client)), key_(std::move(key)), value_(std::move(value)), life_(life) {
  thread_.loop().Post([this] { Beat(); });
}

Registration::~Registration() {
  thread_.Call([this] {
    if (lease_.value == 0) return;
    if (const Status revoked = client_->Revoke(lease_); !revoked.ok()) log::Debug("etcd: " + revoked.ToString());
  });
}

void Registration::Beat() {
  const Status renewed = Renew();
  if (renewed.ok() && silent_) log::Info("etcd answers again");
  if (!renewed.ok() && !silent_) log::Warning(renewed.ToString() + "; trying on, while training goes on");
  silent_ = !renewed.ok();
  thread_.loop().At(SteadyNow() + life_ / (silent_ ? 6 : 3), [this] { Beat(); });
}

// An etcd that was away for long, or was set up anew, has forgotten the lease: then with another one. Whoever wrote
// over the key meanwhile (a process that was frozen and has not learnt yet that another one took its place) is
// corrected.
Status Registration::Renew() {
  if (lease_.value != 0) {
    EVERSTEP_ASSIGN(const bool known, client_->KeepAlive(lease_));
    if (!known) lease_ = {};
  }
  if (lease_.value == 0) {
    EVERSTEP_ASSIGN(lease_, client_->Grant(life_));
  }
  EVERSTEP_ASSIGN(const std::optional<EtcdClient::Entry> entry, client_->Get(key_));
  if (entry && entry->value == value_ && entry->lease == lease_) return Status::Ok();
  return client_->Put(key_, value_, lease_);
}

}  // namespace everstep
