// Server: how a job begins on the coordinating server. Anew, from a file of initial values, or from a checkpoint; what
// an earlier life left behind is never passed over in silence.
#include <cstdio>

#include "base/log.h"
#include "base/random.h"
#include "ps/resume.h"
#include "ps/server.h"

namespace everstep {

Result<CoordinatorHost::Options> Server::PrepareJob(std::unique_ptr<ConfigRecord>* record) {
  std::optional<Configuration> found;
  if (!options_.state_folder.empty()) {
    EVERSTEP_ASSIGN(*record, MakeFileRecord(options_.state_folder));
    EVERSTEP_ASSIGN(found, (*record)->Read());
  }
  const CheckpointOptions& checkpoints = options_.checkpoints;
  EVERSTEP_ASSIGN(const std::optional<Resumed> resumed,
                  FindResumePoint(checkpoints, *options_.job, options_.allow_fresh, found, options_.records_path));
  if (found && !resumed) {
    if (!options_.allow_fresh) {
      return Status(Code::kFailed,
                    options_.state_folder +
                        " holds the record of an earlier life of a job, whose parameters lived in its servers' "
                        "memory and ended with them; there is no checkpoint of it (--checkpoints); give --allow-fresh "
                        "to start anew, or another --state folder");
    }
    std::remove((options_.state_folder + "/configuration").c_str());
  }
  Coordinator::Options core{{EntropyU64()}, *options_.job, {EntropyU64()}, {}};
  CoordinatorHost::Options host{std::move(core), options_.records_path, options_.progress};
  if (!checkpoints.folder.empty()) {
    host.core.checkpoint_every = checkpoints.every;
    host.checkpoints_kept = checkpoints.keep;
    EVERSTEP_ASSIGN(host.checkpoints, MakeDirectoryStore(checkpoints.folder, true));
  }
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
