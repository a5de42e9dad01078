// everstep-bench-step: the time of one synchronous step (momentum SGD, every worker ends with the new parameters) as
// real processes, beside what the same bytes cost as copies, over plain sockets, and as Gloo's all-reduce. All of it in
// one run, in turns, because single figures vary up to twofold on shared machines. docs/performance.md has the results.
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "base/process.h"
#include "bench/step/contestants.h"
#include "bench/step/report.h"
#include "bench/step/roles.h"
#include "transport/tuning.h"

namespace everstep::bench {
namespace {

struct Options {
  std::vector<double> megabytes{1, 16, 100};
  std::vector<unsigned> workers{1, 2, 4};
  std::vector<unsigned> servers{1, 2};
  std::vector<std::string> schemes{"tcp", "ipc", "shm-copy", "shm-zero"};
  std::vector<uint64_t> chunk_bytes{0};
  unsigned server_threads = 0;
  std::string against;
  bool quick = false;
  bool baselines = true;
  ContestOptions contest;
  Surroundings around;
  std::string json_path;
};

std::vector<std::unique_ptr<Contestant>> Contestants(const Options& options, const Cell& cell) {
  std::vector<std::unique_ptr<Contestant>> all;
  if (options.baselines) {
    for (const unsigned threads : {1u, 2u}) all.push_back(MakeMemcpy(cell, threads));
    all.push_back(MakeFusedPass(cell));
    for (const char* kind : {"tcp", "unix"}) all.push_back(MakeSockets(options.around, cell, kind));
    all.push_back(MakeGloo(options.around, cell));
  }
  EverstepOptions everstep;
  everstep.server_threads = options.server_threads;
  for (const std::string& scheme : options.schemes) {
    for (const unsigned servers : options.servers) {
      for (const uint64_t chunk_bytes : options.chunk_bytes) {
        everstep.scheme = scheme;
        everstep.servers = servers;
        everstep.chunk_bytes = chunk_bytes;
        everstep.programs.clear();
        all.push_back(MakeEverstep(options.around, cell, everstep));
        everstep.programs = options.against;
        if (!options.against.empty()) all.push_back(MakeEverstep(options.around, cell, everstep));
      }
    }
  }
  return all;
}

// A folder for sockets, removed at the end.
class Scratch {
 public:
  static Result<std::string> Make() {
    std::string path = (std::filesystem::temp_directory_path() / "everstep-bench-XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) return Status(Code::kUnavailable, "cannot make a folder like " + path);
    return path;
  }
  explicit Scratch(std::string path) : path_(std::move(path)) {}
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

 private:
  const std::string path_;
};

Status Run(Options options, const std::string& command) {
  EVERSTEP_ASSIGN(options.around.programs, ProgramFolder());
  EVERSTEP_ASSIGN(options.around.folder, Scratch::Make());
  const Scratch scratch(options.around.folder);
  Machine machine = DescribeMachine();
  std::printf("%s, %u cores, %.0f GiB, Linux %s; load average %.2f%s\n", machine.processor.c_str(), machine.cores,
              machine.memory_gib, machine.kernel.c_str(), machine.load_before,
              machine.load_before > 0.3 ? ": the machine is busy with something else, trust the ratios only" : "");
  std::vector<CellResult> results;
  bool all_ran = true;
  for (const double megabytes : options.megabytes) {
    for (const unsigned workers : options.workers) {
      const Cell cell{static_cast<uint64_t>(megabytes * 1e6) / 4 * 4, workers};
      results.push_back({cell, RunContest(Contestants(options, cell), options.contest)});
      std::fputs(CellTable(results.back()).c_str(), stdout);
      std::fflush(stdout);
      for (const Measured& m : results.back().measured) all_ran &= !m.name.starts_with("everstep") || !m.ms.empty();
    }
  }
  machine.load_after = LoadAverage();
  const std::string json = ToJson(machine, command, results);
  std::printf("\n%s\n", json.c_str());
  if (!options.json_path.empty()) EVERSTEP_RETURN_IF_ERROR(WriteFileDurably(options.json_path, json + "\n"));
  if (!all_ran) return {Code::kFailed, "not every Everstep configuration could be measured; the table says why"};
  return Status::Ok();
}

int Main(int argc, char** argv) {
  CLI::App app{"everstep-bench-step: time per synchronous step, beside copies, plain sockets and Gloo"};
  Options options;
  RoleOptions role;
  app.add_option("--sizes", options.megabytes, "Model sizes in MB of fp32 (1e6 bytes)")
      ->delimiter(',')
      ->check(CLI::Range(4e-6, 1e5));
  app.add_option("--worker-counts", options.workers, "Numbers of workers")->delimiter(',')->check(CLI::Range(1, 64));
  app.add_option("--server-counts", options.servers, "Numbers of servers")->delimiter(',')->check(CLI::Range(1, 16));
  app.add_option("--schemes", options.schemes,
                 "tcp, ipc; shm-copy: shared memory, workers with arrays of their own; shm-zero: nothing is copied")
      ->delimiter(',')
      ->check(CLI::IsMember({"tcp", "ipc", "shm-copy", "shm-zero"}));
  app.add_option("--rounds", options.contest.rounds, "Turns of each contestant")->check(CLI::Range(1, 1000));
  app.add_option("--round-seconds", options.contest.round_seconds, "How long a turn should be; at least 3 steps")
      ->check(CLI::PositiveNumber);
  app.add_option("--chunk-bytes", options.chunk_bytes, "Chunk sizes; 0: the default")->delimiter(',');
  app.add_option("--server-threads", options.server_threads, "Threads of each server; 0: all cores");
  app.add_option("--against", options.against, "Also measure the programs in this folder, of another build")
      ->check(CLI::ExistingDirectory);
  app.add_flag("!--no-baselines", options.baselines, "Everstep alone");
  app.add_flag("--quick", options.quick, "1 and 16 MB, 2 rounds, unless given otherwise");
  app.add_option("--json", options.json_path, "Also write the JSON object to this file");
  // How the bench starts itself as one of its children.
  for (CLI::Option* option : {app.add_option("--role", role.role), app.add_option("--control", role.control),
                              app.add_option("--address", role.address), app.add_option("--bytes", role.bytes),
                              app.add_option("--index", role.index), app.add_option("--workers", role.workers),
                              app.add_option("--sharing", role.sharing)}) {
    option->group("");
  }
  CLI11_PARSE(app, argc, argv);
  signal(SIGPIPE, SIG_IGN);
  if (role.role == "worker") return RunWorkerRole(role);
  if (role.role == "hub") return RunHubRole(role);
  if (role.role == "spoke") return RunSpokeRole(role);
  if (options.quick && app.count("--sizes") == 0) options.megabytes = {1, 16};
  if (options.quick && app.count("--rounds") == 0) options.contest.rounds = 2;
  std::string command = "everstep-bench-step";
  for (int i = 1; i < argc; ++i) command += std::string(" ") + argv[i];
  const Status ended = Run(std::move(options), command);
  if (!ended.ok()) std::fprintf(stderr, "%s\n", ended.message().c_str());
  return ExitCode(ended.code());
}

}  // namespace
}  // namespace everstep::bench

int main(int argc, char** argv) { return everstep::bench::Main(argc, argv); }
