// Asks servers how a job is doing, and tells them what an operator wants, as an observer: never counted as a member.
// One connection at a time, kept between questions and opened anew when it breaks; one background thread. Belongs to
// one thread.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/status.h"
#include "schema/messages.h"
#include "transport/transport.h"

namespace everstep::ctl {

class StatusClient {
 public:
  // Addresses of a job's servers; the one that coordinates knows the most and is preferred. REQUIRES: not empty.
  explicit StatusClient(std::vector<std::string> servers);
  ~StatusClient();

  // The status as JSON (docs/reports.md). Tries the servers in turn, starting with the one that answered last.
  // kInvalidArgument for an address that makes no sense, kUnavailable or kDeadlineExceeded when none answers.
  Result<std::string> Ask(Duration patience);

  // One more address to ask, e.g. of a status.
  void Know(const std::string& server);

  // Asks the coordinator to empty the server of that name; returns once it has agreed. Its refusal otherwise.
  Status Drain(const std::string& server, Duration patience);

 private:
  class Link;
  Result<std::string> AskServer(const std::string& address, const Body& question, Duration patience);

  std::vector<std::string> servers_;
  size_t preferred_ = 0;
  std::unique_ptr<transport::Context> context_;  // made, used and destroyed on the loop
  std::unique_ptr<Link> link_;
  LoopThread thread_;
};

}  // namespace everstep::ctl
