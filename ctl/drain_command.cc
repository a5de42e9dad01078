// everstep drain: empties a server of a running job; it ends by itself once it holds nothing.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>

#include "base/clock.h"
#include "ctl/commands.h"
#include "ctl/json.h"
#include "ctl/status_client.h"
#include "discovery/find_job.h"

namespace everstep::ctl {
namespace {

struct Options {
  std::string server;
  std::vector<std::string> servers;
  double timeout_s = 60;
};

int Run(Options options) {
  constexpr Duration kPatience = std::chrono::seconds(3);
  constexpr Duration kBetween = std::chrono::milliseconds(200);
  if (Status found = ResolveServers(&options.servers, kPatience); !found.ok()) return Complain(found);
  StatusClient client(options.servers);
  if (Status agreed = client.Drain(options.server, kPatience); !agreed.ok()) return Complain(agreed);
  std::printf("%s is draining\n", options.server.c_str());
  std::fflush(stdout);
  const Time deadline = SteadyNow() + Duration(static_cast<int64_t>(options.timeout_s * 1e9));
  uint64_t left = 0;
  while (SteadyNow() < deadline) {
    const Result<std::string> answer = client.Ask(kPatience);
    if (answer.ok()) {
      const json status = ParseJson(*answer);
      bool there = false;
      for (const json& server : At(status, "servers")) {
        // When it is the one that coordinates, another one will tell how it went.
        client.Know(Text(server, "address"));
        if (Text(server, "name") != options.server) continue;
        there = true;
        left = Count(server, "bytes");
      }
      if (At(status, "servers").is_array() && !there) {
        std::printf("%s is empty and has left\n", options.server.c_str());
        return 0;
      }
    }
    std::this_thread::sleep_for(kBetween);
  }
  return Complain({Code::kDeadlineExceeded, options.server + " still holds " + std::to_string(left) +
                                                " bytes; it goes on draining, see everstep status"});
}

}  // namespace

void AddDrainCommand(CLI::App& app, Command* chosen) {
  CLI::App* command = app.add_subcommand("drain", "Take everything off a server of a running job, then it ends");
  auto options = std::make_shared<Options>();
  command->add_option("server", options->server, "Its name, as everstep status shows it")->required();
  AddServersOption(*command, &options->servers);
  command->add_option("--timeout-s", options->timeout_s, "How long to wait until it is empty")
      ->check(CLI::Range(0.01, 86400.0))
      ->capture_default_str();
  command->callback([options, chosen] { *chosen = [options] { return Run(*options); }; });
}

}  // namespace everstep::ctl
