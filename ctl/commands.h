// The commands of `everstep`, one a file. Each Add... describes one to the command line and, when it is the one the
// user chose, leaves in `chosen` what to run; that returns the program's exit code (base/status.h, ExitCode).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"

namespace CLI {
class App;
}

namespace everstep::ctl {

using Command = std::function<int()>;

// --servers, for the commands that speak to a running job.
void AddServersOption(CLI::App& command, std::vector<std::string>* servers);

void AddDrainCommand(CLI::App& app, Command* chosen);
void AddStatusCommand(CLI::App& app, Command* chosen);
void AddAuditCommand(CLI::App& app, Command* chosen);
void AddReplayCommand(CLI::App& app, Command* chosen);
void AddDemoCommand(CLI::App& app, Command* chosen);
void AddCheckpointsCommand(CLI::App& app, Command* chosen);
void AddExportCommand(CLI::App& app, Command* chosen);
void AddVersionCommand(CLI::App& app, Command* chosen);

// Says it on standard error, in one line, and returns the exit code.
int Complain(const Status& status);

}  // namespace everstep::ctl
