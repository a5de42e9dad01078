// everstep replay: what a job's commit records call for, computed again. The chain of digests, ledger, order, weights
// and rates from the records alone; with the contributions that the workers kept, the parameters, held against
// checkpoints bit by bit.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstring>
#include <memory>

#include "checkpoint/loader.h"
#include "ctl/audit.h"
#include "ctl/commands.h"
#include "ctl/records.h"
#include "ctl/replay.h"
#include "schema/kept_contribution.h"

namespace everstep::ctl {
namespace {

constexpr size_t kMaxDefectsKept = 20;

struct Options {
  std::vector<std::string> records;
  std::string contributions;
  std::string checkpoints;
  std::string initial;
  uint64_t dataset = 0;
  bool unfinished = false;
  bool json = false;
};

struct Findings {
  Audit audit;  // of the same records
  uint64_t steps = 0;
  uint64_t contributions = 0;  // that were summed again
  bool parameters = false;     // they were replayed
  uint64_t elements = 0;
  std::vector<uint64_t> equal;  // versions whose checkpoint has the same bits
  uint64_t defects_found = 0;
  std::vector<std::string> defects;

  void Defect(const std::string& what) {
    ++defects_found;
    if (defects.size() < kMaxDefectsKept) defects.push_back(what);
  }
  bool ok() const { return defects_found == 0 && audit.ok(); }
};

// Checkpoints of a folder, by version. A broken one is a finding.
class Saved {
 public:
  static Result<Saved> Open(const std::string& folder, Findings* findings) {
    Saved saved;
    EVERSTEP_ASSIGN(std::unique_ptr<Store> made, MakeDirectoryStore(folder, false));
    const std::shared_ptr<Store> store = std::move(made);
    EVERSTEP_ASSIGN(const std::vector<CheckpointEntry> entries, ListCheckpoints(*store));
    for (const CheckpointEntry& entry : entries) {
      if (!entry.has_manifest) continue;  // a save that was never completed
      Result<Checkpoint> opened = Checkpoint::Open(store, entry.label);
      const Status fine = opened.ok() ? opened->Verify() : opened.status();
      if (!fine.ok()) {
        findings->Defect("checkpoint " + entry.label + ": " + fine.message());
      } else {
        saved.by_version_.emplace(entry.version.value, std::move(opened).value());
      }
    }
    if (saved.by_version_.empty())
      return Status(Code::kNotFound,
                    "no complete checkpoint in " + folder + "; everstep checkpoints --verify says why");
    return saved;
  }

  const Manifest& manifest() const { return by_version_.begin()->second.manifest(); }
  Checkpoint* At(uint64_t version) {
    const auto it = by_version_.find(version);
    return it == by_version_.end() ? nullptr : &it->second;
  }
  const std::map<uint64_t, Checkpoint>& all() const { return by_version_; }

 private:
  std::map<uint64_t, Checkpoint> by_version_;
};

// What differs first between a checkpoint's array and the replay's; "" when nothing does.
Result<std::string> Difference(Checkpoint& checkpoint, const std::string& array, const std::vector<float>& replayed) {
  const ChunkLayout& layout = checkpoint.layout();
  std::vector<uint64_t> tensor_begin;
  uint64_t at = 0;
  for (const TensorSpec& tensor : layout.spec().tensors) {
    tensor_begin.push_back(at);
    at += tensor.bytes();
  }
  const auto* wanted = reinterpret_cast<const std::byte*>(replayed.data());
  std::vector<std::byte> have;
  const uint64_t chunk_bytes = checkpoint.manifest().spec.chunk_bytes;
  for (uint32_t i = 0; i < layout.size(); ++i) {
    for (const Segment& s : layout.chunk({i}).segments) {
      // A buffer has no optimizer state.
      if (array != kParametersArray && s.role == Role::kBuffer) continue;
      have.resize(s.bytes);
      EVERSTEP_RETURN_IF_ERROR(checkpoint.Read(array, i * chunk_bytes + s.chunk_offset, have));
      const std::byte* want = wanted + tensor_begin[s.tensor] + s.tensor_offset;
      if (std::memcmp(have.data(), want, s.bytes) == 0) continue;
      const auto differ = std::mismatch(have.begin(), have.end(), want).first - have.begin();
      return array + " of tensor " + layout.spec().tensors[s.tensor].name + ", byte " +
             std::to_string(s.tensor_offset + static_cast<uint64_t>(differ));
    }
  }
  return std::string();
}

// The values of version 1 out of a file by tensor name.
Result<Buffer> ReadInitial(const std::string& path, const ParameterSpec& spec) {
  EVERSTEP_ASSIGN(const SafetensorsReader reader, SafetensorsReader::OpenPath(path));
  MutableBuffer values(spec.bytes());
  uint64_t at = 0;
  for (const TensorSpec& tensor : spec.tensors) {
    const StoredTensor* stored = reader.header().Find(tensor.name);
    if (stored == nullptr || stored->bytes() != tensor.bytes())
      return Status(Code::kWrongSpec, path + " has no tensor " + tensor.name + " of the job's size");
    EVERSTEP_RETURN_IF_ERROR(reader.Read(*stored, 0, {values.data() + at, tensor.bytes()}));
    at += tensor.bytes();
  }
  return std::move(values).Freeze();
}

class Replayer {
 public:
  Replayer(const Options& options, Findings* findings) : options_(options), findings_(*findings) {}

  Status Run() {
    EVERSTEP_ASSIGN(RecordReader records, RecordReader::Open(options_.records));
    const Result<JobSpec> job = ParseJob(records.job());
    if (!job.ok()) {
      return {Code::kCorrupt, "the records' first line has " + job.status().message() +
                                  "; they are of another version, or of no job: everstep audit takes older ones"};
    }
    std::optional<uint64_t> dataset;
    if (options_.dataset > 0) dataset = options_.dataset;
    if (!options_.checkpoints.empty()) {
      EVERSTEP_ASSIGN(Saved saved, Saved::Open(options_.checkpoints, &findings_));
      saved_ = std::move(saved);
      if (!dataset && saved_->manifest().dataset_size > 0) dataset = saved_->manifest().dataset_size;
    }
    EVERSTEP_RETURN_IF_ERROR(CheckAudit(dataset));
    SealReplay seals(*job, dataset);
    if (!options_.contributions.empty()) parameters_.emplace(*job, saved_->manifest().parameters);
    while (const auto record = records.Next()) {
      const Result<RecordedStep> step = ParseStep(*record);
      const std::string name = "step " + std::to_string(Count(*record, "step"));
      if (!step.ok()) {
        findings_.Defect(name + " has " + step.status().message());
        parameters_.reset();
        continue;
      }
      ++findings_.steps;
      for (const std::string& wrong : seals.Add(*step)) findings_.Defect(name + ": " + wrong);
      if (parameters_) EVERSTEP_RETURN_IF_ERROR(AddParameters(*step, name));
      EVERSTEP_RETURN_IF_ERROR(CompareSaved(*step, name));
    }
    EVERSTEP_RETURN_IF_ERROR(records.status());
    if (saved_) CheckAllMet(seals.digests().size());
    return Status::Ok();
  }

 private:
  // That samples are used once, and steps follow one another, is the auditor's to say.
  Status CheckAudit(std::optional<uint64_t> dataset) {
    AuditOptions audit;
    audit.unfinished = options_.unfinished;
    audit.dataset = dataset;
    if (options_.dataset == 0) audit.dataset_from = "checkpoints";
    EVERSTEP_ASSIGN(findings_.audit, AuditFiles(options_.records, audit));
    return Status::Ok();
  }

  Status AddParameters(const RecordedStep& step, const std::string& name) {
    std::vector<Buffer> contributions;
    const bool first = step.seal.id.step.value == 0;
    if (first && !options_.initial.empty()) {
      EVERSTEP_ASSIGN(Buffer values, ReadInitial(options_.initial, parameters_->spec()));
      contributions.push_back(std::move(values));
    } else {
      for (const Contribution& c : step.seal.contributors) {
        const std::string path = options_.contributions + "/" + KeptName(c.worker, c.base, c.lease.id);
        Result<Buffer> read = ReadKept(path, parameters_->spec().bytes());
        if (!read.ok()) {
          findings_.Defect(name +
                           ": a contribution cannot be had, so the parameters end here: " + read.status().message() +
                           (first ? "; values that came from a file are given by --initial" : ""));
          parameters_.reset();
          return Status::Ok();
        }
        contributions.push_back(std::move(read).value());
      }
    }
    if (first) {
      parameters_->Begin(contributions.front());
    } else {
      const std::string wrong = parameters_->Add(step, contributions);
      if (!wrong.empty()) findings_.Defect(name + ": " + wrong);
      findings_.contributions += contributions.size();
    }
    findings_.parameters = true;
    findings_.elements = parameters_->spec().bytes() / sizeof(float);
    return Status::Ok();
  }

  // A checkpoint of the version that this step has made must be of the same history, and have the same bits.
  Status CompareSaved(const RecordedStep& step, const std::string& name) {
    const uint64_t version = step.seal.id.step.value + 1;
    Checkpoint* checkpoint = saved_ ? saved_->At(version) : nullptr;
    if (checkpoint == nullptr) return Status::Ok();
    if (checkpoint->manifest().digest() != step.seal.digest) {
      findings_.Defect(name + ": the checkpoint after it is of another history");
      return Status::Ok();
    }
    if (!parameters_) return Status::Ok();
    bool equal = true;
    for (const auto& [array, values] : parameters_->arrays()) {
      EVERSTEP_ASSIGN(const std::string difference, Difference(*checkpoint, array, values));
      if (difference.empty()) continue;
      equal = false;
      findings_.Defect(name + ": the checkpoint after it differs from the replay in " + difference);
    }
    if (equal) findings_.equal.push_back(version);
    return Status::Ok();
  }

  void CheckAllMet(uint64_t versions) {
    for (const auto& [version, checkpoint] : saved_->all()) {
      if (version >= versions)
        findings_.Defect("the checkpoint of step " + std::to_string(version - 1) + " is beyond the records' end");
    }
  }

  const Options& options_;
  Findings& findings_;
  std::optional<Saved> saved_;
  std::optional<ParameterReplay> parameters_;
};

json ToJson(const Findings& f) {
  return {{"ok", f.ok()},
          {"audit", ToJson(f.audit)},
          {"steps_replayed", f.steps},
          {"parameters_replayed", f.parameters},
          {"contributions_summed", f.contributions},
          {"elements", f.elements},
          {"checkpoints_equal", f.equal},
          {"defects_found", f.defects_found},
          {"defects", f.defects}};
}

std::string ToText(const Findings& f) {
  std::string text = ToText(f.audit);
  text += "  replayed   " + std::to_string(f.steps) + " records: digests, ledger, order, weights and rates\n";
  if (f.parameters) {
    text += "  parameters " + std::to_string(f.elements) + " elements from " + std::to_string(f.contributions) +
            " contributions; bit-equal to " + std::to_string(f.equal.size()) + " checkpoints";
    if (!f.equal.empty()) text += ", the last after step " + std::to_string(f.equal.back() - 1);
    text += "\n";
  } else {
    text += "  parameters not replayed: give --contributions and --checkpoints\n";
  }
  for (const std::string& defect : f.defects) text += "  DEFECT     " + Printable(defect) + "\n";
  if (f.defects_found > f.defects.size())
    text += "  ... and " + std::to_string(f.defects_found - f.defects.size()) + " more defects\n";
  text += f.ok() ? "replayed: the job is what its records say\n" : "NOT as recorded\n";
  return text;
}

int Run(const Options& options) {
  if (!options.contributions.empty() && options.checkpoints.empty()) {
    return Complain({Code::kInvalidArgument,
                     "--contributions needs --checkpoints: they say what the model is, and are what is compared"});
  }
  if (!options.initial.empty() && options.contributions.empty())
    return Complain({Code::kInvalidArgument, "--initial is of use only with --contributions"});
  Findings findings;
  if (const Status outcome = Replayer(options, &findings).Run(); !outcome.ok()) return Complain(outcome);
  if (!options.contributions.empty() && findings.equal.empty() && findings.defects_found == 0)
    findings.Defect("no checkpoint is of a version of these records, so nothing could be compared");
  std::printf("%s", options.json ? (ToJson(findings).dump(2) + "\n").c_str() : ToText(findings).c_str());
  return findings.ok() ? 0 : 1;
}

}  // namespace

void AddReplayCommand(CLI::App& app, Command* chosen) {
  CLI::App* command = app.add_subcommand(
      "replay", "Compute again what a job's commit records call for, and compare with what it saved");
  auto options = std::make_shared<Options>();
  command
      ->add_option("records", options->records,
                   "What everstep-ps wrote by --records FILE; files of all the job's servers, or folders of *.jsonl")
      ->required();
  command->add_option("--checkpoints", options->checkpoints,
                      "What everstep-ps was given by --checkpoints: each must be of this history");
  command->add_option("--contributions", options->contributions,
                      "What all workers were given by --keep-contributions: sum and update again, bit by bit");
  command->add_option("--initial", options->initial, "What everstep-ps was given by --init, if it was");
  command->add_option("--dataset", options->dataset, "Samples of one epoch, if there are no checkpoints to say it");
  command->add_flag("--unfinished", options->unfinished,
                    "The job still runs or was killed: its last epoch may be incomplete");
  command->add_flag("--json", options->json, "The findings as JSON");
  command->footer("Exit code 0: all is as recorded. 1: something is not, and said.");
  command->callback([options, chosen] { *chosen = [options] { return Run(*options); }; });
}

}  // namespace everstep::ctl
