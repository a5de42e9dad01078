#include "ps/server.h"

#include <algorithm>

#include "base/file.h"
#include "base/log.h"
#include "base/random.h"
#include "ps/probe.h"
#include "ps/report.h"
#include "schema/codec.h"
#include "transport/shared_memory.h"

namespace everstep {
namespace {

constexpr Duration kConnectDeadline = std::chrono::seconds(2);
// While the coordinator is looked for, or might fall silent, it is a matter of tenths of a second.
constexpr Duration kWatchEvery = std::chrono::milliseconds(50);
// At the start, for the servers of an earlier life to say that they still hold the job.
constexpr Duration kProbePatience = std::chrono::seconds(2);

bool IsForReplica(const Body& body) {
  return std::holds_alternative<Push>(body) || std::holds_alternative<Pull>(body) ||
         std::holds_alternative<Welcome>(body) || std::holds_alternative<Refused>(body) ||
         std::holds_alternative<Promise>(body) || std::holds_alternative<SealStep>(body) ||
         std::holds_alternative<Commit>(body) || std::holds_alternative<Finish>(body) ||
         std::holds_alternative<JobFailed>(body) || std::holds_alternative<HeartbeatAck>(body) ||
         std::holds_alternative<Snapshot>(body) || std::holds_alternative<ReplicateSum>(body) ||
         std::holds_alternative<WantSums>(body) || std::holds_alternative<ReceiveChunks>(body) ||
         std::holds_alternative<WantChunks>(body) || std::holds_alternative<History>(body) ||
         std::holds_alternative<ChunkState>(body) || std::holds_alternative<Drained>(body) ||
         std::holds_alternative<ControlReply>(body);
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
  *alive_ = false;
  if (timer_) loop_.Cancel(*timer_);
  if (seek_) loop_.Cancel(*seek_);
  peers_.clear();
  closing_.clear();
}

Result<std::unique_ptr<Server>> Server::Start(Loop& loop, Options options) {
  std::unique_ptr<Server> server(new Server(loop, std::move(options)));
  EVERSTEP_RETURN_IF_ERROR(server->Listen());
  server->ServeAnew();
  if (server->options_.job) EVERSTEP_RETURN_IF_ERROR(server->StartCoordinator());
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
  context_ = transport::MakeContext(loop_, {options_.shared_memory});
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

// A new life of the replica: empty, and in no map.
void Server::ServeAnew() {
  Replica::Options replica{{EntropyU64()}, options_.name, address_, KeepsRecord()};
  replica_ = std::make_unique<ReplicaHost>(
      loop_, std::move(replica), options_.checkpoints,
      options_.shared_memory ? transport::SharedAllocator() : BufferPool::Allocator(), [this] { Pump(); });
}

Status Server::StartCoordinator() {
  std::unique_ptr<ConfigRecord> record = MakeMemoryRecord();
  std::optional<Configuration> found;
  if (KeepsRecord()) {
    EVERSTEP_ASSIGN(record, OpenRecord(options_.job->name));
    EVERSTEP_ASSIGN(found, record->Read());
    if (found && !options_.allow_fresh) {
      // Whoever was at this address is gone, and this process holds nothing; others may still have copies of
      // everything.
      Configuration others = *found;
      std::erase_if(others.map.servers, [&](const ServerEntry& server) { return server.address == address_; });
      std::set<ServerId> gone = ServersThatAreGone(others, kProbePatience);
      for (const ServerEntry& server : found->map.servers) {
        if (server.address == address_) gone.insert(server.id);
      }
      if (WithoutServers(found->map, gone)) {
        if (found->holder_address == address_) return TakeOffice(SteadyNow(), *found);
        hint_ = found->holder_address;
        found_ = std::move(found);
        return Status::Ok();
      }
    }
  }
  EVERSTEP_ASSIGN(const bool first, ClaimOffice());
  if (!first) return Status::Ok();
  EVERSTEP_ASSIGN(CoordinatorHost::Options host, PrepareJob(*record, found));
  coordinator_ = std::make_unique<CoordinatorHost>(loop_, std::move(host), std::move(record), [this] { Pump(); });
  kept_records_ = true;
  Register();
  return coordinator_->status();
}

// ---- Links ----

void Server::OnFrame(Peer& peer, transport::Received received) {
  const Result<Envelope> envelope = Decode(received.header);
  if (!envelope.ok()) return Refuse(peer, envelope.status());
  const Time now = SteadyNow();
  if (const auto* m = std::get_if<NotCoordinator>(&envelope->body)) {
    if (peer.id() == coordinator_link_) Follow(now, *m);
    return;
  }
  Dispatch(now, peer.id(), *envelope, std::move(received.payload));
  if (peer.id() == coordinator_link_ && replica_->core().welcomed()) {
    coordinator_lost_ = Time::Never();
    backoff_ = Duration{0};
    unreachable_.clear();
    AnswerHeld(now);
  }
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
  held_.erase(id);
  replica_->core().OnClosed(now, id);
  if (coordinator_) coordinator_->core().OnClosed(now, id);
  if (id == coordinator_link_) LoseCoordinator(now, why.ToString());
  loop_.Post([this] { closing_.clear(); });
  Pump();
}

// ---- Messages ----

void Server::Dispatch(Time now, PeerId from, const Envelope& envelope, Buffer payload) {
  if (std::holds_alternative<StatusRequest>(envelope.body)) return AnswerStatus(from, envelope);
  if (IsForReplica(envelope.body)) return replica_->core().OnMessage(now, from, envelope, std::move(payload));
  if (coordinator_) return coordinator_->core().OnMessage(now, from, envelope);
  const bool asks = std::holds_alternative<Hello>(envelope.body) || std::holds_alternative<Heartbeat>(envelope.body) ||
                    std::holds_alternative<Ready>(envelope.body) || std::holds_alternative<Leave>(envelope.body) ||
                    std::holds_alternative<ControlRequest>(envelope.body);
  if (!asks) return;
  const bool known = coordinator_link_ != PeerId{} && replica_->core().welcomed();
  if (!known && HoldsQuestion(SteadyNow(), from, envelope)) return;
  SendTo(from, {envelope.job, {}, NotCoordinator{known ? coordinator_address_ : ""}});
}

void Server::SendTo(PeerId id, const Envelope& envelope) {
  const auto it = peers_.find(id);
  if (it != peers_.end() && it->second->connection) (void)it->second->connection->Send({Encode(envelope), {}});
}

// A link to another server. Who cannot be reached is reported as closed later.
Status Server::OpenPeer(PeerId id, const std::string& address) {
  auto& peer = peers_[id] = std::make_unique<Peer>(*this, id);
  auto connected = context_->Connect(address, peer.get(), kConnectDeadline);
  if (connected.ok()) {
    peer->connection = *connected;
  } else {
    peers_.erase(id);
  }
  return connected.status();
}

void Server::ClosePeer(PeerId id) {
  auto node = peers_.extract(id);
  if (node.empty()) return;
  if (node.mapped()->connection) node.mapped()->connection->Close();
  closing_.push_back(std::move(node.mapped()));
  loop_.Post([this] { closing_.clear(); });
}

void Server::DropPeer(Time now, PeerId id) {
  replica_->core().OnClosed(now, id);
  ClosePeer(id);
}

void Server::DropAllPeers(Time now) {
  while (!peers_.empty()) DropPeer(now, peers_.begin()->first);
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
    for (const Replica::Opening& opening : replica_->core().TakeOpenings()) {
      if (!OpenPeer(opening.peer, opening.address).ok()) replica_->core().OnClosed(now, opening.peer);
    }
    for (PeerId id : replica_->core().TakeClosings()) ClosePeer(id);
    for (Outgoing& message : replica_->core().TakeOutbox()) Deliver(false, std::move(message));
    if (coordinator_) {
      coordinator_->Collect(now);
      for (Outgoing& message : coordinator_->core().TakeOutbox()) Deliver(true, std::move(message));
      for (PeerId id : coordinator_->core().TakeClosings()) {
        DropPeer(now, id);
      }
    }
    while (!local_.empty()) {
      more = true;
      Local local = std::move(local_.front());
      local_.pop_front();
      if (local.to_coordinator && !coordinator_) continue;
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
  // A moment, not a distance: however often this is called, the watch is kept.
  if (!coordinator_) next = std::min(next, watch_at_);
  if (timer_) loop_.Cancel(*timer_);
  timer_ = loop_.At(next, [this] {
    timer_.reset();
    const Time due = SteadyNow();
    if (coordinator_) coordinator_->core().OnTick(due);
    replica_->core().OnTick(due);
    if (due >= watch_at_) {
      watch_at_ = due + kWatchEvery;
      WatchCoordinator(due);
    }
    Pump();
  });
}

// ---- The end ----

void Server::CheckEndOfCoordinator(Time now) {
  const Coordinator& core = coordinator_->core();
  if (standing_down_) return;
  if (core.Done(now)) {
    if (core.state() != Coordinator::State::kDeposed) return End(core.failure() ? *core.failure() : Status::Ok());
    standing_down_ = true;
    loop_.Post([this] { StandDown(SteadyNow()); });
    return;
  }
  const bool over = core.state() == Coordinator::State::kFinished || core.state() == Coordinator::State::kFailed;
  const Replica& replica = replica_->core();
  if (over) return;
  if (replica.drained()) {
    standing_down_ = true;
    loop_.Post([this] { HandOver(SteadyNow()); });
    return;
  }
  if (!stopping_) return;
  if (replica.drain_refused())
    return FailJob(now, replica.drain_refused()->With("it was to stop and cannot hand over"));
  if (now > stop_by_) FailJob(now, {Code::kCancelled, "it was to stop and could not be emptied in time"});
}

void Server::CheckEnd(Time now) {
  if (coordinator_) return CheckEndOfCoordinator(now);
  Replica& core = replica_->core();
  if (core.finished() && finished_at_ == Time::Never()) finished_at_ = now;
  if (core.drained()) {
    log::Info("this server holds nothing any more; it ends");
    return End(Status::Ok());
  }
  if (stopping_ && core.drain_refused()) return End(core.drain_refused()->With("stopped on request, without draining"));
  // Without a coordinator nobody will empty it.
  if (stopping_ && coordinator_lost_ != Time::Never() && now - coordinator_lost_ > core.job_spec()->lease()) {
    return End({Code::kCancelled, "stopped on request; nobody coordinates"});
  }
  if (stopping_ && now > stop_by_)
    return End({Code::kCancelled, "stopped on request; it could not be emptied in time"});
  if (core.failure() && core.failure()->code() == Code::kFenced) {
    if (stopping_) return End(Status::Ok());
    if (standing_down_) return;
    standing_down_ = true;
    log::Warning(core.failure()->message() + "; serving anew, as a new life");
    loop_.Post([this] {
      standing_down_ = false;
      DropAllPeers(SteadyNow());
      coordinator_link_ = {};
      hint_ = coordinator_address_;
      ServeAnew();
      if (coordinator_lost_ == Time::Never()) coordinator_lost_ = SteadyNow();
      Seek(SteadyNow(), Duration{0});
    });
    return;
  }
  if (core.failure()) return End(*core.failure());
  // The coordinating server stays until every worker has fetched the result; its going is the sign to go.
  if (core.finished() && coordinator_link_ == PeerId{}) return End(Status::Ok());
  const Duration patience = core.job_spec() ? core.job_spec()->timeout : options_.timeout;
  if (!core.finished() && coordinator_lost_ != Time::Never() && now - coordinator_lost_ > patience) {
    End({Code::kUnavailable, "no coordinator at " + (options_.join.empty() ? coordinator_address_ : options_.join) +
                                 " for " + std::to_string(static_cast<int>(Seconds(patience))) +
                                 " s; is the first everstep-ps running, and is --join its address?"});
  }
}

void Server::RequestStop() {
  const Time now = SteadyNow();
  Replica& core = replica_->core();
  if (stopping_ || !core.welcomed() || core.finished()) {
    // Asked again, a coordinator ends as if it had been killed: whoever can takes office.
    if (coordinator_ && !stopping_) return FailJob(now, Status::Ok());
    return End({Code::kCancelled, "stopped on request"});
  }
  log::Info("asked to stop; what this server holds goes to the others first");
  stopping_ = true;
  stop_by_ = now + core.job_spec()->progress_deadline();
  core.Drain(now);
  Pump();
}

// `why` it could not go on without this server.
void Server::FailJob(Time now, const Status& why) {
  stopping_ = false;
  const std::string detail = why.ok() ? "" : ": " + why.message();
  coordinator_->core().Fail(now, {Code::kCancelled, "the coordinating server was stopped on request" + detail});
  Pump();
  End({Code::kCancelled, "stopped on request" + detail});
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
