#include "ps/coordinator_host.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "base/log.h"
#include "ps/checkpoint_host.h"
#include "ps/report.h"

namespace everstep {
namespace {

constexpr size_t kMaxEvents = 4096;
constexpr size_t kMaxLosses = 10'000;
constexpr Duration kProgressEvery = std::chrono::seconds(2);
constexpr Duration kRateWindow = std::chrono::seconds(5);

bool IsWarning(const std::string& kind) {
  return kind == "worker-lost" || kind == "worker-fenced" || kind == "server-lost" || kind == "contribution-refused" ||
         kind == "paused" || kind == "worker-refused" || kind == "server-refused" || kind == "checkpoint-failed" ||
         kind == "replica-diverged" || kind == "move-failed";
}

// A process that was killed while it wrote leaves the beginning of a line, which must not run into the next one.
void CutTornLine(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::streamoff whole = 0;
  for (std::string line; std::getline(file, line) && !file.eof();) whole = file.tellg();
  file.close();
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (!error && size > static_cast<uintmax_t>(whole))
    std::filesystem::resize_file(path, static_cast<uintmax_t>(whole), error);
  if (error && error != std::errc::no_such_file_or_directory)
    log::Warning("cannot cut the torn end off " + path + ": " + error.message());
}

}  // namespace

CoordinatorHost::CoordinatorHost(Loop& loop, Options options, std::unique_ptr<ConfigRecord> record,
                                 std::function<void()> changed)
    : loop_(loop),
      options_(std::move(options)),
      core_(SteadyNow(), options_.core),
      record_(std::move(record)),
      changed_(std::move(changed)) {
  if (options_.records_path.empty()) return;
  if (options_.continue_records) CutTornLine(options_.records_path);
  records_.open(options_.records_path, options_.continue_records ? std::ios::app : std::ios::trunc);
  if (!records_) status_ = {Code::kInvalidArgument, "cannot write the commit records to " + options_.records_path};
  if (options_.continue_records && records_.tellp() > 0) return;
  records_ << JobToJson(core_.job(), core_.spec()) << '\n' << std::flush;
}

CoordinatorHost::~CoordinatorHost() { *alive_ = false; }

void CoordinatorHost::Collect(Time now) {
  if (auto proposal = core_.TakeProposal()) Propose(std::move(*proposal));
  if (auto work = core_.TakeCheckpoint()) CompleteCheckpoint(std::move(*work));
  for (const CommitRecord& record : core_.TakeCommits()) KeepCommit(record);
  for (Event& event : core_.TakeEvents()) KeepEvent(std::move(event));
  if (options_.progress && now >= next_line_) PrintProgress(now);
}

// The record's store may take as long as a disk does: never on the loop.
void CoordinatorHost::Propose(Coordinator::Proposal proposal) {
  disk_.loop().Post([this, alive = alive_, proposal = std::make_shared<Coordinator::Proposal>(std::move(proposal))] {
    Status outcome = record_->CompareAndSwap(proposal->expected, proposal->next);
    if (!outcome.ok()) log::Warning("configuration record: " + outcome.ToString());
    loop_.Post([this, alive, outcome = std::move(outcome)] {
      if (!*alive) return;
      core_.OnConfigured(SteadyNow(), outcome);
      changed_();
    });
  });
}

void CoordinatorHost::CompleteCheckpoint(CheckpointWork work) {
  disk_.loop().Post([this, alive = alive_, job = core_.job(),
                     work = std::make_shared<CheckpointWork>(std::move(work))] {
    const Status outcome =
        everstep::CompleteCheckpoint(options_.checkpoints, job, options_.core.spec, *work, options_.checkpoints_kept);
    loop_.Post([this, alive, outcome] {
      if (!*alive) return;
      core_.OnCheckpoint(SteadyNow(), outcome);
      changed_();
    });
  });
}

void CoordinatorHost::KeepCommit(const CommitRecord& record) {
  if (records_.is_open()) records_ << CommitToJson(record) << '\n' << std::flush;
  if (record.seal.id.step.value == 0 || history_.started == Time{}) {
    history_.started = history_.last_commit = record.committed_at;
    recent_.emplace_back(record.committed_at, 0);
    return;
  }
  uint64_t samples = 0;
  for (const Contribution& c : record.seal.contributors) samples += c.lease.samples();
  const Time began = std::max(record.granted_at, history_.last_commit);
  const auto ms = static_cast<float>(Milliseconds(record.committed_at - began));
  history_.step_ms.Add(ms);
  if (std::exchange(lost_member_, false) && history_.lost_ms.size() < kMaxLosses) history_.lost_ms.push_back(ms);
  ++history_.steps;
  history_.last_commit = record.committed_at;
  if (!record.metrics.empty()) history_.metrics = record.metrics;
  recent_.emplace_back(record.committed_at, samples);
  recent_samples_ += samples;
  while (recent_.size() > 2 && record.committed_at - recent_.front().first > kRateWindow) {
    recent_samples_ -= recent_.front().second;
    recent_.pop_front();
  }
  // The first one only says since when.
  const uint64_t sum = recent_samples_ - recent_.front().second;
  const double seconds = Seconds(record.committed_at - recent_.front().first);
  history_.samples_per_second = seconds > 0 ? static_cast<double>(sum) / seconds : 0;
}

void CoordinatorHost::KeepEvent(Event event) {
  const std::string line = event.kind + " " + event.target + (event.detail.empty() ? "" : ": " + event.detail);
  if (event.kind == "failed") {
    log::Error(line);
  } else if (IsWarning(event.kind)) {
    log::Warning(line);
  } else {
    log::Info(line);
  }
  if (event.kind == "worker-lost" || event.kind == "worker-fenced") lost_member_ = true;
  history_.events.push_back(std::move(event));
  if (history_.events.size() > kMaxEvents) {
    history_.events.pop_front();
    ++history_.events_dropped;
  }
}

void CoordinatorHost::PrintProgress(Time now) {
  next_line_ = now + kProgressEvery;
  if (history_.steps == 0) return;
  const auto loss = history_.metrics.find("loss");
  const uint64_t total = core_.job_steps();
  std::printf("step %llu%s%s  loss %.4f  %.0f samples/s  %zu workers%s\n",
              static_cast<unsigned long long>(core_.version().value - 1), total > 0 ? "/" : "",
              total > 0 ? std::to_string(total).c_str() : "", loss == history_.metrics.end() ? 0.0 : loss->second,
              history_.samples_per_second, core_.members().ready_count(), core_.paused() ? "  PAUSED" : "");
  std::fflush(stdout);
}

}  // namespace everstep
