#include "ps/etcd_record.h"

#include "discovery/job_keys.h"

namespace everstep {
namespace {

class EtcdRecord : public ConfigRecord {
 public:
  EtcdRecord(std::unique_ptr<EtcdClient> client, std::string key) : client_(std::move(client)), key_(std::move(key)) {}

  Result<std::optional<Configuration>> Read() override {
    EVERSTEP_ASSIGN(const std::optional<Found> found, Look());
    if (!found) return std::optional<Configuration>();
    return std::optional(found->configuration);
  }

  Status CompareAndSwap(Ballot expected, const Configuration& next) override {
    EVERSTEP_CHECK(next.ballot > expected, "ballots only grow");
    EVERSTEP_ASSIGN(std::optional<Found> found, Look());
    if (found && found->configuration == next) return Status::Ok();
    if (BallotOf(found) != expected) return Outrun(found);
    EVERSTEP_ASSIGN(const bool written, client_->PutIf(key_, Serialize(next), found ? found->revision : 0));
    if (written) return Status::Ok();
    EVERSTEP_ASSIGN(found, Look());
    return Outrun(found);
  }

  Status Clear() override { return client_->Delete(key_); }

 private:
  struct Found {
    Configuration configuration;
    uint64_t revision = 0;
  };

  static Ballot BallotOf(const std::optional<Found>& found) { return found ? found->configuration.ballot : Ballot{}; }
  static Status Outrun(const std::optional<Found>& found) {
    return {Code::kStale, "the record is at ballot " + ToString(BallotOf(found))};
  }

  Result<std::optional<Found>> Look() {
    EVERSTEP_ASSIGN(const std::optional<EtcdClient::Entry> entry, client_->Get(key_));
    if (!entry) return std::optional<Found>();
    const Result<Configuration> parsed = ParseConfiguration(entry->value);
    if (!parsed.ok()) return parsed.status().With("the configuration record " + key_ + " in etcd cannot be read");
    return std::optional(Found{*parsed, entry->revision});
  }

  const std::unique_ptr<EtcdClient> client_;
  const std::string key_;
};

}  // namespace

std::unique_ptr<ConfigRecord> MakeEtcdRecord(std::unique_ptr<EtcdClient> client, const std::string& job_name) {
  return std::make_unique<EtcdRecord>(std::move(client), ConfigurationKey(job_name));
}

}  // namespace everstep
