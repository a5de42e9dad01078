// everstep status: how a job is doing.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>

#include "ctl/commands.h"
#include "ctl/json.h"
#include "ctl/status_client.h"
#include "ctl/status_table.h"
#include "discovery/find_job.h"

namespace everstep::ctl {
namespace {

struct Options {
  std::vector<std::string> servers;
  bool json = false;
  bool watch = false;
  double timeout_s = 3;
};

bool Ended(const json& status) {
  const std::string state = Text(status, "state");
  return state == "finished" || state == "failed";
}

int Run(Options options) {
  const auto patience = Duration(static_cast<int64_t>(options.timeout_s * 1e9));
  if (Status found = ResolveServers(&options.servers, patience); !found.ok()) return Complain(found);
  StatusClient client(options.servers);
  const bool redraw = options.watch && !options.json && isatty(STDOUT_FILENO);
  for (bool first = true;; first = false) {
    const Result<std::string> answer = client.Ask(patience);
    if (!answer.ok()) {
      const Status why = answer.status();
      if (ExitCode(why.code()) != 4) return Complain(why);
      return Complain(
          {why.code(), why.message() + (first ? "; is everstep-ps running? It prints its address at its start"
                                              : "; it was there a moment ago")});
    }
    const json status = ParseJson(*answer);
    if (status.is_discarded())
      return Complain({Code::kCorrupt, "the server's answer is no JSON; is it of this version of everstep?"});
    if (options.json) {
      std::printf("%s\n", answer->c_str());
    } else {
      std::printf("%s%s", redraw ? "\033[H\033[J" : first ? "" : "\n", StatusTable(status).c_str());
    }
    std::fflush(stdout);
    if (!options.watch || Ended(status)) return 0;
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
}

}  // namespace

void AddStatusCommand(CLI::App& app, Command* chosen) {
  CLI::App* command = app.add_subcommand("status", "How a job is doing: steps, workers, servers, samples, events");
  auto options = std::make_shared<Options>();
  AddServersOption(*command, &options->servers);
  command->add_flag("--json", options->json, "The server's answer as it is (docs/reports.md)");
  command->add_flag("--watch", options->watch, "Again each second, until the job ends");
  command->add_option("--timeout-s", options->timeout_s, "How long to wait for an answer")
      ->check(CLI::Range(0.01, 3600.0))
      ->capture_default_str();
  command->callback([options, chosen] { *chosen = [options] { return Run(*options); }; });
}

}  // namespace everstep::ctl
