// everstep audit: proves a job's ledger from its commit records.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "base/file.h"
#include "ctl/audit.h"
#include "ctl/commands.h"

namespace everstep::ctl {
namespace {

struct Options {
  std::vector<std::string> records;
  std::string report;
  uint64_t dataset = 0;
  bool unfinished = false;
  bool json = false;
};

Result<Audit> Examine(const Options& options) {
  AuditOptions audit;
  audit.unfinished = options.unfinished;
  if (options.dataset > 0) audit.dataset = options.dataset;
  json report;
  if (!options.report.empty()) {
    EVERSTEP_ASSIGN(const std::string text, ReadFile(options.report));
    report = ParseJson(text);
    if (!report.is_object()) return Status(Code::kCorrupt, options.report + " is no JSON report of everstep-ps");
    if (const uint64_t size = Count(At(report, "samples"), "dataset"); size > 0 && !audit.dataset) {
      audit.dataset = size;
      audit.dataset_from = "report";
    }
  }
  EVERSTEP_ASSIGN(Audit result, AuditFiles(options.records, std::move(audit)));
  if (report.is_object()) CompareWithReport(report, &result);
  return result;
}

int Run(const Options& options) {
  const Result<Audit> audit = Examine(options);
  if (!audit.ok()) return Complain(audit.status());
  std::printf("%s", options.json ? (ToJson(*audit).dump(2) + "\n").c_str() : ToText(*audit).c_str());
  return audit->ok() ? 0 : 1;
}

}  // namespace

void AddAuditCommand(CLI::App& app, Command* chosen) {
  CLI::App* command =
      app.add_subcommand("audit", "Prove from a job's commit records that each sample was used exactly once");
  auto options = std::make_shared<Options>();
  command
      ->add_option(
          "records", options->records,
          "What everstep-ps wrote by --records FILE; of a job whose coordinators changed, the files of all its "
          "servers, or folders that hold them as *.jsonl")
      ->required();
  command->add_option("--report", options->report,
                      "What it wrote by --report FILE: the size of the dataset, and figures to compare");
  command->add_option("--dataset", options->dataset, "Samples of one epoch, if there is no report");
  command->add_flag("--unfinished", options->unfinished,
                    "The job still runs or was killed: its last epoch may be incomplete");
  command->add_flag("--json", options->json, "The findings as JSON");
  command->footer("Exit code 0: proved. 1: something is off, and said.");
  command->callback([options, chosen] { *chosen = [options] { return Run(*options); }; });
}

}  // namespace everstep::ctl
