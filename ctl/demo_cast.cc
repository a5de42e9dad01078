#include "ctl/demo_cast.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

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
  players_.push_back({name, std::move(*process), pid, {}, false});
  return Status::Ok();
}

Status Cast::StartCoordinator() {
  EVERSTEP_RETURN_IF_ERROR(WriteFileDurably(options_.folder + "/job.toml", options_.job));
  std::remove(AddressPath().c_str());
  std::remove(report_path().c_str());
  return Start("ps0", {"everstep-ps", "--job", options_.folder + "/job.toml", "--listen", "tcp://127.0.0.1:0",
                       "--server-name", "ps0", "--address-file", AddressPath(), "--records", records_path(), "--report",
                       report_path(), "--threads", std::to_string(options_.threads)});
}

std::string Cast::Listening() {
  if (!address_.empty()) return address_;
  const Result<std::string> text = ReadFile(AddressPath());
  if (text.ok()) address_ = text->substr(0, text->find('\n'));
  return address_;
}

Status Cast::StartOtherServers() {
  for (size_t i = 1; i < options_.servers; ++i) {
    const std::string name = "ps" + std::to_string(i);
    EVERSTEP_RETURN_IF_ERROR(Start(name, {"everstep-ps", "--join", address_, "--listen", "tcp://127.0.0.1:0",
                                          "--server-name", name, "--threads", std::to_string(options_.threads)}));
  }
  return Status::Ok();
}

Status Cast::StartWorker(const std::string& name) {
  return Start(
      name, {"everstep-worker", "--servers", address_, "--name", name, "--threads", std::to_string(options_.threads)});
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
