// everstep: the control command. One file a command; this one only chooses.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "ctl/commands.h"
#include "schema/messages.h"

namespace everstep::ctl {

int Complain(const Status& status) {
  std::fprintf(stderr, "everstep: %s\n", status.message().c_str());
  return ExitCode(status.code());
}

void AddServersOption(CLI::App& command, std::vector<std::string>* servers) {
  command
      .add_option("--servers", *servers,
                  "Addresses of the job's servers, comma-separated, e.g. tcp://127.0.0.1:7070, or etcd://HOST:PORT/JOB")
      ->delimiter(',')
      ->required();
}

void AddVersionCommand(CLI::App& app, Command* chosen) {
  app.add_subcommand("version", "The version of this program and of its protocol")->callback([chosen] {
    *chosen = [] {
      std::printf("everstep %s, protocol %u\n", EVERSTEP_VERSION, static_cast<unsigned>(kProtocolVersion));
      return 0;
    };
  });
}

namespace {

int Run(int argc, char** argv) {
  CLI::App app{"everstep: looks at training jobs, audits them, and shows what they withstand."};
  app.footer(
      "Next:\n"
      "  everstep demo                                   a whole job on this host, with workers and servers killed\n"
      "  everstep-ps --listen tcp://127.0.0.1:7070 --job job.toml --records records.jsonl\n"
      "  everstep-worker --servers tcp://127.0.0.1:7070\n"
      "  everstep status --servers tcp://127.0.0.1:7070 --watch\n"
      "  everstep drain ps1 --servers tcp://127.0.0.1:7070\n"
      "  everstep audit records.jsonl\n"
      "  everstep replay records.jsonl --checkpoints FOLDER --contributions FOLDER\n"
      "  everstep checkpoints FOLDER --verify\n"
      "  everstep export FOLDER -o model.safetensors\n"
      "everstep COMMAND --help explains a command.");
  app.require_subcommand(1);
  Command chosen;
  AddDemoCommand(app, &chosen);
  AddStatusCommand(app, &chosen);
  AddDrainCommand(app, &chosen);
  AddAuditCommand(app, &chosen);
  AddReplayCommand(app, &chosen);
  AddCheckpointsCommand(app, &chosen);
  AddExportCommand(app, &chosen);
  AddVersionCommand(app, &chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return chosen();
}

}  // namespace
}  // namespace everstep::ctl

int main(int argc, char** argv) { return everstep::ctl::Run(argc, argv); }
