#include "ps/etcd_record.h"

#include "discovery/job_keys.h"

namespace everstep {
namespace {

class EtcdRecord : public ConfigRecord {
 public:
  EtcdRecord(std::unique_ptr<EtcdClient> client, std::string key) : client_(std::move(client)), key_(std::move(key)) {}

  Result<std::optional<Configuration>> Read() override {
    EVERSTEP_ASSIGN(Found found, Look());
    return std::move(found.configuration);
  }

  Status CompareAndSwap(Ballot expected, const Configuration& next) override {
    while (true) {
      EVERSTEP_ASSIGN(const Found found, Look());
      if (auto answer = AnswerWithoutWriting(found.configuration, expected, next)) return *answer;
      EVERSTEP_ASSIGN(const bool written, client_->PutIf(key_, Serialize(next), found.revision));
      if (written) return Status::Ok();
      // Somebody wrote since the look, perhaps an earlier try of our own whose answer was lost: the next look tells.
    }
  }

  Status Clear() override { return client_->Delete(key_); }

 private:
  struct Found {
    std::optional<Configuration> configuration;
    uint64_t revision = 0;  // 0: the key does not exist
  };

  Result<Found> Look() {
    EVERSTEP_ASSIGN(const std::optional<EtcdClient::Entry> entry, client_->Get(key_));
    if (!entry) return Found{};
    Result<Configuration> parsed = ParseConfiguration(entry->value);
    if (!parsed.ok()) return parsed.status().With("the configuration record " + key_ + " in etcd cannot be read");
    return Found{std::move(*parsed), entry->revision};
  }

  const std::unique_ptr<EtcdClient> client_;
  const std::string key_;
};

}  // namespace

std::unique_ptr<ConfigRecord> MakeEtcdRecord(std::unique_ptr<EtcdClient> client, const std::string& job_name) {
  return std::make_unique<EtcdRecord>(std::move(client), ConfigurationKey(job_name));
}

}  // namespace everstep
