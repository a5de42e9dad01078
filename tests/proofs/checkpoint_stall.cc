// [checkpoint-stall] Saving a 400 MB model costs the step next to nothing: the step after a snapshot is compared with
// the steps of the same run in which nothing is saved.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <thread>

#include "tests/proofs/proof.h"

namespace everstep::test {
namespace {

constexpr double kAllowedShare = 0.05;  // of the step, plus one memory copy of the model

// One copy of so many bytes, to memory that was touched before.
double CopyMs(size_t bytes) {
  std::vector<char> from(bytes, 1), to(bytes, 2);
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) {
    const Time began = SteadyNow();
    std::memcpy(to.data(), from.data(), bytes);
    times.push_back(Milliseconds(SteadyNow() - began));
    from[static_cast<size_t>(i)] = to[bytes - 1];
  }
  return Median(times);
}

// MB/s of plain pwrite and one fsync, of as many bytes as a checkpoint has, in the same folder.
Result<double> PlainWriteRate(const std::string& path, uint64_t bytes) {
  const std::vector<char> block(4u << 20, 7);
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return Status(Code::kUnavailable, "cannot create " + path);
  const Time began = SteadyNow();
  bool fine = true;
  for (uint64_t at = 0; at < bytes && fine;) {
    const ssize_t n = pwrite(fd, block.data(), std::min<uint64_t>(block.size(), bytes - at), static_cast<off_t>(at));
    fine = n > 0;
    if (fine) at += static_cast<uint64_t>(n);
  }
  fine = fine && fsync(fd) == 0;
  const double ms = Milliseconds(SteadyNow() - began);
  close(fd);
  unlink(path.c_str());
  if (!fine) return Status(Code::kUnavailable, "cannot write " + path);
  return static_cast<double>(bytes) / 1e3 / ms;
}

// The fault that the proof must notice: whenever a save begins, the server stands still for a moment.
class Hindrance {
 public:
  Hindrance(Program& server, std::string folder)
      : server_(server), folder_(std::move(folder)), thread_([this] { Run(); }) {}
  ~Hindrance() {
    done_ = true;
    thread_.join();
  }

 private:
  bool Saving() const {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(folder_, ignored)) {
      if (entry.path().filename().string().starts_with(".tmp-")) return true;
    }
    return false;
  }
  void Run() {
    for (bool before = false; !done_; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
      const bool now = Saving();
      if (now && !before) {
        server_.Signal(SIGSTOP);
        std::this_thread::sleep_for(std::chrono::milliseconds(700));
        server_.Signal(SIGCONT);
      }
      before = now;
    }
  }

  Program& server_;
  const std::string folder_;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

}  // namespace

Status ProveCheckpointStall(const ProofContext& context, json* figures) {
  const uint64_t elements = context.quick ? 25'000'000 : 100'000'000;
  const uint64_t saves = context.quick ? 6 : 20;
  constexpr uint64_t kEvery = 8;
  Cluster cluster;
  EVERSTEP_RETURN_IF_ERROR(cluster.StartServers(
      1, {"--epochs=0", "--max-steps=" + std::to_string((saves + 1) * kEvery), "--batch=8", "--learning-rate=0.01",
          "--momentum=0.9", "--no-progress", "--checkpoints=" + cluster.path("checkpoints"),
          "--checkpoint-every=" + std::to_string(kEvery), "--checkpoint-keep=1"}));
  EVERSTEP_RETURN_IF_ERROR(
      cluster.StartWorker("a", {"--elements=" + std::to_string(elements), "--dataset=100000"}).status());
  {
    std::unique_ptr<Hindrance> hindrance;
    if (context.Plants("held-up"))
      hindrance = std::make_unique<Hindrance>(cluster.server(0), cluster.path("checkpoints"));
    EVERSTEP_RETURN_IF_ERROR(cluster.WaitForCleanEnd(std::chrono::minutes(20)));
  }

  // Intervals in which a checkpoint was being written.
  std::vector<std::pair<double, double>> saving;
  std::vector<double> rates;
  for (const json& event : EventsOf(cluster.report(), "checkpoint")) {
    unsigned long long bytes = 0;
    double ms = 0;
    if (std::sscanf(event.at("detail").get<std::string>().c_str(), "%llu bytes in %lf ms", &bytes, &ms) != 2)
      return Broken("an event that says nothing: " + event.dump());
    const double end = event.at("at_ms").get<double>();
    saving.emplace_back(end - ms, end);
    rates.push_back(static_cast<double>(bytes) / 1e3 / ms);
  }
  std::vector<double> quiet, first, during;
  const std::vector<CommitLine> commits = cluster.commits();
  for (size_t i = 3; i < commits.size(); ++i) {
    const double began = std::max(commits[i].granted_ms, commits[i - 1].committed_ms);
    const double ms = commits[i].committed_ms - began;
    const bool overlaps = std::any_of(saving.begin(), saving.end(), [&](const auto& s) {
      return s.first < commits[i].committed_ms && began < s.second;
    });
    if (overlaps && commits[i].step % kEvery == 1) first.push_back(ms);
    (overlaps ? during : quiet).push_back(ms);
  }
  const double copy = CopyMs(elements * sizeof(float));
  const double stall = Median(first) - Median(quiet);
  const double allowed = kAllowedShare * Median(quiet) + copy;
  (*figures)["model_mb"] = elements * sizeof(float) / 1'000'000;
  (*figures)["checkpoints"] = saving.size();
  (*figures)["step_ms"] = {
      {"nothing_saved", Median(quiet)}, {"first_after_snapshot", Median(first)}, {"while_saving", Median(during)}};
  (*figures)["steps"] = {{"nothing_saved", quiet.size()}, {"while_saving", during.size()}};
  (*figures)["memory_copy_ms"] = copy;
  (*figures)["stall_ms"] = stall;
  (*figures)["allowed_ms"] = allowed;
  std::vector<double> plain;
  for (int i = 0; i < 3; ++i) {
    EVERSTEP_ASSIGN(const double rate, PlainWriteRate(cluster.path("plain"), 2 * elements * sizeof(float)));
    plain.push_back(rate);
  }
  (*figures)["writer_mb_s"] = Median(rates);
  (*figures)["plain_pwrite_fsync_mb_s"] = Median(plain);
  if (quiet.size() < saves || first.size() < saves / 2)
    return Broken("too few steps to compare; is the disk that slow?");
  if (stall > allowed) {
    return Broken("a step after a snapshot took " + std::to_string(stall) + " ms longer, " + std::to_string(allowed) +
                  " are allowed");
  }
  return Status::Ok();
}

}  // namespace everstep::test
