// everstep-ps: one parameter server process. The first one, started with a job file, also coordinates.
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/file.h"
#include "base/log.h"
#include "ps/job_options.h"
#include "ps/kernels/shard_math.h"
#include "ps/server.h"
#include "transport/tuning.h"

namespace everstep {
namespace {

int Fail(const Status& status) {
  log::Error(status.message());
  return ExitCode(status.code());
}

int Run(int argc, char** argv) {
  CLI::App app{"everstep-ps: one parameter server. Start the first with the job's settings, the others with --join."};
  Server::Options options;
  JobSpec job;
  JobTexts texts;
  std::string log_level = "info";
  std::string address_file;
  unsigned threads = 0;
  double find_s = 30;
  AddJobOptions(app, &job, &texts);
  app.add_option("--listen", options.listen, "Address to listen on; port 0 picks a free one")->capture_default_str();
  app.add_option("--advertise", options.advertise, "Address that others connect to, if it differs");
  app.add_option("--join", options.join, "Address of the coordinating server: serve its job");
  app.add_option("--server-name", options.name, "Name for people; default psN");
  app.add_flag("--insecure", options.insecure,
               "Allow an address that other hosts can reach, without encryption or keys");
  app.add_option("--state", options.state_folder, "Folder for the configuration record; default: kept in memory");
  app.add_option(
      "--etcd", options.etcd,
      "URLs of an etcd that holds the configuration record and names the coordinator, for servers on several "
      "machines: give each server the same job and let them find each other");
  app.add_flag("--allow-fresh", options.allow_fresh,
               "Start anew although --state holds an earlier life's record, or no checkpoint can be loaded");
  app.add_option("--checkpoints", options.checkpoints.folder,
                 "Folder for checkpoints, the same for all servers; a job begins with the newest complete one there");
  app.add_option("--checkpoint-every", options.checkpoints.every, "Steps between checkpoints; 0: only the last version")
      ->capture_default_str();
  app.add_option("--checkpoint-keep", options.checkpoints.keep, "Complete checkpoints to keep")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app.add_option("--checkpoint-rate", options.checkpoints.mb_per_s,
                 "MB/s at most that this server writes in the background; 0: as fast as the disk takes it")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--init", options.checkpoints.init,
                 "Begin with the values of this safetensors file, by tensor name; give it to all servers");
  app.add_option("--records", options.records_path, "Write each committed step to this file, as JSON lines");
  app.add_option("--report", options.report_path, "Write a JSON report to this file at the end");
  app.add_option("--address-file", address_file, "Write the real address to this file once it listens");
  app.add_option("--find-timeout-s", find_s, "With --join: how long to look for the coordinator")
      ->capture_default_str();
  app.add_option("--threads", threads, "Threads for sums and updates; 0: all cores")->capture_default_str();
  app.add_option("--log-level", log_level, "debug, info, warning, error or off")->capture_default_str();
  app.add_flag("!--no-progress", options.progress, "No progress lines");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : ExitCode(Code::kInvalidArgument);
  }

  if (!log::SetLevel(log_level))
    return Fail({Code::kInvalidArgument, "--log-level must be debug, info, warning, error or off"});
  log::SetName(options.name.empty() ? "everstep-ps" : options.name);
  options.timeout = Duration(static_cast<int64_t>(find_s * 1e9));
  if (options.join.empty()) {
    if (Status fine = FinishJob(texts, &job); !fine.ok()) return Fail(fine);
    options.job = job;
  }
  if (!options.etcd.empty() && !options.state_folder.empty())
    return Fail({Code::kInvalidArgument, "--etcd and --state are two places for one record; give one of them"});
  if (options.checkpoints.every > 0 && options.checkpoints.folder.empty())
    return Fail({Code::kInvalidArgument, "--checkpoint-every needs --checkpoints FOLDER"});
  kernels::SetThreads(threads);
  transport::TuneAllocator();
  transport::RaiseDescriptorLimit();

  // Signals are read like messages, on the loop; threads made from here on inherit the mask.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  const int signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);

  Loop loop;
  Result<std::unique_ptr<Server>> started = Server::Start(loop, options);
  if (!started.ok()) return Fail(started.status());
  Server& server = **started;
  server.OnEnd([&] { loop.Stop(); });
  loop.Watch(signal_fd, [&] {
    signalfd_siginfo info;
    while (read(signal_fd, &info, sizeof info) == sizeof info) server.RequestStop();
  });
  log::Info("listening on " + server.address());
  if (!address_file.empty()) {
    if (Status written = WriteFileDurably(address_file, server.address() + "\n"); !written.ok()) return Fail(written);
  }
  loop.Run();
  const Status outcome = server.outcome();
  close(signal_fd);
  if (!outcome.ok()) return Fail(outcome);
  log::Info("the job is complete");
  return 0;
}

}  // namespace
}  // namespace everstep

int main(int argc, char** argv) { return everstep::Run(argc, argv); }
