// Server: how a job begins on the coordinating server. Anew, from a file of initial values, or from a checkpoint; what
// an earlier life left behind is never passed over in silence.
#include "base/log.h"
#include "base/random.h"
#include "discovery/find_job.h"
#include "discovery/job_keys.h"
#include "ps/etcd_record.h"
#include "ps/resume.h"
#include "ps/server.h"

namespace everstep {
namespace {

// How long etcd names a coordinator that died; servers know of it long before.
constexpr Duration kRegistrationLife = std::chrono::seconds(5);

}  // namespace

Result<std::unique_ptr<ConfigRecord>> Server::OpenRecord(const std::string& job_name) const {
  if (options_.etcd.empty()) return MakeFileRecord(options_.state_folder);
  EVERSTEP_ASSIGN(auto client, EtcdClient::Make(options_.etcd));
  return MakeEtcdRecord(std::move(client), job_name);
}

Result<bool> Server::ClaimOffice() {
  if (options_.etcd.empty()) return true;
  EVERSTEP_ASSIGN(const auto client, EtcdClient::Make(options_.etcd));
  EVERSTEP_ASSIGN(const std::optional<std::string> other,
                  ClaimCoordinator(*client, options_.job->name, address_, kRegistrationLife));
  if (other) first_ = *other;
  return !other;
}

// Shows in etcd that this server coordinates.
void Server::Register() {
  if (options_.etcd.empty()) return;
  auto client = EtcdClient::Make(options_.etcd);
  registration_ =
      std::make_shared<Registration>(std::move(client).value(), CoordinatorKey(JobName()), address_, kRegistrationLife);
}

// Taking the name away talks to etcd: not on the loop.
void Server::Unregister() {
  if (!registration_) return;
  if (!disk_) disk_ = std::make_unique<LoopThread>();
  disk_->loop().Post([registration = std::exchange(registration_, nullptr)]() mutable { registration.reset(); });
}

// What every coordinator of the job has in common, whether it begins or takes over.
Result<CoordinatorHost::Options> Server::HostOptions(Coordinator::Options core) const {
  core.lasting_record = KeepsRecord();
  CoordinatorHost::Options host{std::move(core), options_.records_path, options_.progress};
  if (options_.checkpoints.folder.empty()) return host;
  host.core.checkpoint_every = options_.checkpoints.every;
  host.checkpoints_kept = options_.checkpoints.keep;
  EVERSTEP_ASSIGN(host.checkpoints, MakeDirectoryStore(options_.checkpoints.folder, true));
  return host;
}

Result<CoordinatorHost::Options> Server::PrepareJob(ConfigRecord& record, const std::optional<Configuration>& found) {
  const CheckpointOptions& checkpoints = options_.checkpoints;
  EVERSTEP_ASSIGN(const std::optional<Resumed> resumed,
                  FindResumePoint(checkpoints, *options_.job, options_.allow_fresh, found, options_.records_path));
  if (found && !resumed) {
    if (!options_.allow_fresh) {
      return Status(Code::kFailed,
                    (options_.etcd.empty() ? options_.state_folder : "etcd at " + options_.etcd) +
                        " holds the record of an earlier life of a job, whose parameters lived in its servers' "
                        "memory and ended with them; there is no checkpoint of it (--checkpoints); give --allow-fresh "
                        "to start anew, or another --state folder or job name");
    }
    EVERSTEP_RETURN_IF_ERROR(record.Clear());
  }
  EVERSTEP_ASSIGN(CoordinatorHost::Options host,
                  HostOptions({{EntropyU64()}, *options_.job, {EntropyU64()}, address_, {}}));
  if (resumed) {
    host.core.job = resumed->job;
    host.core.resume = resumed->point;
    host.continue_records = resumed->continue_records;
    if (!checkpoints.init.empty()) log::Warning("--init is not used: the job goes on from a checkpoint");
  } else if (!checkpoints.init.empty()) {
    EVERSTEP_ASSIGN(host.core.initial, ReadInitialFile(checkpoints.init));
  }
  return host;
}

}  // namespace everstep
