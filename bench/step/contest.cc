#include "bench/step/contest.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/file.h"

namespace everstep::bench {
namespace {

constexpr uint64_t kWarmUpSteps = 4;  // the last is the one that sets the length of a round
constexpr uint64_t kMostSteps = 400;

struct Usage {
  double user_ms = 0;
  double system_ms = 0;
  double faults = 0;
  double waits = 0;

  void Add(const Usage& other, double sign) {
    user_ms += sign * other.user_ms;
    system_ms += sign * other.system_ms;
    faults += sign * other.faults;
    waits += sign * other.waits;
  }
};

// How often the threads of a process gave up their core to wait for something.
double WaitsOf(pid_t pid) {
  double sum = 0;
  std::error_code ignored;
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", ignored)) {
    std::ifstream file(task.path() / "status");
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with("voluntary_ctxt_switches:")) sum += std::stod(line.substr(line.find(':') + 1));
    }
  }
  return sum;
}

// Fields 10, 14 and 15 of /proc/PID/stat, counted from 1; the second may hold spaces and ends with a parenthesis.
Usage UsageOf(const std::vector<pid_t>& pids) {
  Usage sum;
  const double ms_per_tick = 1e3 / static_cast<double>(sysconf(_SC_CLK_TCK));
  for (const pid_t pid : pids) {
    sum.waits += WaitsOf(pid);
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string text;
    std::getline(file, text);
    std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
    std::string field;
    for (int i = 3; i <= 15 && fields >> field; ++i) {
      if (i == 10) sum.faults += std::stod(field);
      if (i == 14) sum.user_ms += ms_per_tick * std::stod(field);
      if (i == 15) sum.system_ms += ms_per_tick * std::stod(field);
    }
  }
  return sum;
}

// Bytes that the system could hand out now.
uint64_t AvailableMemory() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  uint64_t kilobytes = 0;
  while (file >> key >> kilobytes) {
    if (key == "MemAvailable:") return kilobytes * 1024;
    file.ignore(256, '\n');
  }
  return 0;
}

void Progress(const std::string& text) {
  if (isatty(STDERR_FILENO)) std::fprintf(stderr, "\r\033[K%s", text.c_str());
}

class Contest {
 public:
  Contest(std::vector<std::unique_ptr<Contestant>> contestants, const ContestOptions& options)
      : options_(options), contestants_(std::move(contestants)), measured_(contestants_.size()) {}

  std::vector<Measured> Run() {
    for (size_t i = 0; i < contestants_.size(); ++i) Prepare(i);
    for (int round = 0; round < options_.rounds; ++round) {
      // Whoever comes first in one round comes last in the next.
      for (size_t k = 0; k < contestants_.size(); ++k) {
        Measure((k + static_cast<size_t>(round)) % contestants_.size(), round);
      }
    }
    for (Measured& m : measured_) {
      if (m.ms.empty()) continue;
      const double steps = static_cast<double>(m.steps) * static_cast<double>(m.ms.size());
      for (double* sum : {&m.user_ms, &m.system_ms, &m.server_faults, &m.worker_faults, &m.waits}) *sum /= steps;
    }
    Progress("");
    return std::move(measured_);
  }

 private:
  void Prepare(size_t i) {
    Contestant& contestant = *contestants_[i];
    Measured& m = measured_[i];
    m.name = contestant.name();
    Progress("starting " + m.name);
    if (const uint64_t available = AvailableMemory(); contestant.memory() > available * 9 / 10) {
      return Drop(i, "needs " + std::to_string(contestant.memory() >> 20) + " MiB of memory, " +
                         std::to_string(available >> 20) + " are free");
    }
    if (const Status started = contestant.Start(); !started.ok()) return Drop(i, started.message());
    if (const auto warm = contestant.Run(kWarmUpSteps - 1); !warm.ok()) return Drop(i, warm.status().message());
    const Result<Duration> one = contestant.Run(1);
    if (!one.ok()) return Drop(i, one.status().message());
    const double fit = options_.round_seconds / std::max(1e-6, Seconds(*one));
    m.steps = std::clamp(static_cast<uint64_t>(fit), options_.least_steps, std::max(options_.least_steps, kMostSteps));
  }

  void Measure(size_t i, int round) {
    if (contestants_[i] == nullptr) return;
    Contestant& contestant = *contestants_[i];
    Measured& m = measured_[i];
    Progress("round " + std::to_string(round + 1) + ": " + m.name);
    // One step brings its memory back into the caches.
    if (const auto warm = contestant.Run(1); !warm.ok()) return Drop(i, warm.status().message());
    Usage servers, workers;
    servers.Add(UsageOf(contestant.servers()), -1);
    workers.Add(UsageOf(contestant.workers()), -1);
    const Result<Duration> took = contestant.Run(m.steps);
    if (!took.ok()) return Drop(i, took.status().message());
    servers.Add(UsageOf(contestant.servers()), 1);
    workers.Add(UsageOf(contestant.workers()), 1);
    m.ms.push_back(Milliseconds(*took) / static_cast<double>(m.steps));
    m.user_ms += servers.user_ms + workers.user_ms;
    m.system_ms += servers.system_ms + workers.system_ms;
    m.server_faults += servers.faults;
    m.worker_faults += workers.faults;
    m.waits += servers.waits + workers.waits;
  }

  void Drop(size_t i, const std::string& why) {
    contestants_[i].reset();
    Measured none;
    none.name = measured_[i].name;
    none.missing = why;
    measured_[i] = std::move(none);
  }

  const ContestOptions options_;
  std::vector<std::unique_ptr<Contestant>> contestants_;  // null: out of the contest
  std::vector<Measured> measured_;
};

}  // namespace

std::vector<Measured> RunContest(std::vector<std::unique_ptr<Contestant>> contestants, const ContestOptions& options) {
  return Contest(std::move(contestants), options).Run();
}

}  // namespace everstep::bench
