#include "ps/server.h"

#include <algorithm>

#include "base/file.h"
#include "base/log.h"
#include "base/random.h"
#include "ps/report.h"
#include "schema/codec.h"

namespace everstep {
namespace {

constexpr PeerId kLocalPeer{1};
constexpr Duration kFirstBackoff = std::chrono::milliseconds(20);
constexpr Duration kLongestBackoff = std::chrono::seconds(1);

bool IsForReplica(const Body& body) {
  return std::holds_alternative<Push>(body) || std::holds_alternative<Pull>(body) ||
         std::holds_alternative<Welcome>(body) || std::holds_alternative<Refused>(body) ||
         std::holds_alternative<Promise>(body) || std::holds_alternative<SealStep>(body) ||
         std::holds_alternative<Commit>(body) || std::holds_alternative<Finish>(body) ||
         std::holds_alternative<JobFailed>(body) || std::holds_alternative<HeartbeatAck>(body) ||
         std::holds_alternative<Snapshot>(body);
}

}  // namespace

// One connection and who is behind it.
class Server::Peer : public transport::ConnectionHandler {
 public:
  Peer(Server& server, PeerId id) : server_(server), id_(id) {}
  ~Peer() override {
    if (connection) connection->Close();
  }

  PeerId id() const { return id_; }
  std::shared_ptr<transport::Connection> connection;

 private:
  void OnFrame(transport::Connection&, transport::Received received) override {
    server_.OnFrame(*this, std::move(received));
  }
  void OnClosed(transport::Connection&, const Status& why) override {
    connection.reset();
    server_.OnClosed(*this, why);
  }

  Server& server_;
  const PeerId id_;
};

Server::Server(Loop& loop, Options options) : loop_(loop), options_(std::move(options)) {}

Server::~Server() {
  if (timer_) loop_.Cancel(*timer_);
  peers_.clear();
  closing_.clear();
}

Result<std::unique_ptr<Server>> Server::Start(Loop& loop, Options options) {
  std::unique_ptr<Server> server(new Server(loop, std::move(options)));
  EVERSTEP_RETURN_IF_ERROR(server->Listen());
  if (server->options_.job) EVERSTEP_RETURN_IF_ERROR(server->StartCoordinator());
  Replica::Options replica{{EntropyU64()}, server->options_.name, server->address_};
  server->replica_ = std::make_unique<ReplicaHost>(loop, std::move(replica), server->options_.checkpoints,
                                                   [raw = server.get()] { raw->Pump(); });
  loop.Post([raw = server.get()] {
    if (raw->coordinator_) {
      raw->replica_->core().OnCoordinatorLink(SteadyNow(), kLocalPeer);
    } else {
      raw->coordinator_lost_ = SteadyNow();
      raw->ConnectToCoordinator();
    }
    raw->Pump();
  });
  return server;
}

Status Server::Listen() {
  EVERSTEP_RETURN_IF_ERROR(transport::ParseAddress(options_.listen).status());
  if (!transport::IsLocalOnly(options_.listen) && !options_.insecure) {
    return {Code::kUnauthorized,
            "other hosts could reach " + options_.listen +
                ", and connections are neither encrypted nor authenticated; listen on 127.0.0.1 or give --insecure"};
  }
  context_ = transport::MakeContext(loop_);
  EVERSTEP_ASSIGN(listener_,
                  context_->Listen(options_.listen, [this](std::shared_ptr<transport::Connection> connection) {
                    const PeerId id{next_peer_++};
                    auto& peer = peers_[id] = std::make_unique<Peer>(*this, id);
                    peer->connection = std::move(connection);
                    return peer.get();
                  }));
  address_ = options_.advertise.empty() ? listener_->address() : options_.advertise;
  return Status::Ok();
}

Status Server::StartCoordinator() {
  std::unique_ptr<ConfigRecord> record = MakeMemoryRecord();
  EVERSTEP_ASSIGN(CoordinatorHost::Options host, PrepareJob(&record));
  coordinator_ = std::make_unique<CoordinatorHost>(loop_, std::move(host), std::move(record), [this] { Pump(); });
  return coordinator_->status();
}

// ---- Links ----

void Server::ConnectToCoordinator() {
  if (ended_ || coordinator_link_ != PeerId{}) return;
  const PeerId id{next_peer_++};
  auto& peer = peers_[id] = std::make_unique<Peer>(*this, id);
  auto connected = context_->Connect(options_.join, peer.get(), std::chrono::seconds(2));
  if (!connected.ok()) {
    peers_.erase(id);
    return End(connected.status());
  }
  peer->connection = *connected;
  coordinator_link_ = id;
  replica_->core().OnCoordinatorLink(SteadyNow(), id);
  Pump();
}

void Server::OnFrame(Peer& peer, transport::Received received) {
  const Result<Envelope> envelope = Decode(received.header);
  if (!envelope.ok()) return Refuse(peer, envelope.status());
  if (peer.id() == coordinator_link_) {
    coordinator_lost_ = Time::Never();
    backoff_ = Duration{0};
  }
  Dispatch(SteadyNow(), peer.id(), *envelope, std::move(received.payload));
  Pump();
}

// Bytes that make no sense end their connection, after a word to whoever can read it.
void Server::Refuse(Peer& peer, const Status& why) {
  log::Warning("from " + peer.connection->peer() + ": " + why.ToString());
  const Envelope answer{coordinator_ ? coordinator_->core().job() : JobUid{}, {}, Refused{why.code(), why.message()}};
  (void)peer.connection->Send({Encode(answer), {}});
  const PeerId id = peer.id();
  loop_.Post([this, id] {
    if (const auto it = peers_.find(id); it != peers_.end()) {
      it->second->connection.reset();
      OnClosed(*it->second, {Code::kCorrupt, "it sent what makes no sense"});
    }
  });
  peer.connection->Close();
}

void Server::OnClosed(Peer& peer, const Status& why) {
  const Time now = SteadyNow();
  const PeerId id = peer.id();
  if (auto node = peers_.extract(id); !node.empty()) closing_.push_back(std::move(node.mapped()));
  replica_->core().OnClosed(now, id);
  if (coordinator_) coordinator_->core().OnClosed(now, id);
  if (id == coordinator_link_) {
    coordinator_link_ = {};
    if (coordinator_lost_ == Time::Never()) {
      coordinator_lost_ = now;
      log::Warning("the coordinator's link was lost: " + why.ToString());
    }
    backoff_ = std::min<Duration>(kLongestBackoff, backoff_ == Duration{0} ? kFirstBackoff : backoff_ * 2);
    if (!replica_->core().finished()) loop_.At(now + backoff_, [this] { ConnectToCoordinator(); });
  }
  loop_.Post([this] { closing_.clear(); });
  Pump();
}

// ---- Messages ----

void Server::Dispatch(Time now, PeerId from, const Envelope& envelope, Buffer payload) {
  if (std::holds_alternative<StatusRequest>(envelope.body)) return AnswerStatus(from, envelope);
  if (IsForReplica(envelope.body)) return replica_->core().OnMessage(now, from, envelope, std::move(payload));
  if (coordinator_) return coordinator_->core().OnMessage(now, from, envelope);
  if (std::holds_alternative<Hello>(envelope.body)) {
    const Refused answer{Code::kUnavailable, "this server does not coordinate; the coordinator is at " + options_.join};
    if (const auto it = peers_.find(from); it != peers_.end()) {
      (void)it->second->connection->Send({Encode({envelope.job, {}, answer}), {}});
    }
  }
}

void Server::AnswerStatus(PeerId to, const Envelope& request) {
  const auto it = peers_.find(to);
  if (it == peers_.end() || !it->second->connection) return;
  const std::string json = coordinator_ ? StatusJson(SteadyNow(), coordinator_->core(), coordinator_->history(),
                                                     replica_->core(), context_->counters())
                                        : StatusJson(replica_->core(), context_->counters());
  (void)it->second->connection->Send({Encode({request.job, {}, StatusReply{json}}), {}});
}

void Server::Deliver(bool from_coordinator, Outgoing message) {
  if (message.to == kLocalPeer) {
    local_.push_back({!from_coordinator, std::move(message.envelope), std::move(message.payload)});
    return;
  }
  const auto it = peers_.find(message.to);
  if (it == peers_.end() || !it->second->connection) return;
  const Status sent = it->second->connection->Send({Encode(message.envelope), std::move(message.payload)});
  if (!sent.ok()) log::Debug("to " + it->second->connection->peer() + ": " + sent.ToString());
}

void Server::Pump() {
  if (pumping_ || ended_) return;
  pumping_ = true;
  const Time now = SteadyNow();
  bool more = true;
  while (more) {
    more = false;
    replica_->RunWork();
    for (Outgoing& message : replica_->core().TakeOutbox()) Deliver(false, std::move(message));
    if (coordinator_) {
      coordinator_->Collect(now);
      for (Outgoing& message : coordinator_->core().TakeOutbox()) Deliver(true, std::move(message));
      for (PeerId id : coordinator_->core().TakeClosings()) {
        if (const auto it = peers_.find(id); it != peers_.end()) {
          it->second->connection->Close();
          closing_.push_back(std::move(it->second));
          peers_.erase(it);
          loop_.Post([this] { closing_.clear(); });
        }
      }
    }
    while (!local_.empty()) {
      more = true;
      Local local = std::move(local_.front());
      local_.pop_front();
      if (local.to_coordinator) {
        coordinator_->core().OnMessage(now, kLocalPeer, local.envelope);
      } else {
        replica_->core().OnMessage(now, kLocalPeer, local.envelope, std::move(local.payload));
      }
    }
  }
  pumping_ = false;
  CheckEnd(now);
  if (!ended_) Arm(now);
}

void Server::Arm(Time now) {
  Time next = std::min(replica_->core().NextDeadline(), now + std::chrono::seconds(1));
  if (coordinator_) next = std::min(next, coordinator_->core().NextDeadline());
  if (timer_) loop_.Cancel(*timer_);
  timer_ = loop_.At(next, [this] {
    timer_.reset();
    const Time due = SteadyNow();
    if (coordinator_) coordinator_->core().OnTick(due);
    replica_->core().OnTick(due);
    Pump();
  });
}

// ---- The end ----

void Server::CheckEnd(Time now) {
  if (coordinator_) {
    Coordinator& core = coordinator_->core();
    if (!core.Done(now)) return;
    if (core.state() == Coordinator::State::kDeposed) return End({Code::kStale, "another coordinator took over"});
    return End(core.failure() ? *core.failure() : Status::Ok());
  }
  Replica& core = replica_->core();
  if (core.finished() && finished_at_ == Time::Never()) finished_at_ = now;
  if (core.failure()) return End(*core.failure());
  // The coordinating server stays until every worker has fetched the result; its going is the sign to go.
  if (core.finished() && coordinator_link_ == PeerId{}) return End(Status::Ok());
  const Duration patience = core.job_spec() ? core.job_spec()->timeout : options_.timeout;
  if (!core.finished() && coordinator_lost_ != Time::Never() && now - coordinator_lost_ > patience) {
    End({Code::kUnavailable, "no coordinator at " + options_.join + " for " +
                                 std::to_string(static_cast<int>(Seconds(patience))) +
                                 " s; is the first everstep-ps running, and is --join its address?"});
  }
}

void Server::RequestStop() {
  if (!coordinator_) return End({Code::kCancelled, "stopped on request"});
  coordinator_->core().Fail(SteadyNow(), {Code::kCancelled, "the coordinating server was stopped on request"});
  Pump();
  End({Code::kCancelled, "stopped on request"});
}

void Server::End(Status outcome) {
  if (ended_) return;
  ended_ = true;
  outcome_ = std::move(outcome);
  if (coordinator_ && !options_.report_path.empty()) {
    const Status written = WriteFileDurably(
        options_.report_path, ReportJson(SteadyNow(), coordinator_->core(), coordinator_->history()) + "\n");
    if (!written.ok()) log::Error(written.ToString());
  }
  // What was said last must still leave.
  if (on_end_) loop_.At(SteadyNow() + std::chrono::milliseconds(100), on_end_);
}

}  // namespace everstep
