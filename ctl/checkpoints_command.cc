// everstep checkpoints: what a folder holds. everstep export: one model.safetensors of it.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <ctime>
#include <memory>

#include "checkpoint/export.h"
#include "checkpoint/loader.h"
#include "ctl/commands.h"
#include "ctl/json.h"

namespace everstep::ctl {
namespace {

struct Options {
  std::string folder;
  bool verify = false;
  bool json = false;
  std::string output;
  uint64_t version = 0;  // 0: the newest complete one
};

std::string Day(uint64_t unix_s) {
  const auto time = static_cast<std::time_t>(unix_s);
  std::tm utc = {};
  char text[32] = "";
  if (gmtime_r(&time, &utc) != nullptr) std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%SZ", &utc);
  return text;
}

// One checkpoint as a line or a JSON object; false when it is broken.
bool Show(const std::shared_ptr<Store>& store, const CheckpointEntry& entry, const Options& options, json* list) {
  Result<Checkpoint> opened = Checkpoint::Open(store, entry.label);
  Status fine = opened.status();
  if (fine.ok() && options.verify) fine = opened->Verify();
  json out{{"label", entry.label}, {"version", entry.version.value}, {"bytes", entry.bytes}, {"complete", fine.ok()}};
  if (opened.ok()) {
    const Manifest& m = opened->manifest();
    out["step"] = m.version.value - 1;
    out["job"] = m.spec.name;
    out["saved_at"] = Day(m.saved_at_s);
    out["files"] = m.files.size();
    out["epoch"] = m.seal.ledger_after.epoch;
    out["verified"] = fine.ok() && options.verify;
  }
  if (!fine.ok()) out["broken"] = fine.message();
  if (!options.json) {
    std::printf("%-32s  step %-8llu  %12llu bytes  %s\n", entry.label.c_str(),
                static_cast<unsigned long long>(entry.version.value - 1), static_cast<unsigned long long>(entry.bytes),
                fine.ok() ? (Text(out, "saved_at") + (options.verify ? "  verified" : "  complete")).c_str()
                          : ("BROKEN: " + Printable(fine.message())).c_str());
  }
  list->push_back(std::move(out));
  return fine.ok();
}

int RunCheckpoints(const Options& options) {
  Result<std::unique_ptr<Store>> made = MakeDirectoryStore(options.folder, false);
  if (!made.ok()) return Complain(made.status());
  const std::shared_ptr<Store> store = std::move(made).value();
  const auto entries = ListCheckpoints(*store);
  if (!entries.ok()) return Complain(entries.status());
  json list = json::array();
  bool all_fine = true;
  for (const CheckpointEntry& entry : *entries) all_fine &= Show(store, entry, options, &list);
  if (options.json) std::printf("%s\n", json{{"folder", options.folder}, {"checkpoints", list}}.dump(2).c_str());
  if (!options.json && entries->empty()) std::printf("no checkpoints in %s\n", options.folder.c_str());
  return all_fine ? 0 : 1;
}

Result<Checkpoint> Choose(const std::shared_ptr<Store>& store, const Options& options) {
  if (options.version == 0) {
    EVERSTEP_ASSIGN(FoundCheckpoint found, FindNewestCheckpoint(store));
    for (const BrokenCheckpoint& broken : found.broken)
      std::fprintf(stderr, "everstep: skipped %s: %s\n", broken.label.c_str(), broken.why.message().c_str());
    if (found.newest) return std::move(*found.newest);
    return Status(Code::kNotFound, "no complete checkpoint in " + options.folder);
  }
  EVERSTEP_ASSIGN(const std::vector<CheckpointEntry> entries, ListCheckpoints(*store));
  for (const CheckpointEntry& entry : entries) {
    if (entry.version.value == options.version) return Checkpoint::Open(store, entry.label);
  }
  return Status(Code::kNotFound, "no checkpoint of version " + std::to_string(options.version) + " in " +
                                     options.folder + "; `everstep checkpoints` lists them");
}

int RunExport(const Options& options) {
  Result<std::unique_ptr<Store>> made = MakeDirectoryStore(options.folder, false);
  if (!made.ok()) return Complain(made.status());
  Result<Checkpoint> checkpoint = Choose(std::move(made).value(), options);
  if (!checkpoint.ok()) return Complain(checkpoint.status());
  if (Status written = ExportModel(*checkpoint, options.output); !written.ok()) return Complain(written);
  const Manifest& m = checkpoint->manifest();
  std::printf("%s: %zu tensors, %llu bytes, of job %s after step %llu\n", options.output.c_str(),
              m.parameters.tensors.size(), static_cast<unsigned long long>(m.parameters.bytes()),
              Printable(m.spec.name).c_str(), static_cast<unsigned long long>(m.version.value - 1));
  return 0;
}

}  // namespace

void AddCheckpointsCommand(CLI::App& app, Command* chosen) {
  CLI::App* command = app.add_subcommand("checkpoints", "List the checkpoints of a folder, newest first");
  auto options = std::make_shared<Options>();
  command->add_option("folder", options->folder, "What everstep-ps was given by --checkpoints")->required();
  command->add_flag("--verify", options->verify, "Read every byte and compare checksums");
  command->add_flag("--json", options->json, "As JSON");
  command->footer("Exit code 0: all are complete. 1: some are broken, and named.");
  command->callback([options, chosen] { *chosen = [options] { return RunCheckpoints(*options); }; });
}

void AddExportCommand(CLI::App& app, Command* chosen) {
  CLI::App* command = app.add_subcommand("export", "Write the model of a checkpoint as one safetensors file");
  auto options = std::make_shared<Options>();
  command->add_option("folder", options->folder, "What everstep-ps was given by --checkpoints")->required();
  command->add_option("-o,--output", options->output, "File to write, e.g. model.safetensors")->required();
  command->add_option("--version", options->version, "Which one; default: the newest complete one");
  command->callback([options, chosen] { *chosen = [options] { return RunExport(*options); }; });
}

}  // namespace everstep::ctl
