#include "ctl/status_client.h"

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "ctl/json.h"
#include "schema/codec.h"
#include "transport/registry.h"

namespace everstep::ctl {

// One connection. The handler's methods run on the loop, the rest on the asking thread.
class StatusClient::Link : public transport::ConnectionHandler {
 public:
  explicit Link(std::string address) : address_(std::move(address)) {}
  const std::string& address() const { return address_; }
  std::shared_ptr<transport::Connection> connection;  // loop thread

  void Expect() {
    std::lock_guard lock(mutex_);
    answer_.reset();
  }

  std::optional<Result<std::string>> Wait(Duration patience) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, patience, [&] { return answer_ || !ended_.ok(); });
    if (answer_) return answer_;
    if (!ended_.ok()) return Result<std::string>(ended_);
    return std::nullopt;
  }

  // Where it said that the coordinator is.
  std::string known() const {
    std::lock_guard lock(mutex_);
    return known_;
  }

  bool alive() const {
    std::lock_guard lock(mutex_);
    return ended_.ok();
  }

 private:
  void OnFrame(transport::Connection&, transport::Received received) override {
    const Result<Envelope> envelope = Decode(received.header);
    if (!envelope.ok()) return Answer(envelope.status());
    if (const auto* reply = std::get_if<StatusReply>(&envelope->body)) return Answer(reply->json);
    if (const auto* reply = std::get_if<ControlReply>(&envelope->body)) {
      if (reply->code == Code::kOk) return Answer(reply->message);
      return Answer(Status(reply->code, reply->message));
    }
    if (const auto* elsewhere = std::get_if<NotCoordinator>(&envelope->body)) {
      {
        std::lock_guard lock(mutex_);
        known_ = elsewhere->address;
      }
      return Answer(Status(Code::kUnavailable, address_ + " does not coordinate"));
    }
    if (const auto* refused = std::get_if<Refused>(&envelope->body))
      return Answer(Status(refused->code, refused->message));
  }

  void OnClosed(transport::Connection&, const Status& why) override {
    std::lock_guard lock(mutex_);
    ended_ = why.ok() ? Status(Code::kUnavailable, address_ + " closed the connection") : why;
    changed_.notify_all();
  }

  void Answer(Result<std::string> answer) {
    std::lock_guard lock(mutex_);
    answer_ = std::move(answer);
    changed_.notify_all();
  }

  const std::string address_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Result<std::string>> answer_;
  Status ended_;
  std::string known_;
};

StatusClient::StatusClient(std::vector<std::string> servers) : servers_(std::move(servers)) {
  EVERSTEP_CHECK(!servers_.empty(), "whom to ask?");
  thread_.Call([this] { context_ = transport::MakeContext(thread_.loop()); });
}

StatusClient::~StatusClient() {
  thread_.Call([this] {
    if (link_ && link_->connection) link_->connection->Close();
    link_.reset();
    context_.reset();
  });
}

Result<std::string> StatusClient::AskServer(const std::string& address, const Body& question, Duration patience) {
  Status problem;
  thread_.Call([&] {
    if (!link_ || link_->address() != address || !link_->alive()) {
      if (link_ && link_->connection) link_->connection->Close();
      link_ = std::make_unique<Link>(address);
      auto connected = context_->Connect(address, link_.get(), patience);
      if (!connected.ok()) {
        problem = connected.status();
        link_.reset();
        return;
      }
      link_->connection = *connected;
    }
    link_->Expect();
    problem = link_->connection->Send({Encode({{}, {}, question}), {}});
  });
  EVERSTEP_RETURN_IF_ERROR(problem);
  auto answer = link_->Wait(patience);
  if (answer && answer->ok()) return *answer;
  const std::string known = link_->known();
  Know(known);
  // Whatever comes on this connection from now on would be mistaken for the answer to a later question.
  thread_.Call([&] {
    link_->connection->Close();
    link_.reset();
  });
  if (!answer) return Status(Code::kDeadlineExceeded, "no answer from " + address);
  return *answer;
}

Result<std::string> StatusClient::Ask(Duration patience) {
  Status failed;
  std::optional<std::string> second_best;
  for (size_t i = 0; i < servers_.size(); ++i) {
    const size_t index = (preferred_ + i) % servers_.size();
    Result<std::string> answer = AskServer(servers_[index], StatusRequest{}, patience);
    if (!answer.ok()) {
      if (failed.ok()) failed = answer.status();
      continue;
    }
    // Only the coordinating server speaks of a job.
    if (At(ParseJson(*answer), "job").is_string()) {
      preferred_ = index;
      return answer;
    }
    if (!second_best) second_best = *answer;
  }
  if (second_best) return *second_best;
  return failed;
}

void StatusClient::Know(const std::string& server) {
  if (!server.empty() && std::find(servers_.begin(), servers_.end(), server) == servers_.end())
    servers_.push_back(server);
}

Status StatusClient::Drain(const std::string& server, Duration patience) {
  Status failed;
  for (size_t i = 0; i < servers_.size(); ++i) {
    const size_t index = (preferred_ + i) % servers_.size();
    const Status answer = AskServer(servers_[index], ControlRequest{"drain", server}, patience).status();
    const bool elsewhere = answer.code() == Code::kUnavailable || answer.code() == Code::kDeadlineExceeded;
    if (!elsewhere) return answer;
    failed = answer;
  }
  return failed;
}

}  // namespace everstep::ctl
