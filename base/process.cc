#include "base/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <thread>

extern char** environ;

namespace everstep {
namespace {

struct Descriptor {
  int fd = -1;
  Descriptor() = default;
  explicit Descriptor(int opened) : fd(opened) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { Close(); }
  void Close() {
    if (fd >= 0) close(fd);
    fd = -1;
  }
};

// A path, or a name looked for in PATH; "" when there is none. Done before the fork, where memory may be allocated.
std::string FindProgram(const std::string& name) {
  if (name.find('/') != std::string::npos) return access(name.c_str(), X_OK) == 0 ? name : "";
  const char* path = getenv("PATH");
  std::string rest = path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin";
  for (size_t begin = 0; begin <= rest.size();) {
    const size_t end = std::min(rest.find(':', begin), rest.size());
    const std::string folder = rest.substr(begin, end - begin);
    const std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    if (access(candidate.c_str(), X_OK) == 0 && !std::filesystem::is_directory(candidate)) return candidate;
    begin = end + 1;
  }
  return "";
}

std::vector<std::string> MergeEnvironment(const std::vector<std::string>& additions) {
  std::vector<std::string> merged;
  const auto same_name = [](const std::string& a, const std::string& b) {
    return a.substr(0, a.find('=')) == b.substr(0, b.find('='));
  };
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (std::none_of(additions.begin(), additions.end(), [&](const auto& a) { return same_name(a, text); })) {
      merged.push_back(text);
    }
  }
  merged.insert(merged.end(), additions.begin(), additions.end());
  return merged;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Everything that the child needs, made before the fork: between fork and exec only async-signal-safe calls are
// allowed.
struct Plan {
  const char* program;
  char* const* argv;
  char* const* environment;
  const char* folder;  // nullptr: stay
  int input;
  int output;  // -1: inherit
  int error;
  int report;  // errno goes here when exec fails; closes at exec
  bool own_group;
  bool dies_with_parent;
  pid_t parent;
};

[[noreturn]] void BecomeProgram(const Plan& plan) {
  const auto give_up = [&plan] {
    const int error = errno;
    (void)!write(plan.report, &error, sizeof error);
    _exit(127);
  };
  if (plan.own_group) setpgid(0, 0);
  if (plan.dies_with_parent) {
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) give_up();
    // The parent may have died before the call above.
    if (getppid() != plan.parent) _exit(127);
  }
  // What we block or ignore is our own business.
  for (int signal = 1; signal < NSIG; ++signal) {
    if (signal != SIGKILL && signal != SIGSTOP) ::signal(signal, SIG_DFL);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (dup2(plan.input, STDIN_FILENO) < 0) give_up();
  if (plan.output >= 0 && dup2(plan.output, STDOUT_FILENO) < 0) give_up();
  if (plan.error >= 0 && dup2(plan.error, STDERR_FILENO) < 0) give_up();
  if (plan.folder != nullptr && chdir(plan.folder) != 0) give_up();
  execve(plan.program, plan.argv, plan.environment);
  give_up();
  _exit(127);
}

// The descriptor is over 2, so that no dup2 onto a standard stream can hit it.
Status OpenFor(const std::string& path, int flags, Descriptor* file) {
  Descriptor opened(open(path.c_str(), flags | O_CLOEXEC, 0600));
  if (opened.fd < 0) return {Code::kInvalidArgument, "cannot open " + path + ": " + std::strerror(errno)};
  file->fd = fcntl(opened.fd, F_DUPFD_CLOEXEC, 3);
  if (file->fd < 0) return {Code::kResourceExhausted, std::string("no descriptor left: ") + std::strerror(errno)};
  return Status::Ok();
}

}  // namespace

Result<Process> Process::Start(const std::vector<std::string>& argv, const Options& options) {
  EVERSTEP_CHECK(!argv.empty(), "a process needs a program");
  const std::string program = FindProgram(argv[0]);
  if (program.empty()) return Status(Code::kNotFound, "there is no program " + argv[0]);
  std::vector<std::string> arguments = argv;
  std::vector<std::string> environment = MergeEnvironment(options.environment);
  const std::vector<char*> argument_pointers = Pointers(arguments);
  const std::vector<char*> environment_pointers = Pointers(environment);

  Descriptor input, output, error;
  EVERSTEP_RETURN_IF_ERROR(OpenFor("/dev/null", O_RDONLY, &input));
  constexpr int kFresh = O_WRONLY | O_CREAT | O_TRUNC | O_APPEND;
  if (!options.output_path.empty()) EVERSTEP_RETURN_IF_ERROR(OpenFor(options.output_path, kFresh, &output));
  const bool one_stream = options.error_path == options.output_path;
  if (!options.error_path.empty() && !one_stream) EVERSTEP_RETURN_IF_ERROR(OpenFor(options.error_path, kFresh, &error));

  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0) {
    return Status(Code::kResourceExhausted, std::string("no pipe left: ") + std::strerror(errno));
  }
  Descriptor report_in(report[0]), report_out(fcntl(report[1], F_DUPFD_CLOEXEC, 3));
  close(report[1]);
  const Plan plan{program.c_str(),
                  argument_pointers.data(),
                  environment_pointers.data(),
                  options.folder.empty() ? nullptr : options.folder.c_str(),
                  input.fd,
                  output.fd,
                  one_stream ? output.fd : error.fd,
                  report_out.fd,
                  options.own_group,
                  options.dies_with_parent,
                  getpid()};
  const pid_t pid = fork();
  if (pid < 0) return Status(Code::kUnavailable, "cannot start " + argv[0] + ": " + std::strerror(errno));
  if (pid == 0) BecomeProgram(plan);
  // Both sides set the group: whoever is first, a kill of the group finds it.
  if (options.own_group) setpgid(pid, pid);
  report_out.Close();
  int failed = 0;
  ssize_t n;
  while ((n = read(report_in.fd, &failed, sizeof failed)) < 0 && errno == EINTR) {
  }
  if (n > 0) {
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    return Status(failed == ENOENT ? Code::kNotFound : Code::kInvalidArgument,
                  "cannot start " + argv[0] + ": " + std::strerror(failed));
  }
  const int pid_fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  return Process(pid, pid_fd, options.own_group, std::filesystem::path(program).filename().string());
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pid_fd_(std::exchange(other.pid_fd_, -1)),
      own_group_(other.own_group_),
      name_(std::move(other.name_)),
      exit_(other.exit_) {}

Process& Process::operator=(Process&& other) noexcept {
  if (this == &other) return *this;
  Forget();
  pid_ = std::exchange(other.pid_, -1);
  pid_fd_ = std::exchange(other.pid_fd_, -1);
  own_group_ = other.own_group_;
  name_ = std::move(other.name_);
  exit_ = other.exit_;
  return *this;
}

Process::~Process() { Forget(); }

void Process::Forget() {
  if (pid_ < 0) return;
  if (!exit_) Kill();
  if (pid_fd_ >= 0) close(pid_fd_);
  pid_ = pid_fd_ = -1;
}

Status Process::Signal(int signal) {
  if (Poll()) return {Code::kUnavailable, name_ + " has ended already (" + exit_->ToString() + ")"};
  // Not reaped yet, so that the pid is still its own.
  if (kill(pid_, signal) != 0) {
    return {Code::kUnavailable, "cannot signal " + name_ + ": " + std::strerror(errno)};
  }
  return Status::Ok();
}

std::optional<Process::Exit> Process::Poll() {
  EVERSTEP_CHECK(pid_ > 0, "moved from");
  if (exit_) return exit_;
  int status = 0;
  pid_t ended;
  while ((ended = waitpid(pid_, &status, WNOHANG)) < 0 && errno == EINTR) {
  }
  EVERSTEP_CHECK(ended >= 0, "somebody else has waited for our child");
  if (ended == pid_) exit_ = WIFSIGNALED(status) ? Exit{0, WTERMSIG(status)} : Exit{WEXITSTATUS(status), 0};
  return exit_;
}

Result<Process::Exit> Process::Wait(Duration patience) {
  const Time deadline = SteadyNow() + patience;
  while (!Poll()) {
    const Duration left = deadline - SteadyNow();
    if (left <= Duration::zero()) {
      return Status(Code::kDeadlineExceeded, name_ + " (pid " + std::to_string(pid_) + ") still runs after " +
                                                 std::to_string(static_cast<int>(Milliseconds(patience))) + " ms");
    }
    if (pid_fd_ < 0) {
      std::this_thread::sleep_for(std::min<Duration>(left, std::chrono::milliseconds(2)));
      continue;
    }
    pollfd ready{pid_fd_, POLLIN, 0};
    poll(&ready, 1, static_cast<int>(std::clamp(Milliseconds(left) + 1, 1.0, 60'000.0)));
  }
  return *exit_;
}

Process::Exit Process::Kill() {
  if (!Poll()) {
    kill(own_group_ ? -pid_ : pid_, SIGKILL);
    // The kernel's own time to end a killed process is short, but no bound of ours.
    while (!Wait(std::chrono::seconds(1)).ok()) {
    }
  }
  return *exit_;
}

std::string Process::Exit::ToString() const {
  return signal != 0 ? "signal " + std::to_string(signal) : "exit " + std::to_string(code);
}

Result<std::string> ProgramFolder() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return Status(Code::kUnavailable, "cannot find this program's own folder: " + error.message());
  return self.parent_path().string();
}

}  // namespace everstep
