#include "bench/step/control.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/file.h"

namespace everstep::bench {
namespace {

constexpr Duration kStartPatience = std::chrono::seconds(60);
constexpr Duration kStepsPatience = std::chrono::seconds(120);
constexpr Duration kQuitPatience = std::chrono::seconds(10);

Result<sockaddr_un> NameOf(const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path.size() >= sizeof name.sun_path) return Status(Code::kInvalidArgument, path + " is too long for a socket");
  std::copy(path.begin(), path.end(), name.sun_path);
  return name;
}

Result<int> ListenAt(const std::string& path) {
  EVERSTEP_ASSIGN(const sockaddr_un name, NameOf(path));
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0 || listen(fd, 1) != 0) {
    const Status why(Code::kUnavailable, "cannot listen at " + path + ": " + std::strerror(errno));
    if (fd >= 0) close(fd);
    return why;
  }
  return fd;
}

bool Readable(int fd, Duration patience) {
  pollfd ready{fd, POLLIN, 0};
  return poll(&ready, 1, static_cast<int>(std::max(0.0, Milliseconds(patience)))) > 0;
}

}  // namespace

Lines& Lines::operator=(Lines&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(unread_, other.unread_);
  return *this;
}

Lines::~Lines() {
  if (fd_ >= 0) close(fd_);
}

Status Lines::Send(const std::string& line) {
  const std::string text = line + "\n";
  if (send(fd_, text.data(), text.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(text.size())) {
    return {Code::kUnavailable, "the other end of the control socket is gone"};
  }
  return Status::Ok();
}

Result<std::string> Lines::Receive(Duration patience) {
  const Time deadline = SteadyNow() + patience;
  while (true) {
    if (const size_t end = unread_.find('\n'); end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    if (!Readable(fd_, deadline - SteadyNow())) {
      return Status(Code::kDeadlineExceeded,
                    "no answer within " + std::to_string(static_cast<int>(Seconds(patience))) + " s");
    }
    char bytes[512];
    const ssize_t n = read(fd_, bytes, sizeof bytes);
    if (n <= 0) return Status(Code::kUnavailable, "the other end of the control socket is gone");
    unread_.append(bytes, static_cast<size_t>(n));
  }
}

Result<Child> Child::Start(std::vector<std::string> argv, const std::string& folder, const std::string& name) {
  const std::string path = folder + "/" + name + ".ctl";
  const std::string log_path = folder + "/" + name + ".log";
  EVERSTEP_ASSIGN(const int listener, ListenAt(path));
  argv.insert(argv.end(), {"--control", path});
  Process::Options options;
  options.output_path = options.error_path = log_path;
  Result<Process> process = Process::Start(argv, options);
  int fd = -1;
  const Time deadline = SteadyNow() + kStartPatience;
  while (process.ok() && fd < 0 && !process->Poll() && SteadyNow() < deadline) {
    if (Readable(listener, std::chrono::milliseconds(100))) fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  }
  close(listener);
  unlink(path.c_str());
  if (!process.ok()) return process.status();
  if (fd < 0) return Status(Code::kUnavailable, name + " did not come up" + TailOf(log_path));
  return Child(std::move(*process), Lines(fd), name, log_path);
}

Result<Duration> Child::RunAll(std::vector<Child>& children, uint64_t steps) {
  std::vector<pollfd> waiting;
  for (Child& child : children) {
    child.in_doubt_ = true;
    if (const Status sent = child.lines_.Send("steps " + std::to_string(steps)); !sent.ok()) return child.Explain(sent);
    waiting.push_back({child.lines_.fd(), POLLIN, 0});
  }
  Time begin = Time::Never();
  Time end;
  for (size_t left = children.size(); left > 0;) {
    if (poll(waiting.data(), waiting.size(), static_cast<int>(Milliseconds(kStepsPatience))) <= 0) {
      return Status(Code::kDeadlineExceeded, "no answer within " + std::to_string(Seconds(kStepsPatience)) + " s");
    }
    for (size_t i = 0; i < children.size(); ++i) {
      if (waiting[i].revents == 0) continue;
      waiting[i].fd = -1;  // passed over from now on
      --left;
      EVERSTEP_ASSIGN(const Span span, children[i].Answer());
      begin = std::min(begin, span.begin);
      end = std::max(end, span.end);
    }
  }
  return end - begin;
}

Result<Span> Child::Answer() {
  const Result<std::string> answer = lines_.Receive(kStepsPatience);
  if (!answer.ok()) return Explain(answer.status());
  long long begin = 0;
  long long end = 0;
  if (std::sscanf(answer->c_str(), "%lld %lld", &begin, &end) != 2) return Explain({Code::kFailed, *answer});
  in_doubt_ = false;
  return Span{{begin}, {end}};
}

Status Child::Explain(const Status& why) {
  return Status(why.code(), name_ + ": " + why.message() + TailOf(log_path_));
}

void Child::Quit() {
  if (!in_doubt_ && lines_.Send("quit").ok()) (void)process_.Wait(kQuitPatience);
  process_.Kill();
}

std::string TailOf(const std::string& path) {
  const Result<std::string> text = ReadFile(path);
  if (!text.ok() || text->empty()) return "";
  const size_t from = text->size() > 600 ? text->find('\n', text->size() - 600) : 0;
  return "; its log ends:\n" + text->substr(from == std::string::npos ? text->size() - 600 : from);
}

int Serve(const std::string& path, const std::function<Result<Span>(uint64_t)>& run) {
  const Result<sockaddr_un> name = NameOf(path);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (!name.ok() || connect(fd, reinterpret_cast<const sockaddr*>(&*name), sizeof *name) != 0) {
    std::fprintf(stderr, "cannot connect to %s\n", path.c_str());
    return 4;
  }
  Lines lines(fd);
  while (true) {
    const Result<std::string> question = lines.Receive(std::chrono::hours(24));
    unsigned long long steps = 0;
    if (!question.ok() || std::sscanf(question->c_str(), "steps %llu", &steps) != 1) return question.ok() ? 0 : 4;
    const Result<Span> span = run(steps);
    const std::string answer = span.ok() ? std::to_string(span->begin.ns) + " " + std::to_string(span->end.ns)
                                         : "error " + span.status().ToString();
    if (!lines.Send(answer).ok()) return 4;
  }
}

}  // namespace everstep::bench
