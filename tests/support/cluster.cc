#include "tests/support/cluster.h"

#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <sstream>
#include <thread>

#include "base/check.h"
#include "base/file.h"

namespace everstep::test {
namespace {

constexpr Duration kPoll = std::chrono::milliseconds(3);

std::string Tail(const std::string& text, size_t bytes = 1500) {
  return text.size() <= bytes ? text : "..." + text.substr(text.size() - bytes);
}

std::string Contents(const std::string& path) {
  const Result<std::string> text = ReadFile(path);
  return text.ok() ? *text : std::string();
}

// Calls `done` until it returns true; false when the time is over.
bool Poll(Duration patience, const std::function<bool()>& done) {
  const Time deadline = SteadyNow() + patience;
  while (!done()) {
    if (SteadyNow() >= deadline) return false;
    std::this_thread::sleep_for(kPoll);
  }
  return true;
}

bool Names(const Flags& flags, const std::string& flag) {
  for (const std::string& f : flags) {
    if (f == flag || f.starts_with(flag + "=")) return true;
  }
  return false;
}

std::string Summary(const json& status) {
  json out;
  for (const char* key : {"state", "version", "ballot", "members", "servers", "counters", "failure", "events"}) {
    if (status.contains(key)) out[key] = status.at(key);
  }
  return out.dump();
}

}  // namespace

// ---- Program ----

Program::Program(std::string name, const std::string& folder, Process process)
    : name_(std::move(name)), base_(folder + "/" + name_), process_(std::move(process)) {}

std::string Program::output() const { return Contents(base_ + ".out"); }
std::string Program::log() const { return Contents(base_ + ".log"); }

json Program::result() const {
  json last;
  std::istringstream lines(output());
  for (std::string line; std::getline(lines, line);) {
    if (json parsed = json::parse(line, nullptr, false); parsed.is_object()) last = std::move(parsed);
  }
  return last;
}

Result<int> Program::Wait(Duration patience) {
  const Result<Process::Exit> exit = process_.Wait(patience);
  if (!exit.ok()) return Status(exit.status().code(), exit.status().message() + "; its log: " + Tail(log()));
  return exit->signal != 0 ? 128 + exit->signal : exit->code;
}

// ---- Cluster ----

Cluster::Cluster(Options options)
    : options_([&options] {
        if (options.programs.empty()) options.programs = ProgramFolder().value();
        return std::move(options);
      }()) {
  // Short enough for the sockets of ipc addresses.
  std::string name = (std::filesystem::temp_directory_path() / "everstep-test-XXXXXX").string();
  EVERSTEP_CHECK(mkdtemp(name.data()) != nullptr, "no temporary folder: " + name);
  folder_ = name;
}

Cluster::~Cluster() {
  probe_.reset();
  programs_.clear();
  past_.clear();
  if (keep_) return;
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string Cluster::FreeAddress() {
  if (options_.scheme == "ipc") return "ipc://" + path("s" + std::to_string(sockets_++) + ".sock");
  return options_.scheme + "://127.0.0.1:0";
}

Result<Program*> Cluster::Keep(const std::string& name, Result<Process> started) {
  if (!started.ok()) return started.status();
  auto& slot = programs_[name];
  if (slot) past_.push_back(std::move(slot));
  slot = std::make_unique<Program>(name, folder_, std::move(started).value());
  return slot.get();
}

Result<Program*> Cluster::Start(const std::string& name, const std::string& program, Flags flags) {
  std::vector<std::string> argv{program.find('/') == std::string::npos ? options_.programs + "/" + program : program};
  argv.insert(argv.end(), flags.begin(), flags.end());
  Process::Options options;
  options.output_path = path(name + ".out");
  options.error_path = path(name + ".log");
  return Keep(name, Process::Start(argv, options));
}

Result<Program*> Cluster::StartServer(Flags flags) {
  const std::string name = "ps" + std::to_string(servers_.size());
  if (!Names(flags, "--listen")) flags.push_back("--listen=" + FreeAddress());
  flags.push_back("--server-name=" + name);
  flags.push_back("--address-file=" + path(name + ".address"));
  if (!Names(flags, "--join")) {
    flags.push_back("--records=" + path("records.jsonl"));
    flags.push_back("--report=" + path("report.json"));
  }
  EVERSTEP_ASSIGN(Program * started, Start(name, "everstep-ps", std::move(flags)));
  servers_.push_back(started);
  addresses_.emplace_back();
  return started;
}

Status Cluster::WaitForAddress(size_t index, Duration patience) {
  Program& program = server(index);
  const std::string file = path(program.name() + ".address");
  bool ended = false;
  const bool there = Poll(patience, [&] {
    ended = !program.running();
    return ended || FileExists(file);
  });
  if (!there || !FileExists(file)) {
    return {ended ? Code::kFailed : Code::kDeadlineExceeded,
            program.name() + (ended ? " has ended" : " does not listen") + "; its log: " + Tail(program.log())};
  }
  std::string address = Contents(file);
  while (!address.empty() && address.back() == '\n') address.pop_back();
  addresses_[index] = address;
  return Status::Ok();
}

Status Cluster::StartServers(size_t count, Flags job) {
  job.push_back("--servers=" + std::to_string(count));
  EVERSTEP_RETURN_IF_ERROR(StartServer(std::move(job)).status());
  EVERSTEP_RETURN_IF_ERROR(WaitForAddress(0));
  for (size_t i = 1; i < count; ++i) EVERSTEP_RETURN_IF_ERROR(StartServer({"--join=" + address(0)}).status());
  for (size_t i = 1; i < count; ++i) EVERSTEP_RETURN_IF_ERROR(WaitForAddress(i));
  return Status::Ok();
}

Result<Program*> Cluster::StartWorker(const std::string& name, Flags flags) {
  flags.push_back("--name=" + name);
  if (!Names(flags, "--servers")) flags.push_back("--servers=" + address(0));
  return Start(name, "everstep-plain-worker", std::move(flags));
}

// ---- Watching ----

Result<json> Cluster::AskStatus(Duration patience) {
  if (!probe_) probe_ = std::make_unique<Probe>(address(0));
  probe_->Send({{}, {}, StatusRequest{}});
  Result<StatusReply> reply = probe_->Expect<StatusReply>(patience);
  if (!reply.ok()) {
    probe_.reset();
    return reply.status().With("asking " + address(0) + " for its status");
  }
  json status = json::parse(reply->json, nullptr, false);
  if (status.is_discarded()) return Status(Code::kCorrupt, "a status that is no JSON: " + reply->json);
  return status;
}

Status Cluster::WaitFor(const std::string& what, const std::function<bool(const json&)>& holds, Duration patience) {
  const Time deadline = SteadyNow() + patience;
  while (true) {
    Result<json> status = AskStatus(std::max<Duration>(deadline - SteadyNow(), std::chrono::seconds(1)));
    if (!status.ok()) {
      return {status.status().code(),
              "waiting for " + what + ": " + status.status().message() + "; ps0's log: " + Tail(server(0).log())};
    }
    if (holds(*status)) return Status::Ok();
    if (SteadyNow() >= deadline)
      return {Code::kDeadlineExceeded, "waited in vain for " + what + ": " + Summary(*status)};
    std::this_thread::sleep_for(kPoll);
  }
}

Status Cluster::WaitForStep(uint64_t committed, Duration patience) {
  return WaitFor(
      "step " + std::to_string(committed), [&](const json& s) { return s.at("version").get<uint64_t>() > committed; },
      patience);
}

Status Cluster::WaitForReady(size_t workers, Duration patience) {
  return WaitFor(
      std::to_string(workers) + " ready workers",
      [&](const json& s) {
        size_t ready = 0;
        for (const json& m : s.at("members")) ready += m.at("ready").get<bool>();
        return ready == workers;
      },
      patience);
}

Status Cluster::WaitForEvent(const std::string& kind, const std::string& target, Duration patience) {
  return WaitFor(
      kind + " " + target, [&](const json& s) { return !EventsOf(s, kind, target).empty(); }, patience);
}

Result<uint64_t> Cluster::WaitForBegin(const std::string& name, Duration patience) {
  Program& program = worker(name);
  const auto last = [&]() -> long long {
    const std::string text = program.output();
    const size_t at = text.rfind("begin ");
    if (at == std::string::npos || text.find('\n', at) == std::string::npos) return -1;
    return std::stoll(text.substr(at + 6));
  };
  const long long before = last();
  long long now = before;
  if (!Poll(patience, [&] { return (now = last()) > before; })) {
    return Status(Code::kDeadlineExceeded, name + " began no step; its log: " + Tail(program.log()));
  }
  return static_cast<uint64_t>(now);
}

json Cluster::report() const {
  json report = json::parse(Contents(path("report.json")), nullptr, false);
  return report.is_discarded() ? json() : report;
}

// ---- The end ----

Status Cluster::WaitForCleanEnd(Duration patience) {
  const Time deadline = SteadyNow() + patience;
  for (auto& [name, program] : programs_) {
    if (program->killed()) continue;
    EVERSTEP_ASSIGN(const int code, program->Wait(std::max(deadline - SteadyNow(), Duration{1})));
    if (code != 0)
      return {Code::kFailed, name + " ended with " + std::to_string(code) + "; its log: " + Tail(program->log())};
  }
  return Status::Ok();
}

std::vector<std::string> Cluster::Sockets() const {
  std::vector<std::string> sockets;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    if (entry.is_socket()) sockets.push_back(entry.path().filename());
  }
  return sockets;
}

std::vector<json> EventsOf(const json& status, const std::string& kind, const std::string& target) {
  std::vector<json> found;
  for (const json& event : status.at("events")) {
    if (event.at("kind") == kind && (target.empty() || event.at("target") == target)) found.push_back(event);
  }
  return found;
}

}  // namespace everstep::test
