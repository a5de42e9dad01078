// CORE. The one decision maker of a job: ballots and recovery, membership, leases, seals and commits (docs/protocol.md,
// rules R1-R20). Pure and single-threaded; lives in a driver that owns clocks, links and the configuration record. It
// keeps no durable state: after its death another one is rebuilt from the record and the replicas' answers.
//
// Where things are: coordinator.cc (dispatch, timers), coordinator_members.cc (workers: join, lease, leave,
// fence), coordinator_servers.cc (servers: join, loss, drain), coordinator_move.cc (chunks that move between servers),
// coordinator_ballot.cc (configuration, promises, recovery), coordinator_step.cc (grants, seals, commits, the end),
// coordinator_checkpoint.cc (saving, resuming).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "ps/config_record.h"
#include "ps/ledger.h"
#include "ps/membership.h"
#include "ps/policy.h"
#include "ps/rebalancer.h"
#include "schema/job.h"
#include "schema/messages.h"
#include "schema/peer.h"

namespace everstep {

// What the coordinator did, for operators and reports. Kinds: server-joined, server-lost, server-draining,
// server-drained, replica-diverged, moved, worker-joined, worker-ready, worker-left, worker-lost, worker-fenced,
// worker-refused, contribution-refused, paused, resumed, ballot, recovered, checkpoint, checkpoint-failed, restored,
// finished, failed.
struct Event {
  Time at;
  std::string kind;
  std::string target;
  std::string detail;
};

// One committed step, as kept in the records file and replayed by `everstep replay`.
struct CommitRecord {
  Seal seal;
  double scale = 1;
  Time granted_at;  // work for the step was given out
  Time sealed_at;
  Time committed_at;
  uint64_t members = 0;                   // ready members at the commit
  std::map<std::string, double> metrics;  // sample-weighted means of what the contributors reported
  std::vector<std::string> names;         // of the contributors, "" when unknown
};

// What a job goes on from when the memory of its servers is gone: a checkpoint (ps/resume.h finds it).
struct ResumePoint {
  RestoreFrom from;
  ParameterSpec parameters;
  uint64_t dataset_size = 0;
  Ballot recorded;  // of the configuration record as it is now; 0: there is none
  Ballot above;     // no ballot of the earlier life was higher
};

// A committed version, durable on every server: what its manifest says (checkpoint/manifest.h) besides the settings.
struct CheckpointWork {
  std::string label;
  Ballot ballot;
  Seal seal;
  double scale = 1;
  ParameterSpec parameters;
  uint64_t dataset_size = 0;
  std::vector<SnapshotDone> parts;
};

class Coordinator {
 public:
  struct Options {
    JobUid job;
    JobSpec spec;
    Incarnation holder;
    std::string address;  // of this process's server: who coordinates is found there
    // The record found at start: recover the job that it describes. Servers known to be dead may be left out of its
    // map.
    std::optional<Configuration> found;
    // Checkpoints are taken after each so many steps, and of the last version; 0: only of the last; none: never.
    std::optional<uint64_t> checkpoint_every = {};
    std::optional<ResumePoint> resume = {};
    // Initial values come from a file with these tensors, not from the first worker.
    std::optional<std::vector<TensorSpec>> initial = {};
    // The record outlives this process: another server can take office through it.
    bool lasting_record = false;
  };

  enum class State : uint8_t {
    kGathering,   // waits for the servers and for the first worker's model
    kElecting,    // the configuration record is being changed
    kRecovering,  // waits for the replicas' promises
    kOpen,        // contributions of step version() are collected
    kMoving,      // chunks are copied to servers that will hold them from the next ballot on
    kSealed,      // waits for PREPARED (or, collapsed, APPLIED)
    kFinished,    // every epoch and step is committed
    kFailed,      // cannot go on; failure() says why
    kDeposed,     // another coordinator holds the record; this one changes nothing any more
  };

  Coordinator(Time now, Options options);

  void OnMessage(Time now, PeerId from, const Envelope& envelope);
  void OnClosed(Time now, PeerId peer);
  // The answer to TakeProposal(): Ok, kStale (somebody else was first), or unknown (it is tried again).
  void OnConfigured(Time now, const Status& outcome);
  // The manifest of the checkpoint under way is durable, or why not.
  void OnCheckpoint(Time now, const Status& outcome);
  void OnTick(Time now);
  Time NextDeadline() const { return next_tick_; }
  // The operator wants the job to end now, without its remaining steps.
  void Fail(Time now, Status why);

  std::vector<Outgoing> TakeOutbox() { return std::exchange(outbox_, {}); }
  struct Proposal {
    Ballot expected;
    Configuration next;
  };
  std::optional<Proposal> TakeProposal() { return std::exchange(proposal_, {}); }
  // Manifests to be written; the answer is OnCheckpoint.
  std::optional<CheckpointWork> TakeCheckpoint() { return std::exchange(checkpoint_, {}); }
  std::vector<CommitRecord> TakeCommits() { return std::exchange(commits_, {}); }
  std::vector<Event> TakeEvents() { return std::exchange(events_, {}); }
  std::vector<PeerId> TakeClosings() { return std::exchange(closings_, {}); }

  State state() const { return state_; }
  const std::optional<Status>& failure() const { return failure_; }
  JobUid job() const { return options_.job; }
  const JobSpec& spec() const { return options_.spec; }
  const std::string& address() const { return options_.address; }
  Version version() const { return version_; }
  Digest digest() const { return digest_; }
  Ballot ballot() const { return ballot_; }
  bool has_ledger() const { return ledger_.has_value(); }  // once the first worker has registered its model
  const Ledger& ledger() const { return *ledger_; }
  Membership& members() { return members_; }
  const std::optional<ShardMap>& map() const { return map_; }
  bool paused() const { return paused_; }
  uint64_t job_steps() const;  // training steps in all, as far as known; 0 = unknown
  const std::map<std::string, double>& evaluation() const { return evaluation_; }
  // Everything is over: the job has ended and nobody needs this process any more.
  bool Done(Time now) const;

  struct ServerInfo {
    ServerId id;
    std::string name;
    std::string address;
    bool connected = false;
    uint64_t chunks = 0;
    uint64_t bytes = 0;
    bool draining = false;
  };
  std::vector<ServerInfo> Servers() const;
  struct Counters {
    uint64_t refused_contributions = 0;  // non-finite
    uint64_t void_leases = 0;
    uint64_t joins = 0;
    uint64_t leaves = 0;    // orderly
    uint64_t losses = 0;    // by closed link, silence or lack of progress
    uint64_t refusals = 0;  // hellos
    uint64_t ballots = 0;
    uint64_t checkpoints = 0;         // complete
    uint64_t failed_checkpoints = 0;  // given up; the job went on
    uint64_t server_losses = 0;
    uint64_t moved_chunks = 0;
    uint64_t moved_bytes = 0;  // of parameters; optimizer state comes on top
    Duration paused{0};
  };
  const Counters& counters() const { return counters_; }

 private:
  struct Server {
    ServerId id;
    Incarnation incarnation;
    std::string name;
    std::string address;
    PeerId peer;  // {} while its link is down
    Time last_seen;
    Time down_since;                  // while its link is down
    std::optional<Promised> promise;  // at the ballot being recovered
    bool met = false;                 // its link has been up in this coordinator's life
    bool draining = false;
    bool beats = false;  // it has sent a heartbeat: not only its hello
    bool may_coordinate = false;
  };
  // A contribution that servers say they hold, at this ballot.
  struct StagedEntry {
    Contribution contribution;
    std::set<ServerId> servers;
    bool whole = false;
    Time whole_at;
  };
  struct Sealed {
    Seal seal;
    bool collapsed = false;
    Time at;
    std::map<ServerId, Prepared> prepared;
    std::map<ChunkId, double> norms;
  };
  // A checkpoint under way: every server writes what it is primary of, then the manifest is written.
  struct Saving {
    Snapshot snapshot;
    Seal seal;
    double scale = 1;
    std::map<ServerId, std::optional<SnapshotDone>> parts;
    bool sealing = false;  // all parts are there; the manifest is being written
    Time began;
  };
  // Chunks on their way to new holders.
  struct Moving {
    MovePlan plan;
    std::map<ServerId, std::set<ChunkId>> waiting;  // by receiver
    Time began;
  };
  // A decided commit that some server has not confirmed yet.
  struct Confirming {
    Commit commit;
    std::set<ServerId> waiting;
  };

  // coordinator.cc
  void Send(PeerId to, Body body);
  void SendToServers(const Body& body);   // all of them
  void SendToReplicas(const Body& body);  // those of the map
  void SendToMembers(const Body& body);
  void Note(Time now, std::string kind, std::string target, std::string detail = {});
  void Retransmit();
  void Reschedule();
  Server* FindServer(ServerId id);
  Server* FindServerByPeer(PeerId peer);
  bool InMap(const Server& server) const;
  // In the map, or in the one that is being put into the record.
  bool Holds(const Server& server) const;
  std::set<ServerId> MapServers() const;

  // coordinator_members.cc
  void Handle(Time now, PeerId from, const Envelope& envelope, const Hello& m);
  void JoinWorker(Time now, PeerId from, const Hello& m);
  Status CheckModel(const Hello& m);
  void TakeBackDeparted(Member* member);
  void Refuse(Time now, PeerId to, const Hello& hello, Status why);
  void Handle(Time now, PeerId from, const Ready& m);
  void Handle(Time now, PeerId from, const Heartbeat& m, Ballot map);
  void Handle(Time now, PeerId from, const Report& m);
  void Handle(Time now, PeerId from, const Leave& m);
  void RepeatWhatWasLost(const Member& member, uint64_t seen_grant, Ballot seen_map);
  // Takes the member out; its work goes back unless it is whole already.
  void RemoveMember(Time now, WorkerId id, std::string kind, std::string detail, bool replaced = false);
  bool IsWhole(WorkerId worker, LeaseId lease) const;
  void FenceMember(Time now, WorkerId id, std::string why, bool replaced = false);
  void TellExcluded(PeerId to, WorkerId id);
  // The member, if this is the link it speaks on: whoever says a member's id on another one is not that member.
  Member* Speaker(PeerId from, WorkerId id);
  void ExpireMembers(Time now);

  // coordinator_servers.cc
  void JoinServer(Time now, PeerId from, const Hello& m, Ballot promised);
  ServerId NewServerId();
  void ServerDown(Time now, Server& server);
  void ForgetIdle(Time now, ServerId id);
  void ExpireServers(Time now);
  void ExpireGathering(Time now);
  std::set<ServerId> DeadServers(Time now) const;
  void RemoveServers(Time now, const std::set<ServerId>& gone, std::string why);
  void ForgetServers(Time now, const ShardMap& before);
  const Server* LostServer(Time now) const;
  void GiveUp(Time now);
  void Handle(Time now, PeerId from, const ControlRequest& m);
  Status DrainServer(Time now, Server* server, const ControlRequest& m);
  Status MayHandOver(const Server& host) const;
  void CompareCopies(Time now, const Server& server, const Applied& m);

  // coordinator_move.cc
  bool WantsMove(Time now);
  void BeginMove(Time now, MovePlan plan);
  void SendMove();
  void EndMove(Time now);
  void CancelMove(Time now, Duration rest);
  void CancelMoveTo(Time now, ServerId id);
  void ExpireMove(Time now);
  void Handle(Time now, PeerId from, const Copied& m);

  // coordinator_ballot.cc
  void MaybeFormMap(Time now);
  void NewBallot(Time now, std::string why, std::optional<ShardMap> next = {});
  void AskPromise(Server& server);
  void Handle(Time now, PeerId from, const Promised& m, Ballot ballot);
  void MaybeDecide(Time now);
  void Open(Time now);
  void TakeInLate(Time now);
  void Settle(Time now);
  void AdoptClaim(Member& member);
  void MaybeSettle(Time now);
  void Depose(std::string why);
  void ConfirmOn(const Seal& seal, double scale, std::set<ServerId> servers);
  void Handle(Time now, PeerId from, const StaleBallot& m);

  // coordinator_checkpoint.cc
  void BeginResume();
  Status CheckInitialFile(const ParameterSpec& spec) const;
  void RestoreInitialFile();
  bool IsOfALostLife(const Hello& m) const;
  void MaybeCheckpoint(Time now, const Seal& seal, double scale);
  void Handle(Time now, PeerId from, const SnapshotDone& m);
  void CheckSaving(Time now);
  void EndSaving(Time now, const Status& outcome);

  // coordinator_step.cc
  void Advance(Time now);
  void GrantInitialisation(Time now);
  void GrantStep(Time now);
  void FillStep(Time now);
  uint64_t SamplesEach() const;
  void GrantIdle(Time now, uint64_t samples_each);
  // Lends and grants; false when nothing is free. `ahead`: for the step after the sealed one.
  bool GrantTo(Time now, Member& member, uint64_t samples, bool ahead);
  void ReturnWork(std::optional<Work>* work);
  void UpdatePaused(Time now);
  size_t DepartedWhole() const;
  bool LastStepDone() const;
  bool LastStepSealed() const;
  void Handle(Time now, PeerId from, const Staged& m, Ballot ballot);
  void Stage(Time now, ServerId server, const Contribution& contribution);
  void RefuseOld(const Contribution& c);
  std::vector<Candidate> Candidates();
  bool MaybeSeal(Time now);
  void SealWith(Time now, std::vector<Contribution> contributors);
  std::vector<Contribution> DropVoid(Time now, std::vector<Contribution> contributors);
  void GrantAhead(Time now, const Seal& seal);
  void RefuseContribution(Time now, const Contribution& c, Code code, std::string why);
  void CommitWork(const Seal& seal);
  void DropOldStaged();
  void RememberDone(const Seal& seal);
  void Handle(Time now, PeerId from, const Prepared& m);
  void Handle(Time now, PeerId from, const NonFinite& m);
  void Handle(Time now, PeerId from, const Applied& m);
  void Decide(Time now, double scale);
  // Version seal.step + 1 exists from here on: everything that follows from a commit, however it came about.
  void Committed(Time now, const Seal& seal, double scale);
  CommitRecord Record(Time now, const Seal& seal, double scale);
  void MaybeFinish(Time now);
  void AskEvaluation();

  const Options options_;
  State state_ = State::kGathering;
  std::optional<Status> failure_;
  Time ended_at_ = Time::Never();
  Time gathering_since_;  // the last server came, or the first worker that waits for them
  Time next_tick_ = Time::Never();
  Time next_beat_;
  Time next_retransmit_;

  std::vector<Server> servers_;
  Membership members_;
  std::optional<ParameterSpec> parameters_;
  std::shared_ptr<const ChunkLayout> layout_;
  uint64_t dataset_size_ = 0;
  std::optional<Ledger> ledger_;

  Ballot ballot_;
  std::optional<ShardMap> map_;
  std::optional<Proposal> proposal_;
  bool proposing_ = false;
  Proposal asked_;              // the newest proposal, to be asked again when its outcome is unknown
  bool giving_up_ = false;      // a server is lost: the job fails once the record has been changed
  bool restarted_ = false;      // rebuilt from a record: members must find their way back first
  bool adopted_ = false;        // ... and the version that was found has been taken over
  std::set<WorkerId> awaited_;  // of these it is known that they were members
  std::set<Incarnation> removed_servers_;
  Time last_tick_;
  Time found_by_;                 // by then everybody who lost this process while it stood still has found it again
  Time loss_at_ = Time::Never();  // when a server whose link closed counts as dead
  bool rebalance_ = false;        // chunks may have to move
  std::optional<Moving> moving_;
  Version moved_at_;
  Time next_move_at_;
  Time no_move_before_;
  std::map<ChunkId, std::map<ServerId, uint64_t>> checks_;  // of the newest version, as reported
  Time settle_at_ = Time::Never();

  Version version_;
  Digest digest_;
  std::vector<StagedEntry> staged_;
  std::vector<std::pair<ServerId, Contribution>> staged_early_;  // announced at this ballot before it was open
  std::map<std::pair<WorkerId, LeaseId>, Version>
      done_;                                        // committed; announcements of them may still come. With their base
  std::set<std::pair<WorkerId, LeaseId>> refused_;  // of this step: non-finite or void
  std::map<uint64_t, uint32_t> refusals_at_;        // first leased position -> refusals, in this epoch
  std::optional<Sealed> sealed_;
  std::optional<Confirming> confirming_;
  std::optional<RestoreFrom> restore_;  // until every server has it
  std::optional<Saving> saving_;
  std::optional<CheckpointWork> checkpoint_;
  std::optional<Seal> last_made_;  // the newest commit's seal and scale, kept while checkpoints are taken
  double last_scale_ = 1;
  std::map<LeaseId, Lease> departed_;  // leases of whole contributions whose workers are gone
  size_t granted_count_ = 0;           // members that were given work for the step in flight
  size_t next_granted_count_ = 0;      // ... ahead, for the one after
  Time granted_at_;
  Time next_granted_at_;
  uint64_t next_grant_ = 1;
  uint64_t next_lease_ = 1;
  uint64_t nonfinite_in_a_row_ = 0;
  Time recheck_ = Time::Never();
  bool paused_ = false;
  Time paused_at_;
  struct Reported {
    Version base;
    std::vector<Metric> metrics;
  };
  std::map<std::pair<WorkerId, LeaseId>, Reported> reports_;  // of contributions that may still be committed
  std::map<std::string, double> evaluation_;
  std::optional<WorkerId> evaluator_;

  std::vector<Outgoing> outbox_;
  std::vector<CommitRecord> commits_;
  std::vector<Event> events_;
  std::vector<PeerId> closings_;
  Counters counters_;
};

std::string_view Name(Coordinator::State state);

}  // namespace everstep
