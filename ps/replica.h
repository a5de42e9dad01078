// CORE. What one server holds of the model and of the step in flight: slots, promise, prepared sum, published versions
// (docs/protocol.md, rules R3, R6, R7, R9-R13, R17). Pure and single-threaded: the driver delivers messages, runs the
// numbers it asks for, and sends what it puts into its outbox.
//
// The life of a step here:
//   Push...            chunks of a contribution are staged in its slot; all primary chunks there -> Staged
//   SealStep           -> StartSum; its result becomes the prepared record -> Prepared (or NonFinite)
//   Commit             -> StartApply; its result is published as the next version -> Applied
//   Pull               answered from the published version, or waits for it
// With a single server the driver's coordinator asks for the collapsed step: sum, then apply and publish at once.
//
// With copies (replication over 1) a primary sends each sum to the chunk's backups too, and a replica is PREPARED only
// when it holds the seal and the sums of all its chunks, its own and those it backs up; the commit applies them all.
//
// Where things are: replica.cc (dispatch, promises, staging, commits, reading), replica_sums.cc (sums and their
// copies), replica_copy.cc (links to other servers, chunks that move).
//
// Nothing blocks: sums, updates and copies are effects (SumWork, ApplyWork, ExportWork, ImportWork) whose results come
// back through OnSummed, OnApplied, OnExported and OnImported.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "schema/job.h"
#include "schema/messages.h"
#include "schema/peer.h"

namespace everstep {

// Numbers the core wants computed, on whatever thread the driver likes.

// Where the sum is all that the commit waits for, the update may be worked out in the same pass.
struct Ahead {
  std::vector<Buffer> parameters;  // per chunk, of the version before
  double learning_rate = 0;
  uint64_t update = 0;  // as in ApplyWork
};
struct SumWork {
  SealId seal;
  std::vector<ChunkId> chunks;
  std::vector<std::vector<Buffer>> contributions;  // [chunk][contributor], in the sealed order
  std::vector<double> weights;
  std::optional<Ahead> ahead;
};
struct SumResult {
  SealId seal;
  std::vector<Buffer> sums;                      // per chunk
  std::vector<double> squared_norms;             // per chunk
  std::vector<std::vector<uint32_t>> nonfinite;  // per chunk: positions of contributors
  std::vector<Buffer> ahead;                     // per chunk, the new parameters; then `sums` need not be there
};
struct ApplyWork {
  SealId seal;
  std::vector<ChunkId> chunks;
  std::vector<Buffer> parameters;  // per chunk, of the version before
  std::vector<Buffer> sums;
  double learning_rate = 0;
  double scale = 1;
  uint64_t update = 0;  // 1 for the first training step
  bool check = false;   // checksums of the result are wanted
  bool ahead = false;   // `parameters` are the result; only the optimizer's state of the same pass is to be adopted
};
struct ApplyResult {
  SealId seal;
  std::vector<Buffer> parameters;   // per chunk, of the version after
  std::vector<uint64_t> checksums;  // when wanted
};
// A chunk as it is after the newest update: parameters, then the optimizer's arrays, end to end.
struct ExportWork {
  PeerId to;
  ChunkState header;  // its arrays' names are filled in
  Buffer parameters;
};
struct ExportResult {
  PeerId to;
  ChunkState header;
  Buffer payload;
};
// Sets a chunk's optimizer state.
struct ImportWork {
  ChunkState header;
  Buffer payload;
};
struct ImportResult {
  ChunkState header;
  Buffer parameters;
  Status outcome;
};

// What of a version is to be written into the checkpoint folder; the optimizer's state as it is before the next update.
struct SnapshotWork {
  Snapshot snapshot;
  JobUid job;
  ServerId server;
  std::vector<ChunkId> chunks;
  std::vector<Buffer> parameters;  // per chunk
};
// Parameters and optimizer state to be read, and the latter to be set.
struct RestoreWork {
  RestoreFrom from;
  std::vector<ChunkId> chunks;
};
struct RestoreResult {
  RestoreFrom from;
  Status outcome;
  std::map<ChunkId, Buffer> parameters;
};

class Replica {
 public:
  struct Options {
    Incarnation incarnation;
    std::string name;
    std::string address;          // as advertised
    bool may_coordinate = false;  // its process keeps the configuration record
  };

  explicit Replica(Options options);

  // The link to the coordinator is up: says hello on it. A replica has one coordinator link at a time.
  void OnCoordinatorLink(Time now, PeerId peer);
  void OnMessage(Time now, PeerId from, const Envelope& envelope, Buffer payload);
  void OnClosed(Time now, PeerId peer);
  void OnSummed(Time now, SumResult result);
  void OnApplied(Time now, ApplyResult result);
  void OnSnapshotWritten(Time now, SnapshotDone result);
  void OnRestored(Time now, RestoreResult result);
  void OnExported(Time now, ExportResult result);
  void OnImported(Time now, ImportResult result);
  // Timers are due: heartbeats and unanswered announcements.
  void OnTick(Time now);
  Time NextDeadline() const { return next_tick_; }

  // What to send, and what to compute, since the last call.
  std::vector<Outgoing> TakeOutbox() { return std::exchange(outbox_, {}); }
  std::vector<SumWork> TakeSums() { return std::exchange(sums_, {}); }
  std::vector<ApplyWork> TakeApplies() { return std::exchange(applies_, {}); }
  // Before TakeApplies: an update changes the state that these are about.
  std::vector<SnapshotWork> TakeSnapshots() { return std::exchange(snapshots_, {}); }
  std::vector<RestoreWork> TakeRestores() { return std::exchange(restores_, {}); }
  std::vector<ExportWork> TakeExports() { return std::exchange(exports_, {}); }
  std::vector<ImportWork> TakeImports() { return std::exchange(imports_, {}); }
  // Links to other servers to open; messages use the id given here. One that cannot be opened is reported as closed.
  struct Opening {
    PeerId peer;
    std::string address;
  };
  std::vector<Opening> TakeOpenings() { return std::exchange(openings_, {}); }
  std::vector<PeerId> TakeClosings() { return std::exchange(closings_, {}); }

  // A refusal or the coordinator's word that the job cannot go on; the server should end with it.
  const std::optional<Status>& failure() const { return failure_; }
  // The coordinator said that the job is complete.
  bool finished() const { return finished_; }
  // The coordinator said that nothing is held here any more.
  bool drained() const { return drained_; }
  // Asks the coordinator, now and on every new link, to take everything off this server.
  void Drain(Time now);
  const std::optional<Status>& drain_refused() const { return drain_refused_; }
  // The coordinator has welcomed this server on the present link, and when it was last heard there.
  bool welcomed() const { return welcomed_; }
  Time heard_at() const { return heard_at_; }

  JobUid job() const { return job_uid_; }
  const std::optional<JobSpec>& job_spec() const { return job_; }
  ServerId id() const { return id_; }
  Incarnation incarnation() const { return options_.incarnation; }
  Version version() const { return version_; }
  Digest digest() const { return digest_; }
  Ballot promised() const { return promised_; }
  const std::shared_ptr<const ChunkLayout>& layout() const { return layout_; }
  const std::optional<ShardMap>& map() const { return map_; }
  // The published parameters of `version`, by held chunk; null when it is not kept.
  const std::map<ChunkId, Buffer>* Parameters(Version version) const;

  struct Stats {
    uint64_t slots = 0;       // now
    uint64_t slot_bytes = 0;  // now
    uint64_t refused_pushes = 0;
    uint64_t duplicate_pushes = 0;
    uint64_t nonfinite = 0;      // contributions found with NaN or Inf
    uint64_t waiting_pulls = 0;  // now
  };
  Stats stats() const;

 private:
  using SlotKey = std::tuple<WorkerId, Version, Digest, LeaseId>;
  struct Slot {
    Contribution contribution;
    std::map<ChunkId, Buffer> chunks;  // primary chunks of the map
    uint64_t bytes = 0;
  };
  struct Record {
    Seal seal;
    std::map<ChunkId, Buffer> sums;
    std::map<ChunkId, double> squared_norms;
    std::vector<Buffer> ahead;  // parameters after the update, by held chunk, where it was worked out with the sums
  };
  struct Published {
    Version version;
    Digest digest;
    std::map<ChunkId, Buffer> chunks;
  };
  struct WaitingPull {
    PeerId peer;
    Pull pull;
    bool all = false;  // it asked for whatever this server is primary of
  };
  // A sum that came before this server can use it: the seal or its promise is still under way.
  struct EarlySum {
    ServerId server;
    Incarnation incarnation;
    Digest digest;
    double squared = 0;
    Buffer sum;
  };
  struct Link {
    ServerEntry server;
    PeerId peer;  // {} while down
    Time retry_at;
    Duration backoff{0};
  };
  // Chunks that this server will hold once a map says so.
  struct Copy {
    Buffer parameters;  // empty until they are here and the optimizer's state is set
  };
  struct Move {
    Ballot ballot;
    Version version;
    Digest digest;
    std::vector<ReceiveChunks> parts;
    std::map<ChunkId, Copy> copies;
    std::set<ChunkId> importing;
    std::optional<History> history;
    Time asked_at;
  };
  struct Deferred {
    PeerId from;
    Envelope envelope;
  };

  void Handle(Time now, PeerId from, const Envelope& envelope, const Welcome& m);
  void Handle(Time now, PeerId from, const Promise& m, Ballot ballot);
  void Handle(Time now, PeerId from, const SealStep& m, Ballot ballot);
  void Handle(Time now, PeerId from, const Commit& m, Ballot ballot);
  void Handle(PeerId from, const Push& m, Buffer payload);
  void Handle(PeerId from, const Pull& m);
  void AnswerPromise(PeerId to);

  // replica_checkpoint.cc
  void Handle(PeerId from, const Snapshot& m);
  bool MustRestore(const std::optional<RestoreFrom>& restore) const;
  void Restore(const RestoreFrom& from);

  Status NotMyJob() const;
  Status CheckPush(const Push& push, const Buffer& payload) const;
  static SlotKey KeyOf(const Contribution& c) { return {c.worker, c.base, c.base_digest, c.lease.id}; }
  bool Whole(const Slot& slot) const { return slot.chunks.size() == primary_chunks_.size(); }  // it holds no others
  void Announce(const Slot& slot);
  void RefusePush(PeerId to, const Push& push, Status why);
  void AnswerPending(PeerId to, const Contribution& c);
  void AnswerPull(PeerId to, const Pull& pull, const Published& published);
  void AnswerWaitingPulls();
  const Published* Find(Version version) const;

  // replica_sums.cc
  void StartSum(const Seal& seal);
  void Gather(Seal seal);
  void Handle(const ReplicateSum& m, Ballot ballot, Buffer payload);
  void Handle(PeerId from, const WantSums& m);
  void TakeEarlySums();
  void MaybePrepared(Time now);
  void AskForSums(Time now);
  void SendSum(PeerId to, const Record& record, ChunkId chunk);
  const Record* RecordOf(const SealId& seal, Digest digest) const;

  // replica_copy.cc
  Link& LinkTo(Time now, const ServerEntry& server);
  void ForgetLinks();
  void Handle(Time now, PeerId from, const ReceiveChunks& m, Ballot ballot);
  void Handle(PeerId from, const WantChunks& m);
  void Handle(const History& m);
  void Handle(const ChunkState& m, Buffer payload);
  void AskForChunks(Time now);
  void AskFor(Time now, const ReceiveChunks& part);
  void MaybeCopied();
  bool CanHold(const ShardMap& map) const;
  void InstallCopies();
  void AdoptPlacement(Time now);

  void StartApply(double scale);
  void Publish(Version version, Digest digest, std::map<ChunkId, Buffer> chunks);
  void DropSlotsAfter(const Seal& applied);
  static std::vector<ChunkNorm> NormsOf(const Record& record);
  void SendPrepared(PeerId to);
  void SendApplied(PeerId to);
  void SendStale(PeerId to);
  void Send(PeerId to, Body body, Buffer payload = {});
  void SendHello(Time now);
  bool Obeys(Ballot ballot) const;
  void RunDeferred(Time now);

  const Options options_;
  PeerId coordinator_;
  bool welcomed_ = false;
  JobUid job_uid_;
  std::optional<JobSpec> job_;
  ServerId id_;
  std::optional<Status> failure_;
  bool finished_ = false;
  bool drained_ = false;
  bool draining_ = false;
  std::optional<Status> drain_refused_;
  Time heard_at_;
  Time next_tick_ = Time::Never();

  Ballot promised_;
  std::optional<ShardMap> map_;
  std::shared_ptr<const ChunkLayout> layout_;
  std::vector<ChunkId> primary_chunks_;
  std::vector<ChunkId> held_chunks_;

  Version version_;
  Digest digest_;
  std::deque<Published> published_;    // newest last; bounded by the job's mode
  std::map<Version, Digest> history_;  // digests of the versions that a contribution may be based on
  std::map<SlotKey, Slot> slots_;
  std::set<SlotKey> done_;  // committed contributions that could still be pushed once more
  std::optional<Seal> summing_;
  bool collapsed_ = false;           // of the seal being summed
  std::optional<Record> gathering_;  // own sums are here, those of other primaries are still coming
  Time gathering_since_;
  std::map<SealId, std::map<ChunkId, EarlySum>> early_;
  std::optional<Record> prepared_;
  std::optional<NonFinite> nonfinite_;  // answer to the seal of this step, kept for retransmissions
  bool applying_ = false;
  double applying_scale_ = 1;
  std::optional<Seal> applied_;
  double applied_scale_ = 1;
  std::vector<WaitingPull> waiting_;
  std::optional<std::string> writing_;   // label of the checkpoint that is being written
  std::optional<SnapshotDone> written_;  // the last answer, kept for retransmissions
  std::optional<RestoreFrom> restoring_;
  std::deque<Deferred> deferred_;  // coordinator messages that arrived while the update was running

  std::map<ServerId, Link> links_;
  uint64_t next_link_ = uint64_t{1} << 62;  // away from the driver's own ids
  std::optional<Move> move_;
  bool newcomer_ = false;  // was offered chunks before it was in any map

  std::vector<Outgoing> outbox_;
  std::vector<SumWork> sums_;
  std::vector<ApplyWork> applies_;
  std::vector<SnapshotWork> snapshots_;
  std::vector<RestoreWork> restores_;
  std::vector<ExportWork> exports_;
  std::vector<ImportWork> imports_;
  std::vector<Opening> openings_;
  std::vector<PeerId> closings_;
  std::vector<ChunkCheck> checks_;  // of the newest version, when wanted
  Stats counters_;
};

}  // namespace everstep
