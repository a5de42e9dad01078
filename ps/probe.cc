#include "ps/probe.h"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "base/loop.h"
#include "schema/codec.h"
#include "transport/registry.h"

namespace everstep {
namespace {

// What is known of one server. The loop's thread writes, the asking one waits.
struct Board {
  std::mutex mutex;
  std::condition_variable changed;
  std::set<ServerId> gone;
  size_t open = 0;  // questions without an answer
};

// Asks for a chunk that no model has: who holds the job says so, and a server without it refuses for another reason.
class Question : public transport::ConnectionHandler {
 public:
  Question(Board& board, JobUid job, ServerId server) : board_(board), job_(job), server_(server) {}
  ~Question() override {
    if (connection_) connection_->Close();
  }

  void Ask(transport::Context& context, const std::string& address, Duration patience) {
    // Longer than anybody waits: what closes while somebody does was refused or has broken, and is no mere silence.
    auto connected = context.Connect(address, this, patience * 2);
    if (!connected.ok()) return Answer(false);  // an address that makes no sense, or no descriptor left
    connection_ = *connected;
    const Pull pull{{}, {1}, true, {{UINT32_MAX}}, {}};
    (void)connection_->Send({Encode({job_, {}, pull}), {}});
  }

 private:
  void OnFrame(transport::Connection&, transport::Received received) override {
    const Result<Envelope> envelope = Decode(received.header);
    const auto* refused = envelope.ok() ? std::get_if<PullRefused>(&envelope->body) : nullptr;
    Answer(refused != nullptr && (refused->code == Code::kWrongJob || refused->code == Code::kUnavailable));
  }
  void OnClosed(transport::Connection&, const Status&) override {
    connection_.reset();
    Answer(true);
  }
  void Answer(bool gone) {
    std::lock_guard lock(board_.mutex);
    if (std::exchange(answered_, true)) return;
    if (gone) board_.gone.insert(server_);
    --board_.open;
    board_.changed.notify_all();
  }

  Board& board_;
  const JobUid job_;
  const ServerId server_;
  std::shared_ptr<transport::Connection> connection_;
  bool answered_ = false;
};

}  // namespace

std::set<ServerId> ServersThatAreGone(const Configuration& record, Duration patience) {
  Board board;
  std::vector<std::unique_ptr<Question>> questions;
  std::unique_ptr<transport::Context> context;
  LoopThread thread;
  board.open = record.map.servers.size();
  thread.Call([&] {
    context = transport::MakeContext(thread.loop());
    for (const ServerEntry& server : record.map.servers) {
      questions.push_back(std::make_unique<Question>(board, record.job, server.id));
      questions.back()->Ask(*context, server.address, patience);
    }
  });
  {
    std::unique_lock lock(board.mutex);
    board.changed.wait_for(lock, patience, [&] { return board.open == 0; });
  }
  thread.Call([&] {
    questions.clear();
    context.reset();
  });
  return board.gone;
}

}  // namespace everstep
