#include "tests/sim/batch.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <thread>
#include <vector>

#include "base/check.h"
#include "tests/sim/plants.h"

namespace everstep::sim {
namespace {

// A seed takes a few milliseconds; whoever needs this long is in an endless loop.
constexpr unsigned kSeedDeadlineSeconds = 60;

// ---- In the child ----

void Write(int fd, const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) _exit(3);  // the parent is gone
    done += static_cast<size_t>(n);
  }
}

std::string Line(const RunResult& r) {
  std::ostringstream line;
  line << "done " << r.seed << ' ' << r.steps << ' ' << r.messages << ' ' << r.events << ' ' << r.coordinators << ' '
       << r.job_failed << ' ' << Seconds(r.virtual_time) << ' ' << r.faults.size();
  for (const auto& [name, count] : r.faults) {
    std::string word = name;
    std::replace(word.begin(), word.end(), ' ', '_');
    line << ' ' << word << ' ' << count;
  }
  line << '\n';
  return line.str();
}

void CheckReplay(const BatchOptions& options, RunResult* result) {
  const RunResult again = RunSeed(result->seed, {true, 1, options.planned});
  if (again.trace_hash != result->trace_hash || again.events != result->events) {
    result->violation = Violation{"replay", "the same seed ran differently the second time"};
  }
}

// Every `stride`th seed, in order, until one fails.
[[noreturn]] void Child(const BatchOptions& options, unsigned index, unsigned stride, int fd) {
  SetPlant(options.plant);
  for (uint64_t i = index; i < options.seeds; i += stride) {
    const uint64_t seed = options.first_seed + i;
    Write(fd, "begin " + std::to_string(seed) + "\n");
    alarm(kSeedDeadlineSeconds);
    RunResult result = RunSeed(seed, {false, 0, options.planned});
    if (options.twice && !result.violation) CheckReplay(options, &result);
    Write(fd, result.violation ? "failed " + std::to_string(seed) + "\n" : Line(result));
    if (result.violation) break;
  }
  _exit(0);
}

// ---- In the parent ----

struct Worker {
  pid_t pid = 0;
  int fd = -1;
  std::string text;      // not yet read to a line's end
  uint64_t running = 0;  // seed
};

class Batch {
 public:
  explicit Batch(const BatchOptions& options) : options_(options) {}

  BatchOutcome Run() {
    const unsigned cores = options_.jobs != 0 ? options_.jobs : std::max(1u, std::thread::hardware_concurrency());
    const auto count = static_cast<unsigned>(std::min<uint64_t>(cores, std::max<uint64_t>(1, options_.seeds)));
    std::fflush(nullptr);
    for (unsigned i = 0; i < count; ++i) Spawn(i, count);
    while (std::any_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.fd >= 0; })) Wait();
    if (options_.progress && isatty(STDOUT_FILENO)) std::printf("\r\033[K");
    BatchOutcome outcome{totals_, {}};
    if (failed_) outcome.failure = Explain(*failed_);
    return outcome;
  }

 private:
  void Spawn(unsigned index, unsigned stride) {
    int ends[2];
    EVERSTEP_CHECK(::pipe(ends) == 0, "no pipe");
    const pid_t pid = ::fork();
    EVERSTEP_CHECK(pid >= 0, "no process");
    if (pid == 0) {
      ::close(ends[0]);
      if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(3);  // a CHECK's own words come with the explanation
      Child(options_, index, stride, ends[1]);
    }
    ::close(ends[1]);
    workers_.push_back({pid, ends[0], {}, 0});
  }

  void Wait() {
    std::vector<pollfd> polls;
    for (const Worker& worker : workers_) polls.push_back({worker.fd, POLLIN, 0});
    if (::poll(polls.data(), polls.size(), -1) < 0) return;
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (polls[i].revents != 0) Read(workers_[i]);
    }
  }

  void Read(Worker& worker) {
    char buffer[4096];
    const ssize_t n = ::read(worker.fd, buffer, sizeof buffer);
    if (n < 0) return;
    if (n == 0) return End(worker);
    worker.text.append(buffer, static_cast<size_t>(n));
    for (size_t at; (at = worker.text.find('\n')) != std::string::npos; worker.text.erase(0, at + 1)) {
      Handle(worker, worker.text.substr(0, at));
    }
  }

  void Handle(Worker& worker, const std::string& line) {
    std::istringstream in(line);
    std::string word;
    uint64_t seed = 0;
    in >> word >> seed;
    if (word == "begin") {
      worker.running = seed;
      // Lower seeds still matter: the lowest failure is the one that is reported.
      if (failed_ && seed > *failed_) ::kill(worker.pid, SIGKILL);
      return;
    }
    worker.running = 0;
    if (word == "failed") return Failed(seed);
    uint64_t steps = 0, messages = 0, events = 0, coordinators = 0, job_failed = 0;
    size_t faults = 0;
    double seconds = 0;
    in >> steps >> messages >> events >> coordinators >> job_failed >> seconds >> faults;
    ++totals_.seeds;
    totals_.steps += steps;
    totals_.messages += messages;
    totals_.events += events;
    totals_.coordinators += coordinators;
    totals_.job_failures += job_failed;
    totals_.virtual_seconds += seconds;
    for (; faults > 0; --faults) {
      std::string name;
      uint64_t times = 0;
      in >> name >> times;
      std::replace(name.begin(), name.end(), '_', ' ');
      totals_.faults[name] += times;
    }
    if (options_.progress && isatty(STDOUT_FILENO)) {
      std::printf("\r%llu of %llu seeds", static_cast<unsigned long long>(totals_.seeds),
                  static_cast<unsigned long long>(options_.seeds));
      std::fflush(stdout);
    }
  }

  void Failed(uint64_t seed) { failed_ = failed_ ? std::min(*failed_, seed) : seed; }

  void End(Worker& worker) {
    ::close(std::exchange(worker.fd, -1));
    int status = 0;
    ::waitpid(worker.pid, &status, 0);
    const bool ended_by_us = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (worker.running != 0 && !ended_by_us) {
      Failed(worker.running);
      died_[worker.running] = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    }
  }

  // Runs the failing seed once more, now with the trace. If it takes the process down, a child prints what it can.
  RunResult Explain(uint64_t seed) {
    SetPlant(options_.plant);
    if (!died_.contains(seed)) {
      RunResult result = RunSeed(seed, {true, 40, options_.planned});
      if (!result.violation && options_.twice) CheckReplay(options_, &result);
      if (result.violation) return result;
      result.violation = Violation{"replay", "it failed in a child process and not when it was run again"};
      return result;
    }
    RunResult result;
    result.seed = seed;
    const int signal = died_[seed];
    const char* what = signal == SIGABRT   ? "a CHECK of the cores fired"
                       : signal == SIGALRM ? "the run is in an endless loop"
                                           : "the run crashed";
    result.violation = Violation{"P8", std::string(what) + "; its last words are in the replay"};
    return result;
  }

  const BatchOptions options_;
  std::vector<Worker> workers_;
  BatchTotals totals_;
  std::optional<uint64_t> failed_;
  std::map<uint64_t, int> died_;  // seed -> signal
};

}  // namespace

BatchOutcome RunBatch(const BatchOptions& options) { return Batch(options).Run(); }

}  // namespace everstep::sim
