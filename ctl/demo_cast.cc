#include "ctl/demo_cast.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "base/check.h"
#include "base/file.h"

namespace everstep::ctl {

Status Cast::Start(const std::string& name, std::vector<std::string> argv) {
  EVERSTEP_CHECK(Find(name) == nullptr, "each player has a name of its own");
  Process::Options options;
  options.output_path = options.error_path = LogPath(name);
  // Some BLAS and OpenMP libraries start their threads before a program can say how many it wants.
  const std::string threads = std::to_string(options_.threads);
  options.environment = {"OMP_NUM_THREADS=" + threads, "OPENBLAS_NUM_THREADS=" + threads};
  argv[0] = options_.programs + "/" + argv[0];
  Result<Process> process = Process::Start(argv, options);
  if (!process.ok()) {
    if (process.status().code() != Code::kNotFound) return process.status();
    return process.status().With("the programs must lie together, and everstep-worker needs a build with libtorch");
  }
  const pid_t pid = process->pid();
  players_.push_back({name, std::move(*process), pid, {}, false, false});
  return Status::Ok();
}

Status Cast::StartServer(const std::string& name, const std::vector<std::string>& how) {
  std::remove(AddressPath(name).c_str());
  std::remove(ReportPath(name).c_str());
  std::vector<std::string> argv{"everstep-ps", "--listen", "tcp://127.0.0.1:0", "--server-name", name};
  argv.insert(argv.end(), how.begin(), how.end());
  const std::vector<std::string> common{"--address-file",
                                        AddressPath(name),
                                        "--state",
                                        options_.folder + "/state",
                                        "--records",
                                        records_folder() + "/" + name + ".jsonl",
                                        "--report",
                                        ReportPath(name),
                                        "--checkpoints",
                                        checkpoints_folder(),
                                        "--checkpoint-every",
                                        std::to_string(options_.checkpoint_every),
                                        "--threads",
                                        std::to_string(options_.threads)};
  argv.insert(argv.end(), common.begin(), common.end());
  EVERSTEP_RETURN_IF_ERROR(Start(name, std::move(argv)));
  players_.back().server = true;
  return Status::Ok();
}

Status Cast::StartCoordinator(const std::string& name) {
  EVERSTEP_RETURN_IF_ERROR(WriteFileDurably(options_.folder + "/job.toml", options_.job));
  // A folder that was kept may hold an earlier demo, whose job must not be taken for this one's past.
  std::error_code error;
  for (const std::string& folder : {options_.folder + "/state", records_folder(), checkpoints_folder()}) {
    std::filesystem::remove_all(folder, error);
    if (error) return {Code::kUnavailable, "cannot empty " + folder + ": " + error.message()};
    EVERSTEP_RETURN_IF_ERROR(CreateFolders(folder));
  }
  return StartServer(name, {"--job", options_.folder + "/job.toml"});
}

Status Cast::StartServer(const std::string& name) {
  const std::vector<std::string> addresses = Addresses();
  EVERSTEP_CHECK(!addresses.empty(), "there is a server to join");
  return StartServer(name, {"--join", addresses.front()});
}

Status Cast::StartWorker(const std::string& name) {
  std::string addresses;
  for (const std::string& address : Addresses()) addresses += (addresses.empty() ? "" : ",") + address;
  return Start(
      name, {"everstep-worker", "--servers", addresses, "--name", name, "--threads", std::to_string(options_.threads)});
}

std::string Cast::AddressOf(const std::string& name) const {
  const Result<std::string> text = ReadFile(AddressPath(name));
  return text.ok() ? text->substr(0, text->find('\n')) : "";
}

std::vector<std::string> Cast::Addresses() const {
  std::vector<std::string> all;
  for (const Player& player : players_) {
    if (!player.server || player.may_end_early) continue;
    if (std::string address = AddressOf(player.name); !address.empty()) all.push_back(std::move(address));
  }
  return all;
}

Cast::Player* Cast::Find(const std::string& name) {
  for (Player& player : players_) {
    if (player.name == name) return &player;
  }
  return nullptr;
}

pid_t Cast::pid(const std::string& name) const {
  for (const Player& player : players_) {
    if (player.name == name) return player.pid;
  }
  return 0;
}

Status Cast::Signal(const std::string& name, int signal) {
  Player* player = Find(name);
  EVERSTEP_CHECK(player != nullptr, "there is no player " + name);
  return player->process.Signal(signal).With(name);
}

Status Cast::Kill(const std::string& name) {
  EVERSTEP_RETURN_IF_ERROR(Signal(name, SIGKILL));
  Player* player = Find(name);
  player->expected = {0, SIGKILL};
  player->may_end_early = true;
  return Status::Ok();
}

Status Cast::Freeze(const std::string& name) { return Signal(name, SIGSTOP); }
Status Cast::Thaw(const std::string& name) { return Signal(name, SIGCONT); }

Status Cast::Drain(const std::string& name) {
  EVERSTEP_RETURN_IF_ERROR(Signal(name, SIGTERM));
  Find(name)->may_end_early = true;
  return Status::Ok();
}

void Cast::MayLeave(const std::string& name) { Find(name)->may_end_early = true; }

Status Cast::Check(bool running) {
  for (Player& player : players_) {
    const auto exit = player.process.Poll();
    if (!exit) continue;
    if (*exit != player.expected) {
      return {Code::kFailed,
              player.name + " ended with " + exit->ToString() + ", expected was " + player.expected.ToString()};
    }
    if (running && !player.may_end_early) return {Code::kFailed, player.name + " ended before the job was complete"};
  }
  return Status::Ok();
}

bool Cast::AllEnded() {
  bool all = true;
  for (Player& player : players_) all &= player.process.Poll().has_value();
  return all;
}

std::string Cast::StillRunning() {
  std::string names;
  for (Player& player : players_) {
    if (!player.process.Poll()) names += (names.empty() ? "" : ", ") + player.name;
  }
  return names;
}

void Cast::End() {
  for (Player& player : players_) (void)player.process.Signal(SIGKILL);
  for (Player& player : players_) player.process.Kill();
}

Status Cast::CheckNothingLeft() const {
  for (const Player& player : players_) {
    // A group lives as long as one of its processes does.
    if (kill(-player.pid, 0) == 0 || errno != ESRCH) {
      return {Code::kFailed, "something that " + player.name + " started is still running, in process group " +
                                 std::to_string(player.pid)};
    }
  }
  return Status::Ok();
}

std::string Cast::LogTails(size_t lines) const {
  std::string text;
  for (const Player& player : players_) {
    const Result<std::string> log = ReadFile(LogPath(player.name));
    if (!log.ok()) continue;
    size_t begin = log->size();
    for (size_t i = 0; i <= lines && begin != std::string::npos && begin > 0; ++i) begin = log->rfind('\n', begin - 1);
    text += "---- " + player.name + " (" + LogPath(player.name) + ")\n" +
            log->substr(begin == std::string::npos || begin == 0 ? 0 : begin + 1);
    if (!text.empty() && text.back() != '\n') text += '\n';
  }
  return text;
}

}  // namespace everstep::ctl
