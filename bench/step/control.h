// How the bench commands its child processes: lines over a Unix socket, one question and one answer at a time.
//
// The bench starts a child with `--control PATH` and asks; the child's Serve() answers until it is told "quit" or the
// bench is gone. Questions: "steps N" (answer: "BEGIN END", nanoseconds on the steady clock, which all processes of a
// host share) and "quit". An answer that begins with "error " is one.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/process.h"
#include "base/status.h"

namespace everstep::bench {

// A line stream on a connected socket. One thread.
class Lines {
 public:
  explicit Lines(int fd) : fd_(fd) {}
  Lines(Lines&& other) noexcept : fd_(std::exchange(other.fd_, -1)), unread_(std::move(other.unread_)) {}
  Lines& operator=(Lines&& other) noexcept;
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;
  ~Lines();

  Status Send(const std::string& line);
  // kUnavailable when the other end is gone, kDeadlineExceeded.
  Result<std::string> Receive(Duration patience);
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
  std::string unread_;
};

// What the workers of one step measured.
struct Span {
  Time begin;
  Time end;
};

class Child {
 public:
  // Starts argv + {"--control", PATH} with its output in `folder`/`name`.log, and waits until it has connected.
  static Result<Child> Start(std::vector<std::string> argv, const std::string& folder, const std::string& name);

  // Asks all for so many steps and waits for all; from the first one's begin to the last one's end. The first error
  // ends the wait: the others may be waiting for whoever had it.
  static Result<Duration> RunAll(std::vector<Child>& children, uint64_t steps);

  pid_t pid() const { return process_.pid(); }
  // Asks it to end and waits; kills it when it does not, or when it had an error.
  void Quit();

 private:
  Child(Process process, Lines lines, std::string name, std::string log_path)
      : process_(std::move(process)),
        lines_(std::move(lines)),
        name_(std::move(name)),
        log_path_(std::move(log_path)) {}
  Result<Span> Answer();
  Status Explain(const Status& why);

  Process process_;
  Lines lines_;
  std::string name_;
  std::string log_path_;
  bool in_doubt_ = false;  // a question has no answer, or a bad one
};

// The last lines of a log, for an error's text.
std::string TailOf(const std::string& path);

// The child's side: connects to `path` and answers each "steps N" by what `run(N)` says, until "quit".
// Returns the exit code.
int Serve(const std::string& path, const std::function<Result<Span>(uint64_t)>& run);

}  // namespace everstep::bench
