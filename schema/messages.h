// What Everstep's processes say to each other, as plain values. schema/wire.fbs is the same on the wire and
// schema/codec.h turns one into the other. Who sends what, when, and what it may change: docs/protocol.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "schema/ids.h"
#include "schema/job.h"
#include "schema/parameter_spec.h"
#include "schema/shard_map.h"

namespace everstep {

// Incremented when an old peer could misunderstand a new one. Fields that are only added do not need it.
inline constexpr uint16_t kProtocolVersion = 1;

// ---- Data ledger ----

// Positions [begin, end) of one epoch's permutation.
struct SampleRange {
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t size() const { return end - begin; }
  friend auto operator<=>(const SampleRange&, const SampleRange&) = default;
};

// Samples lent to one worker for one contribution. Ranges are sorted and disjoint. A job without a dataset has leases
// without ranges.
struct Lease {
  LeaseId id;
  uint64_t epoch = 0;
  std::vector<SampleRange> ranges;

  uint64_t samples() const;
  friend bool operator==(const Lease&, const Lease&) = default;
};

// What is consumed: every epoch before `epoch`, and `consumed` (sorted, disjoint, not touching) of it.
struct LedgerState {
  uint64_t epoch = 0;
  std::vector<SampleRange> consumed;

  friend bool operator==(const LedgerState&, const LedgerState&) = default;
};

// ---- The step ----

// What one worker adds to one step, without its bytes. All fields together are its identity (rule R6).
struct Contribution {
  WorkerId worker;
  Version base;  // the version its gradients were computed on
  Digest base_digest;
  Lease lease;

  friend bool operator==(const Contribution&, const Contribution&) = default;
};

struct SealId {
  Ballot ballot;
  Version step;  // leads from version `step` to the next

  friend auto operator<=>(const SealId&, const SealId&) = default;
};

// The decision what a step is made of. Everything a replica needs to do the step's maths, and everything a new
// coordinator needs to go on from it.
struct Seal {
  SealId id;
  std::vector<Contribution> contributors;  // in the order of summation: by lease position, then worker
  std::vector<double> weights;             // one per contributor
  double learning_rate = 0;
  double clip_norm = 0;  // 0 = none
  LedgerState ledger_after;
  Digest previous;  // digest of version id.step
  Digest digest;    // of all of the above (SealDigest): names version id.step + 1

  friend bool operator==(const Seal&, const Seal&) = default;
};

// The checksum over every field but `digest`.
Digest SealDigest(const Seal& seal);

// ---- Joining and leaving (control lane) ----

enum class PeerRole : uint8_t { kWorker = 0, kServer = 1, kObserver = 2 };

struct Hello {
  PeerRole role = PeerRole::kWorker;
  std::string name;             // for people; a worker's name is fenced when a new life of it says hello
  std::string job_name;         // empty: whatever job runs there
  WorkerId worker;              // workers: this life
  Incarnation incarnation;      // servers: this life
  std::string address;          // servers: where others reach it. A server that was ever in a map shows its ballot
  ParameterSpec spec;           // workers
  uint64_t dataset_size = 0;    // workers: samples of one epoch, 0 = the user brings their own data
  Version version;              // workers that come back after a coordinator's death: what they hold
  std::optional<Lease> lease;   // ... and what they were lent
  bool may_coordinate = false;  // servers: it keeps the configuration record, through which it can take office

  friend bool operator==(const Hello&, const Hello&) = default;
};

struct Welcome {
  JobSpec job;
  ServerId server;              // servers: their id
  Version version;              // newest committed
  std::optional<ShardMap> map;  // absent until the first worker has registered the model

  friend bool operator==(const Welcome&, const Welcome&) = default;
};

struct Refused {
  Code code = Code::kFailed;
  std::string message;

  friend bool operator==(const Refused&, const Refused&) = default;
};

struct MapUpdate {
  ShardMap map;

  friend bool operator==(const MapUpdate&, const MapUpdate&) = default;
};

// The worker has the parameters (or none exist yet) and may be given work. With `void_lease`, also: the contribution
// made from that lease was refused as too old; the lease is free again and the worker wants other work.
struct Ready {
  WorkerId worker;
  Version version;
  LeaseId void_lease;

  friend bool operator==(const Ready&, const Ready&) = default;
};

// Work for one contribution: pull `version` (or newer), compute on the lease's samples, push. The newest grant of a
// worker replaces older ones. A grant of version 0 asks for the initial values.
struct Grant {
  WorkerId worker;
  uint64_t number = 0;  // grows with each grant of a coordinator's life
  Version version;
  Lease lease;

  friend bool operator==(const Grant&, const Grant&) = default;
};

enum class Phase : uint8_t { kJoining = 0, kPulling = 1, kComputing = 2, kPushing = 3, kWaiting = 4, kEvaluating = 5 };

struct Heartbeat {
  WorkerId worker;  // 0 from servers
  Phase phase = Phase::kJoining;
  uint64_t progress = 0;  // grows when the user's code moves
  uint64_t grant = 0;     // newest grant it has seen; the coordinator repeats what was lost

  friend bool operator==(const Heartbeat&, const Heartbeat&) = default;
};

struct HeartbeatAck {
  friend bool operator==(const HeartbeatAck&, const HeartbeatAck&) = default;
};

struct Metric {
  std::string name;
  double value = 0;

  friend bool operator==(const Metric&, const Metric&) = default;
};

// What the user's code said about its contribution, or (with `evaluation`) about the finished model.
struct Report {
  WorkerId worker;
  Version base;
  LeaseId lease;
  bool evaluation = false;
  std::vector<Metric> metrics;  // "loss" and whatever else

  friend bool operator==(const Report&, const Report&) = default;
};

struct Fenced {
  WorkerId worker;
  std::string message;
  bool replaced = false;  // another process has taken its name: it must not come back under it

  friend bool operator==(const Fenced&, const Fenced&) = default;
};

struct Leave {
  WorkerId worker;
  std::string message;

  friend bool operator==(const Leave&, const Leave&) = default;
};

struct LeaveAck {
  friend bool operator==(const LeaveAck&, const LeaveAck&) = default;
};

// The job is complete at `version`. One worker is asked to evaluate it.
struct Finish {
  Version version;
  bool evaluate = false;

  friend bool operator==(const Finish&, const Finish&) = default;
};

// The job cannot go on.
struct JobFailed {
  Code code = Code::kFailed;
  std::string message;

  friend bool operator==(const JobFailed&, const JobFailed&) = default;
};

// ---- Chunks (bulk lane; the payload is the frame's second part) ----

struct Push {
  Contribution contribution;
  ChunkId chunk;

  friend bool operator==(const Push&, const Push&) = default;
};

// Only for refusals: silence means staged.
struct PushRefused {
  Contribution contribution;
  ChunkId chunk;
  Code code = Code::kStale;
  Version version;  // what the shard holds
  std::string message;

  friend bool operator==(const PushRefused&, const PushRefused&) = default;
};

// Asks for `chunks` (empty: all that the server is primary of) of version `at_least` or newer; waits for it. When
// `pending` names a contribution that the server lacks parts of, it answers Missing at once.
struct Pull {
  WorkerId worker;
  Version at_least;
  bool exact = false;  // this very version; kStale when it is gone
  std::vector<ChunkId> chunks;
  std::optional<Contribution> pending;

  friend bool operator==(const Pull&, const Pull&) = default;
};

struct Missing {
  Contribution contribution;
  std::vector<ChunkId> chunks;

  friend bool operator==(const Missing&, const Missing&) = default;
};

struct ChunkData {
  Version version;
  Digest digest;  // of the version, the same on all shards
  ChunkId chunk;

  friend bool operator==(const ChunkData&, const ChunkData&) = default;
};

// The pulled version is not held any more.
struct PullRefused {
  Code code = Code::kStale;
  Version version;  // what the shard holds
  std::string message;

  friend bool operator==(const PullRefused&, const PullRefused&) = default;
};

struct WrongShard {
  ShardMap map;

  friend bool operator==(const WrongShard&, const WrongShard&) = default;
};

// ---- Coordinator and replicas (control lane) ----

struct ChunkNorm {
  ChunkId chunk;
  double squared = 0;

  friend bool operator==(const ChunkNorm&, const ChunkNorm&) = default;
};

// Checksum of a chunk's parameters: all its holders must find the same.
struct ChunkCheck {
  ChunkId chunk;
  uint64_t checksum = 0;

  friend bool operator==(const ChunkCheck&, const ChunkCheck&) = default;
};

// Where a new life of a job takes its parameters from: a checkpoint or, without a label, a file of initial values.
struct RestoreFrom {
  std::string label;
  Seal seal;  // made the version that is restored
  double scale = 1;

  friend bool operator==(const RestoreFrom&, const RestoreFrom&) = default;
};

// Opens a ballot (the envelope's): from now on obey no lower one, and tell what you hold. With `restore`: first take
// that version in place of whatever you hold.
struct Promise {
  ShardMap map;
  ParameterSpec spec;
  std::optional<RestoreFrom> restore = {};

  friend bool operator==(const Promise&, const Promise&) = default;
};

struct Promised {
  ServerId server;
  Incarnation incarnation;
  Version version;
  Digest digest;
  std::optional<Seal> applied;  // the seal that made `version`
  double applied_scale = 1;
  std::optional<Seal> prepared;    // a seal of step `version` whose sum is held
  std::vector<ChunkNorm> norms;    // of that sum: the clip scale follows from them
  std::vector<Contribution> held;  // whole for this server's primary chunks

  friend bool operator==(const Promised&, const Promised&) = default;
};

struct Staged {
  ServerId server;
  Contribution contribution;

  friend bool operator==(const Staged&, const Staged&) = default;
};

struct SealStep {
  Seal seal;
  bool collapsed = false;  // a single server holds everything: sum, apply and publish at once (rule R17)

  friend bool operator==(const SealStep&, const SealStep&) = default;
};

struct Prepared {
  ServerId server;
  Incarnation incarnation;
  SealId seal;
  Digest digest;
  std::vector<ChunkNorm> norms;

  friend bool operator==(const Prepared&, const Prepared&) = default;
};

struct NonFinite {
  ServerId server;
  SealId seal;
  std::vector<WorkerId> workers;

  friend bool operator==(const NonFinite&, const NonFinite&) = default;
};

struct Commit {
  SealId seal;
  Digest digest;
  double scale = 1;

  friend bool operator==(const Commit&, const Commit&) = default;
};

struct Applied {
  ServerId server;
  Incarnation incarnation;
  SealId seal;
  Digest digest;
  double scale = 1;
  std::vector<ChunkCheck> checks;  // of the parameters, in the steps that the job verifies

  friend bool operator==(const Applied&, const Applied&) = default;
};

// "You are over": the receiver's ballot, step or incarnation is behind.
struct StaleBallot {
  ServerId server;
  Ballot promised;
  Version version;

  friend bool operator==(const StaleBallot&, const StaleBallot&) = default;
};

// ---- Checkpoints (control lane; docs/checkpoints.md) ----

// Write what you are primary of at `version` to your checkpoint folder. Said after the commit that made the version and
// before anything of the next step, so that the receiver still holds it.
struct Snapshot {
  Version version;
  Digest digest;
  std::string label;  // of the checkpoint; the file's name begins with it

  friend bool operator==(const Snapshot&, const Snapshot&) = default;
};

// The file is durable, or (with a code) why there is none. Also says why a checkpoint that a Promise named cannot be
// restored.
struct SnapshotDone {
  ServerId server;
  std::string label;
  std::string file;
  uint64_t bytes = 0;
  uint64_t checksum = 0;
  std::vector<ChunkId> chunks;
  std::vector<std::string> arrays;  // of each chunk
  Code code = Code::kOk;
  std::string message;

  friend bool operator==(const SnapshotDone&, const SnapshotDone&) = default;
};

// ---- Servers among themselves: copies of the sums (bulk lane) ----

// From the primary of a chunk to its backups: the sum that the seal asks for; the payload is the sum.
struct ReplicateSum {
  ServerId server;
  Incarnation incarnation;
  SealId seal;
  Digest digest;
  ChunkId chunk;
  double squared = 0;

  friend bool operator==(const ReplicateSum&, const ReplicateSum&) = default;
};

// A backup lacks sums of a seal that it holds; the primary sends them again.
struct WantSums {
  ServerId server;
  Incarnation incarnation;
  SealId seal;
  Digest digest;
  std::vector<ChunkId> chunks;

  friend bool operator==(const WantSums&, const WantSums&) = default;
};

// ---- Moves: chunks for a server that will hold them from the next ballot on (rule R16) ----

// From the coordinator: fetch these chunks of exactly this version from `source`. The envelope's ballot names the move.
struct ReceiveChunks {
  ServerEntry source;
  Version version;
  Digest digest;
  std::vector<ChunkId> chunks;
  uint64_t chunk_bytes = 0;
  ParameterSpec spec;

  friend bool operator==(const ReceiveChunks&, const ReceiveChunks&) = default;
};

// From the receiver to the source, which answers History, then ChunkState for each.
struct WantChunks {
  Ballot ballot;  // of the move: the source must have promised this very one
  Version version;
  Digest digest;
  std::vector<ChunkId> chunks;

  friend bool operator==(const WantChunks&, const WantChunks&) = default;
};

struct VersionDigest {
  Version version;
  Digest digest;

  friend bool operator==(const VersionDigest&, const VersionDigest&) = default;
};

// What a server that was in no map must know besides its chunks.
struct History {
  Version version;
  Digest digest;
  std::optional<Seal> applied;  // the seal that made `version`
  double applied_scale = 1;
  std::vector<VersionDigest> versions;  // that a contribution may be based on
  std::vector<Contribution> done;       // committed, and could still be pushed once more

  friend bool operator==(const History&, const History&) = default;
};

// The payload is the parameters and then the optimizer's arrays, each of the chunk's size, in the order of `arrays`.
struct ChunkState {
  Version version;
  Digest digest;
  ChunkId chunk;
  std::vector<std::string> arrays;

  friend bool operator==(const ChunkState&, const ChunkState&) = default;
};

// The receiver has them, optimizer state included.
struct Copied {
  ServerId server;
  Incarnation incarnation;
  Ballot ballot;  // of the move
  Version version;
  std::vector<ChunkId> chunks;

  friend bool operator==(const Copied&, const Copied&) = default;
};

// The server holds nothing any more and may go.
struct Drained {
  friend bool operator==(const Drained&, const Drained&) = default;
};

// ---- Finding the coordinator ----

// "I do not coordinate", to whoever believed it; with the address of who does, if it is known.
struct NotCoordinator {
  std::string address;

  friend bool operator==(const NotCoordinator&, const NotCoordinator&) = default;
};

// ---- Observers ----

struct StatusRequest {
  friend bool operator==(const StatusRequest&, const StatusRequest&) = default;
};

struct StatusReply {
  std::string json;

  friend bool operator==(const StatusReply&, const StatusReply&) = default;
};

// What an operator wants done: "drain" the server of that name. From a server's own link an empty target is itself.
struct ControlRequest {
  std::string command;
  std::string target;

  friend bool operator==(const ControlRequest&, const ControlRequest&) = default;
};

struct ControlReply {
  Code code = Code::kOk;
  std::string message;

  friend bool operator==(const ControlReply&, const ControlReply&) = default;
};

using Body = std::variant<Hello, Welcome, Refused, MapUpdate, Ready, Grant, Heartbeat, HeartbeatAck, Report, Fenced,
                          Leave, LeaveAck, Finish, JobFailed, Push, PushRefused, Pull, Missing, ChunkData, PullRefused,
                          WrongShard, Promise, Promised, Staged, SealStep, Prepared, NonFinite, Commit, Applied,
                          StaleBallot, StatusRequest, StatusReply, Snapshot, SnapshotDone, ReplicateSum, WantSums,

                          ReceiveChunks, WantChunks, History, ChunkState, Copied, Drained, NotCoordinator,
                          ControlRequest, ControlReply>;

// What every message carries (promise P6). The sender's incarnation and step are in the body where they matter.
struct Envelope {
  JobUid job;     // 0 in a Hello that does not know the job yet
  Ballot ballot;  // the newest the sender knows
  Body body;

  friend bool operator==(const Envelope&, const Envelope&) = default;
};

std::string_view Name(const Body& body);

}  // namespace everstep
