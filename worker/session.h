// CORE. A worker's side of the protocol: join, pull one consistent version, take work, keep what was contributed until
// the next version is here, come back after a fence or a broken link (docs/protocol.md). Pure and single-threaded; the
// driver (worker/worker.cc) owns links, clock and the user's thread.
//
// The rules it stands for: parameters are handed out only when every chunk names the same (version, digest) (P10, R12);
// a contribution is kept and re-sent until its step is over (R18); whoever is fenced joins as a new life (P6); nothing
// waits without a deadline (P7).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "base/status.h"
#include "schema/job.h"
#include "schema/messages.h"
#include "schema/peer.h"

namespace everstep {

class Session {
 public:
  struct Options {
    std::vector<std::string> servers;  // where to find the job: tried in order, again and again
    std::string job_name;              // empty: whatever runs there
    std::string name;
    ParameterSpec spec;
    uint64_t dataset_size = 0;
    Duration timeout = std::chrono::seconds(30);  // until the job's own is known
    uint64_t seed = 0;                            // for the ids of this worker's lives; must differ between processes
  };

  // A link to open; its id is the PeerId that messages use. A link that cannot be opened is reported as closed.
  struct Opening {
    PeerId peer;
    std::string address;
    bool control = false;
  };

  // Work for the user: parameters of `version` (all chunks) and the samples to use. `serial` names it in later calls.
  struct StepWork {
    uint64_t serial = 0;
    Version version;
    Lease lease;
    bool initialise = false;               // contribute the model's own values: they become version 1
    bool fresh = false;                    // `parameters` must be copied into the model first
    std::map<ChunkId, Buffer> parameters;  // when fresh
  };

  // How long a driver lets an Opening try before it reports the link as closed.
  static constexpr Duration kConnectDeadline = std::chrono::seconds(2);

  Session(Time now, Options options);

  void OnMessage(Time now, PeerId from, const Envelope& envelope, Buffer payload);
  void OnClosed(Time now, PeerId peer, const Status& why);
  void OnTick(Time now);
  Time NextDeadline() const { return next_tick_; }

  // The step the user should work on now; nullopt while there is none. The same step is handed out once.
  std::optional<StepWork> TakeStep(Time now);
  // A chunk of the contribution; ignored when the step is over. The last one is sent with CommitStep.
  void PushChunk(Time now, uint64_t serial, ChunkId chunk, Buffer bytes);
  // All chunks were pushed. kStale when the step is over and the contribution will not count.
  Status CommitStep(Time now, uint64_t serial, std::vector<Metric> metrics);
  // The user will not finish this step: its samples go back (by a leave and a new life if need be).
  void AbandonStep(Time now, uint64_t serial);
  void NoteProgress(Phase phase) {
    phase_ = phase;
    ++progress_;
  }
  void ReportEvaluation(std::vector<Metric> metrics);
  // Finishes what was contributed, hands back the rest and goes. left() tells when it is done.
  void Leave(Time now, std::string reason);

  std::vector<Outgoing> TakeOutbox() { return std::exchange(outbox_, {}); }
  std::vector<Opening> TakeOpenings() { return std::exchange(openings_, {}); }
  std::vector<PeerId> TakeClosings() { return std::exchange(closings_, {}); }

  const std::optional<Status>& failure() const { return failure_; }
  bool leaving() const { return leaving_; }
  bool left() const { return left_; }
  // The job is complete and its last version is here (TakeFinal).
  bool finished() const { return finish_ && held_ >= finish_->version; }
  bool evaluate() const { return finish_ && finish_->evaluate; }
  std::map<ChunkId, Buffer> TakeFinal() { return std::exchange(arrived_, {}); }

  WorkerId id() const { return id_; }
  const std::optional<JobSpec>& job() const { return job_; }
  JobUid job_uid() const { return job_uid_; }
  const std::shared_ptr<const ChunkLayout>& layout() const { return layout_; }
  Version held() const { return held_; }

  struct Stats {
    uint64_t lives = 1;        // joins, the first included
    uint64_t links = 0;        // opened
    uint64_t contributed = 0;  // steps the user committed
    uint64_t dropped = 0;      // contributions that were refused or came too late
    uint64_t nonfinite = 0;    // of those, refused for NaN or Inf
    uint64_t repushed_chunks = 0;
    uint64_t repulls = 0;  // because the shards answered with different versions
  };
  const Stats& stats() const { return stats_; }

 private:
  struct Link {
    PeerId peer;  // {} while down
    std::string address;
    Incarnation incarnation;  // servers
    Time retry_at;
    Duration backoff{0};
    Time down_since;  // when it was last seen working
    Time opened_at;
    Time heard_at;                // last message or the opening
    Time pulled_at;               // last Pull sent
    Time ask_at = Time::Never();  // sooner than when nothing comes: the last Pull was refused for the moment
  };
  struct InFlight {
    uint64_t serial = 0;
    Contribution contribution;
    bool committed = false;  // by the user
    std::vector<Metric> metrics;
    std::map<ChunkId, Buffer> chunks;
    std::optional<ChunkId> last;  // the one that waits for the user's commit
  };
  struct Arrival {
    Version version;
    Digest digest;
    Buffer bytes;
  };

  void Handle(Time now, const Envelope& envelope, const Welcome& m);
  void Handle(Time now, const Refused& m);
  void Handle(Time now, const Fenced& m);
  void Handle(Time now, const everstep::Grant& m);
  void Handle(Time now, const PushRefused& m);
  void Handle(Time now, const Missing& m);
  void Handle(Time now, ServerId from, Link& link, const PullRefused& m);
  void Handle(Time now, const ChunkData& m, Buffer payload);

  void Advance(Time now);
  void Open(Time now, Link& link, bool control);
  void LinkDown(Time now, Link& link);
  void OpenWhatIsDown(Time now);
  void AdoptMap(Time now, const ShardMap& map);
  void FollowChunks(Time now, const ShardMap& before);
  void Handle(Time now, const NotCoordinator& m);
  std::string NextCandidate();
  bool OthersToTry() const;
  void SendHello(Time now);
  void SendReady();
  void GiveBack(LeaseId lease);
  void SendHeartbeat(Time now);
  void Rejoin(Time now, std::string why);
  Version Wanted() const;
  void PullFrom(Time now, ServerId server, Link& link);
  void PullAgainSoon(Time now, Link& link);
  void PullAll(Time now);
  void CheckArrival(Time now);
  void DropContribution();
  void ForgetModel(bool all);
  void SendChunk(ChunkId chunk);
  void TryLeave(Time now);
  void Fail(Status why);
  void Send(PeerId to, Body body, Buffer payload = {});
  Link* LinkOf(ServerId server);
  Duration Timeout() const { return job_ ? job_->timeout : options_.timeout; }
  bool Over() const { return failure_ || left_; }

  const Options options_;
  Random random_;
  WorkerId id_;
  uint64_t next_peer_ = 1;
  std::optional<Status> failure_;
  Time started_;
  Time next_tick_;
  Time next_heartbeat_;
  Time hello_at_;

  Link coordinator_;
  std::set<std::string> tried_;  // addresses asked in this round of the search
  std::string hint_;             // where somebody said that the coordinator is
  std::string lost_;             // where the last coordinator was: asked last
  std::string last_problem_;     // why the coordinator's link was last lost
  bool welcomed_ = false;        // by the coordinator, on this link
  std::optional<JobSpec> job_;
  JobUid job_uid_;
  Version join_version_;  // newest when we joined
  std::optional<ShardMap> map_;
  std::shared_ptr<const ChunkLayout> layout_;
  std::map<ServerId, Link> servers_;

  bool ready_ = false;                    // told the coordinator that we may be given work
  std::optional<everstep::Grant> grant_;  // newest
  LeaseId voided_;                        // given back, and no other work has come since
  uint64_t used_grant_ = 0;               // number of the one the user works on or has finished
  std::optional<InFlight> flight_;
  uint64_t next_serial_ = 1;
  uint64_t in_hand_ = 0;  // serial of the step that the user works on; 0: none
  std::optional<Finish> finish_;

  Version held_;  // complete, from all shards
  Digest held_digest_;
  std::map<ChunkId, Buffer> arrived_;  // of held_, until the user's model has it
  bool fresh_ = false;
  std::map<ChunkId, Arrival> incoming_;
  Version pulling_;  // what the pulls under way ask for
  bool exact_ = false;

  Phase phase_ = Phase::kJoining;
  uint64_t progress_ = 0;
  bool leaving_ = false;
  bool leave_sent_ = false;
  std::string leave_reason_;
  Time leave_at_ = Time::Never();
  bool left_ = false;

  std::vector<Outgoing> outbox_;
  std::vector<Opening> openings_;
  std::vector<PeerId> closings_;
  Stats stats_;
};

}  // namespace everstep
