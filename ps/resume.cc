#include "ps/resume.h"

#include <cinttypes>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"
#include "base/log.h"
#include "checkpoint/loader.h"
#include "ps/schedule.h"

namespace everstep {
namespace {

using nlohmann::json;

// Without a configuration record nobody knows how many ballots came after the save. So many did not.
constexpr uint64_t kBallotMargin = 1u << 20;

struct Records {
  bool of_this_job = false;
  std::optional<uint64_t> last_step;
};

// Reads the records file and writes it anew with only the steps below `version`.
Result<Records> CutRecords(const std::string& path, JobUid job, Version version) {
  Records records;
  if (path.empty() || !FileExists(path)) return records;
  EVERSTEP_ASSIGN(const std::string text, ReadFile(path));
  char uid[20];
  std::snprintf(uid, sizeof uid, "%016" PRIx64, job.value);
  std::string kept;
  std::istringstream lines(text.substr(0, text.rfind('\n') + 1));
  bool first = true;
  for (std::string line; std::getline(lines, line);) {
    const json in = json::parse(line, nullptr, false);
    if (!in.is_object()) continue;
    if (std::exchange(first, false)) {
      if (!in.contains("uid") || in["uid"] != uid) return records;
      records.of_this_job = true;
    } else {
      if (!in.contains("step") || !in["step"].is_number_unsigned()) continue;
      records.last_step = std::max(records.last_step.value_or(0), in["step"].get<uint64_t>());
      if (in["step"].get<uint64_t>() >= version.value) continue;
    }
    kept += line + "\n";
  }
  if (records.of_this_job) EVERSTEP_RETURN_IF_ERROR(WriteFileDurably(path, kept));
  return records;
}

Status CheckSettings(const Manifest& manifest, const JobSpec& job) {
  const JobSpec& saved = manifest.spec;
  if (saved.name != job.name) {
    return {Code::kWrongJob, "it holds checkpoints of job \"" + saved.name + "\", this is job \"" + job.name +
                                 "\"; give each job a folder of its own"};
  }
  if (saved.seed != job.seed) {
    return {Code::kInvalidArgument, "checkpoint " + manifest.label + " was made with seed " +
                                        std::to_string(saved.seed) + ", not " + std::to_string(job.seed) +
                                        ": the order of the samples would not be the one that was used so far"};
  }
  if (saved.optimizer.kind != job.optimizer.kind) {
    return {Code::kInvalidArgument, "checkpoint " + manifest.label + " holds the state of " +
                                        std::string(Name(saved.optimizer.kind)) + ", the job asks for " +
                                        std::string(Name(job.optimizer.kind))};
  }
  EVERSTEP_RETURN_IF_ERROR(Validate(manifest.parameters, job.chunk_bytes));
  if (saved.batch != job.batch || saved.optimizer != job.optimizer || saved.schedule != job.schedule ||
      saved.clip_norm != job.clip_norm || saved.mode != job.mode) {
    log::Warning("the job's settings (mode, batch, optimizer, schedule or clipping) are not those of checkpoint " +
                 manifest.label + "; from here on the new ones hold");
  }
  return Status::Ok();
}

std::string LostSteps(const Records& records, Version version) {
  if (!records.last_step) return "how many steps are lost is not known (no records file of this job)";
  const uint64_t lost = *records.last_step + 1 > version.value ? *records.last_step + 1 - version.value : 0;
  return std::to_string(lost) + (lost == 1 ? " step is lost" : " steps are lost");
}

}  // namespace

Result<std::optional<Resumed>> FindResumePoint(const CheckpointOptions& options, const JobSpec& job, bool allow_fresh,
                                               const std::optional<Configuration>& recorded,
                                               const std::string& records_path) {
  if (options.folder.empty()) return std::optional<Resumed>();
  EVERSTEP_ASSIGN(std::shared_ptr<Store> store, MakeDirectoryStore(options.folder, true));
  EVERSTEP_ASSIGN(FoundCheckpoint found, FindNewestCheckpoint(store));
  for (const BrokenCheckpoint& broken : found.broken)
    log::Warning("checkpoint " + broken.label + " is skipped: " + broken.why.message());
  if (!found.newest) {
    if (found.broken.empty()) return std::optional<Resumed>();
    if (!allow_fresh) {
      return Status(Code::kCorrupt, "the folder " + options.folder +
                                        " has checkpoints and none of them can be loaded: " + Describe(found.broken) +
                                        "; repair them, give another folder, or give --allow-fresh to start anew");
    }
    log::Warning("no checkpoint of " + options.folder + " can be loaded; the job starts anew (--allow-fresh)");
    return std::optional<Resumed>();
  }
  const Manifest& manifest = found.newest->manifest();
  if (Status fine = CheckSettings(manifest, job); !fine.ok()) return fine.With("the folder " + options.folder);
  Resumed resumed;
  resumed.job = manifest.job;
  resumed.label = manifest.label;
  resumed.point.from = {manifest.label, manifest.seal, manifest.scale};
  resumed.point.parameters = manifest.parameters;
  resumed.point.dataset_size = manifest.dataset_size;
  resumed.point.recorded = recorded ? recorded->ballot : Ballot{};
  resumed.point.above =
      recorded ? std::max(recorded->ballot, manifest.ballot) : Ballot{manifest.ballot.value + kBallotMargin};
  EVERSTEP_ASSIGN(const Records records, CutRecords(records_path, manifest.job, manifest.version));
  resumed.continue_records = records.of_this_job;
  log::Info("resuming job " + job.name + " from checkpoint " + manifest.label + ", step " +
            std::to_string(manifest.version.value - 1) + "; " + LostSteps(records, manifest.version));
  return std::optional<Resumed>(std::move(resumed));
}

}  // namespace everstep
