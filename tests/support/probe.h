// A stranger who speaks the protocol by hand: one connection to one server, on a thread of its own. Anything can be
// sent, sensible or not; what comes back is kept until it is asked for. Belongs to one thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/loop.h"
#include "schema/codec.h"
#include "transport/registry.h"

namespace everstep::test {

class Probe : private transport::ConnectionHandler {
 public:
  // Begins to connect; failure shows as a closed connection.
  explicit Probe(const std::string& address);
  ~Probe() override;

  void Send(const Envelope& envelope, Buffer payload = {}) { SendBytes(Encode(envelope), std::move(payload)); }
  // As a frame, whatever it holds.
  void SendBytes(Buffer header, Buffer payload = {});

  // The next message; kDeadlineExceeded when none came in time, the reason of the end when the connection is over.
  Result<Envelope> Receive(Duration patience);
  // The next message of this kind; others are passed over.
  template <typename Kind>
  Result<Kind> Expect(Duration patience) {
    const Time deadline = SteadyNow() + patience;
    while (true) {
      Result<Envelope> next = Receive(deadline - SteadyNow());
      if (!next.ok()) return next.status();
      if (auto* kind = std::get_if<Kind>(&next->body)) return std::move(*kind);
    }
  }
  // Waits for the other side to end the connection.
  bool WaitClosed(Duration patience);

  // As an observer: the job's uid, for messages that shall look real.
  static Result<JobUid> FindJob(const std::string& address, Duration patience);

 private:
  void OnFrame(transport::Connection&, transport::Received received) override;
  void OnClosed(transport::Connection&, const Status& why) override;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Result<Envelope>> inbox_;
  std::optional<Status> closed_;
  std::unique_ptr<transport::Context> context_;        // loop thread
  std::shared_ptr<transport::Connection> connection_;  // loop thread
  LoopThread io_;
};

}  // namespace everstep::test
