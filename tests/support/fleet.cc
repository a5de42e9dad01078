#include "tests/support/fleet.h"

#include <algorithm>
#include <set>
#include <thread>

namespace everstep::test {
namespace {

constexpr Duration kPoll = std::chrono::milliseconds(3);
// A frozen server is not waited for when another one may answer.
constexpr Duration kOneAnswer = std::chrono::milliseconds(500);

bool Coordinates(const json& status) {
  const std::string state = status.at("state").get<std::string>();
  return state != "serving" && state != "deposed";
}

uint64_t HeldBytes(const json& status) {
  uint64_t bytes = 0;
  for (const json& server : status.at("servers")) bytes += server.at("bytes").get<uint64_t>();
  return bytes;
}

}  // namespace

Fleet::Fleet(std::string record) : record_(record.empty() ? "--state=" + cluster_.path("state") : std::move(record)) {}

Status Fleet::Start(size_t count, Flags job) {
  job.insert(job.end(), {"--servers=" + std::to_string(count), "--no-progress", record_});
  EVERSTEP_RETURN_IF_ERROR(cluster_.StartServer(std::move(job)).status());
  EVERSTEP_RETURN_IF_ERROR(cluster_.WaitForAddress(0));
  alive_.push_back(started_++);
  while (started_ < count) EVERSTEP_RETURN_IF_ERROR(Add().status());
  return Status::Ok();
}

Result<size_t> Fleet::Add() {
  const size_t index = started_++;
  const std::string base = cluster_.path(name(index));
  const bool known = std::find(alive_.begin(), alive_.end(), coordinator_) != alive_.end();
  EVERSTEP_RETURN_IF_ERROR(
      cluster_
          .StartServer({"--join=" + cluster_.address(known ? coordinator_ : alive_.front()), record_, "--no-progress",
                        "--records=" + base + ".jsonl", "--report=" + base + ".json"})
          .status());
  EVERSTEP_RETURN_IF_ERROR(cluster_.WaitForAddress(index));
  alive_.push_back(index);
  return index;
}

void Fleet::Kill(size_t server) {
  cluster_.server(server).Kill();
  Forget(server);
}

Result<Program*> Fleet::StartWorker(const std::string& name, Flags flags) {
  std::string addresses;
  for (size_t server : alive_) addresses += (addresses.empty() ? "" : ",") + cluster_.address(server);
  flags.push_back("--servers=" + addresses);
  return cluster_.StartWorker(name, std::move(flags));
}

Result<json> Fleet::Ask(Duration patience) {
  const Time deadline = SteadyNow() + patience;
  std::string last = "nobody is alive";
  while (true) {
    std::vector<size_t> order{coordinator_};
    for (size_t server : alive_) {
      if (server != coordinator_) order.push_back(server);
    }
    for (size_t server : order) {
      if (std::find(alive_.begin(), alive_.end(), server) == alive_.end()) continue;
      auto& probe = probes_[server];
      if (!probe) probe = std::make_unique<Probe>(cluster_.address(server));
      probe->Send({{}, {}, StatusRequest{}});
      const Result<StatusReply> reply = probe->Expect<StatusReply>(kOneAnswer);
      if (!reply.ok()) {
        probe.reset();
        last = name(server) + ": " + reply.status().message();
        continue;
      }
      json status = json::parse(reply->json, nullptr, false);
      if (status.is_discarded()) return Status(Code::kCorrupt, "a status that is no JSON: " + reply->json);
      if (Coordinates(status)) {
        coordinator_ = server;
        return status;
      }
      last = name(server) + " does not coordinate";
    }
    if (SteadyNow() >= deadline) return Status(Code::kDeadlineExceeded, "nobody coordinates: " + last);
    std::this_thread::sleep_for(kPoll);
  }
}

Status Fleet::WaitFor(const std::string& what, const std::function<bool(const json&)>& holds, Duration patience) {
  const Time deadline = SteadyNow() + patience;
  while (true) {
    const Result<json> status = Ask(std::max<Duration>(deadline - SteadyNow(), std::chrono::seconds(1)));
    if (!status.ok()) return status.status().With("waiting for " + what);
    if (holds(*status)) return Status::Ok();
    if (status->at("state") == "failed") return {Code::kFailed, "the job has failed: " + status->value("failure", "")};
    if (SteadyNow() >= deadline) {
      json brief = *status;
      json& events = brief["events"];
      if (events.size() > 12) events.erase(events.begin(), events.end() - 12);
      return {Code::kDeadlineExceeded, "waited in vain for " + what + ": " + brief.dump()};
    }
    std::this_thread::sleep_for(kPoll);
  }
}

Status Fleet::WaitSteps(uint64_t more, Duration patience) {
  EVERSTEP_ASSIGN(const json now, Ask());
  const uint64_t wanted = now.at("version").get<uint64_t>() + more;
  return WaitFor(
      "version " + std::to_string(wanted), [&](const json& s) { return s.at("version") >= wanted; }, patience);
}

Status Fleet::WaitWhole(Duration patience) {
  return WaitFor(
      "two copies of everything on " + std::to_string(alive_.size()) + " servers",
      [&](const json& s) {
        if (s.at("version") == 0 || s.at("servers").size() != alive_.size()) return false;
        // By name: a death may not have been noticed yet.
        std::set<std::string> missing;
        for (size_t server : alive_) missing.insert(name(server));
        for (const json& server : s.at("servers")) {
          if (!server.at("connected") || server.at("bytes") == 0) return false;
          missing.erase(server.at("name").get<std::string>());
        }
        if (!missing.empty()) return false;
        if (total_bytes_ == 0) total_bytes_ = HeldBytes(s) / 2;
        return HeldBytes(s) == 2 * total_bytes_;
      },
      patience);
}

Result<std::vector<CommitLine>> Fleet::Commits() const {
  std::vector<std::string> paths;
  for (size_t i = 0; i < started_; ++i) paths.push_back(cluster_.path(i == 0 ? "records.jsonl" : name(i) + ".jsonl"));
  return ReadAllCommits(paths);
}

}  // namespace everstep::test
