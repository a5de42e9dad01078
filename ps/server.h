// One everstep-ps process: a listener, one replica, and on the coordinating server the coordinator too. Any server that
// can reach the configuration record may take office when the coordinator is gone (ps/server_office.cc). Everything
// lives on one Loop; sums and updates run beside it (ps/replica_host.h), the configuration record too
// (ps/coordinator_host.h).
//
// Messages come in on any connection, are decoded once and go to the core they are for; what a core sends to its own
// process's other core never touches a socket.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "base/loop.h"
#include "discovery/registration.h"
#include "ps/checkpoint_host.h"
#include "ps/coordinator_host.h"
#include "ps/replica_host.h"
#include "schema/peer.h"
#include "transport/registry.h"

namespace everstep {

class Server {
 public:
  struct Options {
    std::string name;  // for people; empty: "psN" by order of joining
    std::string listen = "tcp://127.0.0.1:0";
    std::string advertise;                        // what others connect to; empty: the listener's address
    bool insecure = false;                        // allow an address that other hosts can reach
    std::optional<JobSpec> job;                   // set: this server coordinates
    std::string join;                             // otherwise: the coordinator's address
    Duration timeout = std::chrono::seconds(30);  // to find the coordinator
    std::string state_folder;                     // configuration record in a file
    std::string etcd;                             // ... or in etcd, at these URLs; neither: in memory
    bool shared_memory = true;                    // with processes of this host
    bool allow_fresh = false;                     // start anew although a record or broken checkpoints exist
    CheckpointOptions checkpoints;
    std::string records_path;  // commit records
    std::string report_path;   // JSON at the end
    bool progress = true;
  };

  // Listens and, if it does not coordinate, begins to look for the coordinator. kInvalidArgument, kUnauthorized (an
  // address beyond loopback without `insecure`), kUnavailable (address taken).
  static Result<std::unique_ptr<Server>> Start(Loop& loop, Options options);
  ~Server();

  const std::string& address() const { return address_; }
  // Asks for an orderly end: the server is emptied first and then ends; one that coordinates hands its office over, or
  // fails the job when nobody could take it. Asked again, it just stops. Loop thread.
  void RequestStop();
  // How it ended, once the loop was stopped by this server.
  const Status& outcome() const { return outcome_; }
  // Before the loop runs: called on the loop when the server has ended by itself.
  void OnEnd(std::function<void()> on_end) { on_end_ = std::move(on_end); }

 private:
  static constexpr PeerId kLocalPeer{1};  // the process's own other core

  class Peer;
  struct Local {
    bool to_coordinator = false;
    Envelope envelope;
    Buffer payload;
  };

  Server(Loop& loop, Options options);
  Status Listen();
  Status StartCoordinator();
  void ServeAnew();

  // server_start.cc: what the coordinator begins with, and its record.
  bool KeepsRecord() const { return !options_.state_folder.empty() || !options_.etcd.empty(); }
  std::string JobName() const {
    return replica_->core().job_spec() ? replica_->core().job_spec()->name : options_.job->name;
  }
  Result<std::unique_ptr<ConfigRecord>> OpenRecord(const std::string& job_name) const;
  // With etcd: whether this server is the job's first coordinator, else where that is.
  Result<bool> ClaimOffice();
  void Register();
  void Unregister();
  // `found`: what the record holds.
  Result<CoordinatorHost::Options> PrepareJob(ConfigRecord& record, const std::optional<Configuration>& found);
  Result<CoordinatorHost::Options> HostOptions(Coordinator::Options core) const;

  // server_office.cc
  void LoseCoordinator(Time now, const std::string& why);
  void Seek(Time now, Duration in);
  void ConnectToCoordinator();
  std::string NextCandidate();
  void Follow(Time now, const NotCoordinator& m);
  void WatchCoordinator(Time now);
  void MaybeTakeOffice(Time now);
  std::optional<Duration> OfficeDelay() const;
  void Consider(Time now, const Result<std::optional<Configuration>>& record);
  Status TakeOffice(Time now, Configuration found);
  void StandDown(Time now);
  void HandOver(Time now);
  bool HoldsQuestion(Time now, PeerId from, const Envelope& envelope);
  void AnswerHeld(Time now);

  void OnFrame(Peer& peer, transport::Received received);
  void OnClosed(Peer& peer, const Status& why);
  void Dispatch(Time now, PeerId from, const Envelope& envelope, Buffer payload);
  void AnswerStatus(PeerId to, const Envelope& request);
  void Refuse(Peer& peer, const Status& why);
  // Moves everything that the cores have produced, until they have nothing more to say.
  void Pump();
  void Deliver(bool from_coordinator, Outgoing message);
  Status OpenPeer(PeerId id, const std::string& address);
  void ClosePeer(PeerId id);
  // ... and the replica learns it.
  void DropPeer(Time now, PeerId id);
  void DropAllPeers(Time now);
  void SendTo(PeerId id, const Envelope& envelope);
  void Arm(Time now);
  void CheckEnd(Time now);
  void CheckEndOfCoordinator(Time now);
  void FailJob(Time now, const Status& why);
  void End(Status outcome);

  Loop& loop_;
  const Options options_;
  std::string address_;
  std::unique_ptr<transport::Context> context_;
  std::unique_ptr<transport::Listener> listener_;
  std::map<PeerId, std::unique_ptr<Peer>> peers_;
  std::vector<std::unique_ptr<Peer>> closing_;
  uint64_t next_peer_ = kLocalPeer.value + 1;
  PeerId coordinator_link_;
  std::string coordinator_address_;  // at the other end of that link, or of the last one
  Time coordinator_lost_ = Time::Never();
  Duration backoff_{0};
  std::optional<Loop::TimerId> seek_;
  std::string first_;  // the coordinator that etcd named when this server started
  std::string hint_;   // where somebody said that the coordinator is
  size_t next_candidate_ = 0;
  std::set<std::string> unreachable_;  // since the coordinator was lost
  Time office_at_;                     // not before this is taking office tried again
  Time watch_at_;
  bool reading_record_ = false;
  bool standing_down_ = false;
  bool kept_records_ = false;           // this process has written to its records file before
  std::optional<Configuration> found_;  // at the start: this server's earlier life coordinated
  bool stopping_ = false;
  Time stop_by_ = Time::Never();
  std::unique_ptr<ReplicaHost> replica_;
  std::unique_ptr<CoordinatorHost> coordinator_;
  std::deque<Local> local_;
  struct Held {
    Envelope hello;
    Time since;
  };
  std::map<PeerId, Held> held_;  // workers that ask for the coordinator while nobody knows
  bool pumping_ = false;
  std::optional<Loop::TimerId> timer_;
  Status outcome_;
  bool ended_ = false;
  Time finished_at_ = Time::Never();
  std::function<void()> on_end_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::shared_ptr<Registration> registration_;  // in etcd, while this server coordinates
  std::unique_ptr<LoopThread> disk_;            // reads of the record; last: ends first
};

}  // namespace everstep
