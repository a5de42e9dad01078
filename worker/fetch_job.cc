#include "worker/fetch_job.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "base/loop.h"
#include "schema/codec.h"
#include "transport/registry.h"

namespace everstep {
namespace {

// One question on one connection; the answer arrives on the loop's thread.
class Question : public transport::ConnectionHandler {
 public:
  void OnFrame(transport::Connection&, transport::Received received) override {
    const Result<Envelope> envelope = Decode(received.header);
    if (!envelope.ok()) return Answer(envelope.status());
    if (const auto* welcome = std::get_if<Welcome>(&envelope->body)) return Answer(welcome->job);
    if (std::holds_alternative<NotCoordinator>(envelope->body))
      return Answer(Status(Code::kUnavailable, "it does not coordinate"));
    if (const auto* refused = std::get_if<Refused>(&envelope->body))
      return Answer(Status(refused->code, refused->message));
  }
  void OnClosed(transport::Connection&, const Status& why) override {
    Answer(why.ok() ? Status(Code::kUnavailable, "it closed the connection") : why);
  }

  std::optional<Result<JobSpec>> Wait(Duration patience) {
    std::unique_lock lock(mutex_);
    answered_.wait_for(lock, patience, [&] { return answer_.has_value(); });
    return answer_;
  }

 private:
  void Answer(Result<JobSpec> answer) {
    std::lock_guard lock(mutex_);
    if (!answer_) answer_ = std::move(answer);
    answered_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable answered_;
  std::optional<Result<JobSpec>> answer_;
};

Result<JobSpec> AskOnce(Loop& loop, LoopThread& thread, const std::string& address, Duration patience) {
  Question question;
  std::unique_ptr<transport::Context> context;
  std::shared_ptr<transport::Connection> connection;
  Status problem;
  thread.Call([&] {
    context = transport::MakeContext(loop);
    auto connected = context->Connect(address, &question, patience);
    if (!connected.ok()) {
      problem = connected.status();
      return;
    }
    connection = *connected;
    Hello hello;
    hello.role = PeerRole::kObserver;
    hello.name = "observer";
    problem = connection->Send({Encode({{}, {}, hello}), {}});
  });
  std::optional<Result<JobSpec>> answer;
  if (problem.ok()) answer = question.Wait(patience);
  thread.Call([&] {
    if (connection) connection->Close();
    connection.reset();
    context.reset();
  });
  if (!problem.ok()) return problem;
  if (!answer) return Status(Code::kDeadlineExceeded, "no answer from " + address);
  return *answer;
}

}  // namespace

Result<JobSpec> FetchJob(const std::vector<std::string>& servers, Duration timeout) {
  if (servers.empty()) return Status(Code::kInvalidArgument, "no server's address was given");
  LoopThread thread;
  const Time deadline = SteadyNow() + timeout;
  Status last;
  for (size_t i = 0;; ++i) {
    const std::string& address = servers[i % servers.size()];
    Result<JobSpec> answer =
        AskOnce(thread.loop(), thread, address, std::min<Duration>(timeout, std::chrono::seconds(2)));
    if (answer.ok()) return answer;
    last = answer.status();
    const bool again = RecoveryFor(last.code()) == Recovery::kRetry || last.code() == Code::kDeadlineExceeded;
    if (!again || SteadyNow() >= deadline) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return last.With("asking for the job");
}

}  // namespace everstep
