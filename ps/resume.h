// How a coordinating server begins: from the newest complete checkpoint of its folder, or anew. Blocking, before the
// loop runs.
#pragma once

#include <optional>
#include <string>

#include "base/status.h"
#include "ps/checkpoint_host.h"
#include "ps/config_record.h"
#include "ps/coordinator.h"

namespace everstep {

struct Resumed {
  JobUid job;
  ResumePoint point;
  std::string label;
  bool continue_records = false;  // the records file holds all commits before the first new one
};

// Nothing: the folder has no checkpoints, and the job begins anew; never without saying so when there were any.
//   kCorrupt       checkpoints exist and none loads; names each. With `allow_fresh` a warning, and the job begins anew.
//   kWrongJob      the folder is of another job.
//   kInvalidArgument  settings that the saved state cannot go on with (seed, optimizer).
// What was skipped, and how many steps are lost as far as the records file tells, goes to the log. Commits of lost
// steps are cut off the records file, so that it stays the history of one run.
Result<std::optional<Resumed>> FindResumePoint(const CheckpointOptions& options, const JobSpec& job, bool allow_fresh,
                                               const std::optional<Configuration>& recorded,
                                               const std::string& records_path);

}  // namespace everstep
