#include "ps/replica.h"

#include <algorithm>

#include "base/limits.h"
#include "base/log.h"
#include "base/plant.h"
#include "ps/clip.h"

namespace everstep {
namespace {

// Published versions that readers may still ask for: the newest, and the one before for readers that were half-way
// through when it came (promise P10). Asynchronous modes commit faster than a pull, so they keep two more.
size_t KeptVersions(Mode mode) { return mode == Mode::kSync ? 2 : 4; }

constexpr size_t kMaxDeferred = 64;
constexpr Duration kFirstBackoff = std::chrono::milliseconds(20);
constexpr Duration kLongestBackoff = std::chrono::seconds(1);

}  // namespace

Replica::Replica(Options options) : options_(std::move(options)) {}

// ---- Links and timers ----

void Replica::OnCoordinatorLink(Time now, PeerId peer) {
  coordinator_ = peer;
  welcomed_ = false;
  heard_at_ = now;
  SendHello(now);
}

void Replica::SendHello(Time now) {
  Hello hello;
  hello.role = PeerRole::kServer;
  hello.name = options_.name;
  hello.incarnation = options_.incarnation;
  hello.address = options_.address;
  hello.may_coordinate = options_.may_coordinate;
  Send(coordinator_, hello);
  next_tick_ = now + (job_ ? job_->retransmit() : std::chrono::milliseconds(500));
}

void Replica::OnTick(Time now) {
  if (now < next_tick_) return;
  if (coordinator_ == PeerId{}) {
    next_tick_ = Time::Never();
    return;
  }
  if (!welcomed_) return SendHello(now);
  Send(coordinator_, Heartbeat{});
  if (draining_) Send(coordinator_, ControlRequest{"drain", {}});
  AskForSums(now);
  AskForChunks(now);
  // A lost Staged would leave the step waiting for a contribution that is here (rule R18).
  for (const auto& [key, slot] : slots_) {
    if (Whole(slot) && !EVERSTEP_PLANTED("slots-announced-once")) Announce(slot);
  }
  next_tick_ = now + job_->heartbeat();
}

void Replica::OnClosed(Time now, PeerId peer) {
  std::erase_if(waiting_, [&](const WaitingPull& w) { return w.peer == peer; });
  if (peer == coordinator_) coordinator_ = {};
  for (auto& [id, link] : links_) {
    if (link.peer != peer) continue;
    link.peer = {};
    link.backoff = std::min<Duration>(kLongestBackoff, link.backoff == Duration{0} ? kFirstBackoff : link.backoff * 2);
    link.retry_at = now + link.backoff;
  }
}

void Replica::Send(PeerId to, Body body, Buffer payload) {
  if (to == PeerId{}) return;
  outbox_.push_back({to, {job_uid_, promised_, std::move(body)}, std::move(payload)});
}

// ---- Dispatch ----

bool Replica::Obeys(Ballot ballot) const {
  if (EVERSTEP_PLANTED("no-promise")) return true;
  return ballot >= promised_;
}

// A server that was started again and has no job yet may have that one in a moment.
Status Replica::NotMyJob() const {
  if (job_uid_ == JobUid{}) return {Code::kUnavailable, "this server has no job yet; try again"};
  return {Code::kWrongJob, "this server runs another job"};
}

void Replica::OnMessage(Time now, PeerId from, const Envelope& envelope, Buffer payload) {
  if (const auto* push = std::get_if<Push>(&envelope.body)) {
    if (envelope.job != job_uid_) return RefusePush(from, *push, NotMyJob());
    return Handle(from, *push, std::move(payload));
  }
  if (const auto* pull = std::get_if<Pull>(&envelope.body)) {
    if (envelope.job != job_uid_) {
      const Status why = NotMyJob();
      return Send(from, PullRefused{why.code(), version_, why.message()});
    }
    return Handle(from, *pull);
  }
  if (job_uid_ != JobUid{} && envelope.job == job_uid_) {
    // From other servers; each is checked against the map or the move that it belongs to.
    if (const auto* m = std::get_if<ReplicateSum>(&envelope.body)) {
      Handle(*m, envelope.ballot, std::move(payload));
      return MaybePrepared(now);
    }
    if (const auto* m = std::get_if<WantSums>(&envelope.body)) return Handle(from, *m);
    if (const auto* m = std::get_if<WantChunks>(&envelope.body)) return Handle(from, *m);
    if (const auto* m = std::get_if<History>(&envelope.body)) return Handle(*m);
    if (const auto* m = std::get_if<ChunkState>(&envelope.body)) return Handle(*m, std::move(payload));
  }
  if (from != coordinator_) return;  // the rest comes from the coordinator alone
  heard_at_ = now;
  if (const auto* m = std::get_if<Welcome>(&envelope.body)) return Handle(now, from, envelope, *m);
  if (const auto* m = std::get_if<Refused>(&envelope.body)) {
    if (!welcomed_) failure_ = Status(m->code, m->message).With("the coordinator refused this server");
    return;
  }
  if (!welcomed_ || envelope.job != job_uid_) return;
  if (const auto* m = std::get_if<JobFailed>(&envelope.body)) {
    failure_ = Status(m->code, m->message);
    return;
  }
  if (std::holds_alternative<Finish>(envelope.body)) {
    finished_ = true;
    return;
  }
  if (std::holds_alternative<Drained>(envelope.body)) {
    drained_ = true;
    return;
  }
  if (const auto* m = std::get_if<ControlReply>(&envelope.body)) {
    if (m->code != Code::kOk) drain_refused_ = Status(m->code, m->message);
    return;
  }
  if (applying_) {
    // The decision being carried out is final: what comes after it is answered from the version it leads to.
    if (deferred_.size() < kMaxDeferred) deferred_.push_back({from, envelope});
    return;
  }
  if (const auto* m = std::get_if<Promise>(&envelope.body)) return Handle(now, from, *m, envelope.ballot);
  if (const auto* m = std::get_if<ReceiveChunks>(&envelope.body)) return Handle(now, from, *m, envelope.ballot);
  if (const auto* m = std::get_if<SealStep>(&envelope.body)) return Handle(now, from, *m, envelope.ballot);
  if (const auto* m = std::get_if<Commit>(&envelope.body)) return Handle(now, from, *m, envelope.ballot);
  if (const auto* m = std::get_if<Snapshot>(&envelope.body)) return Handle(from, *m);
}

void Replica::RunDeferred(Time now) {
  std::deque<Deferred> waiting;
  waiting.swap(deferred_);
  for (Deferred& d : waiting) OnMessage(now, d.from, d.envelope, {});
}

// ---- Joining and promising ----

void Replica::Handle(Time now, PeerId, const Envelope& envelope, const Welcome& m) {
  if (welcomed_) return;
  if (job_uid_ != JobUid{} && envelope.job != job_uid_) {
    failure_ =
        Status(Code::kWrongJob, "the coordinator now runs another job than the one this server holds; restart it");
    return;
  }
  welcomed_ = true;
  job_uid_ = envelope.job;
  job_ = m.job;
  id_ = m.server;
  next_tick_ = now;  // the first heartbeat says that this server is really there
  if (draining_) Send(coordinator_, ControlRequest{"drain", {}});
}

void Replica::Drain(Time) {
  draining_ = true;
  if (welcomed_) Send(coordinator_, ControlRequest{"drain", {}});
}

void Replica::Handle(Time now, PeerId from, const Promise& m, Ballot ballot) {
  if (!Obeys(ballot)) return SendStale(from);
  if (m.map.ballot != ballot || m.map.Find(id_) == nullptr || m.map.Find(id_)->incarnation != options_.incarnation) {
    return log::Warning("a promise was asked for a map that this server is not in; ignored");
  }
  if (Status valid = Validate(m.spec, m.map.chunk_bytes); !valid.ok())
    return log::Warning(valid.message() + "; ignored");
  auto layout = layout_ ? layout_ : ChunkLayout::Make(m.spec, m.map.chunk_bytes);
  if (layout->spec().hash() != m.map.spec_hash) return log::Warning("a map of another model was offered; ignored");
  if (Status valid = Validate(m.map, *layout); !valid.ok()) return log::Warning(valid.message() + "; ignored");
  if (!CanHold(m.map)) return log::Warning("a map gives this server chunks that it was never given; ignored");
  // Asked once more, perhaps by a message that was long under way: the same answer, and nothing of what has happened
  // since is undone.
  if (ballot != promised_ || !map_) {
    promised_ = ballot;
    layout_ = std::move(layout);
    map_ = m.map;
    AdoptPlacement(now);
    // A sum that was not prepared before the promise is no record.
    summing_.reset();
    gathering_.reset();
    nonfinite_.reset();
    if (!EVERSTEP_PLANTED("old-sums"))
      std::erase_if(early_, [&](const auto& entry) { return entry.first.ballot < promised_; });
  }
  if (MustRestore(m.restore)) return Restore(*m.restore);
  AnswerPromise(from);
}

void Replica::AnswerPromise(PeerId to) {
  Promised answer{id_, options_.incarnation, version_, digest_, applied_, applied_scale_, {}, {}, {}};
  if (prepared_) {
    answer.prepared = prepared_->seal;
    answer.norms = NormsOf(*prepared_);
  }
  for (const auto& [key, slot] : slots_) {
    if (Whole(slot) && !EVERSTEP_PLANTED("slots-announced-once")) answer.held.push_back(slot.contribution);
  }
  Send(to, std::move(answer));
}

void Replica::SendStale(PeerId to) { Send(to, StaleBallot{id_, promised_, version_}); }

// ---- Staging ----

Status Replica::CheckPush(const Push& push, const Buffer& payload) const {
  const Contribution& c = push.contribution;
  if (!map_) return {Code::kUnavailable, "the servers are not ready; push again"};
  if (push.chunk.value >= layout_->size()) return {Code::kCorrupt, "the model has no such chunk"};
  if (!map_->IsPrimary(id_, push.chunk)) return {Code::kWrongShard, "the chunk lives elsewhere"};
  const uint64_t bytes = layout_->chunk(push.chunk).bytes;
  if (payload.size() != bytes && !EVERSTEP_PLANTED("trust-the-sender")) {
    return {Code::kCorrupt, "chunk " + ToString(push.chunk) + " has " + std::to_string(bytes) + " bytes, " +
                                std::to_string(payload.size()) + " came"};
  }
  if (c.base > version_) return {Code::kFuture, "that version does not exist yet"};
  const uint64_t allowed = job_->mode == Mode::kSync ? 0 : job_->staleness;
  if (version_.value - c.base.value > allowed && !EVERSTEP_PLANTED("accept-stale")) {
    return {Code::kStale, "the step is over: version " + ToString(version_) + " is committed"};
  }
  const auto known = history_.find(c.base);
  if (known == history_.end() || known->second != c.base_digest) {
    return {Code::kStale, "based on another history of version " + ToString(c.base)};
  }
  return Status::Ok();
}

void Replica::Handle(PeerId from, const Push& m, Buffer payload) {
  if (Status fine = CheckPush(m, payload); !fine.ok()) {
    if (fine.code() == Code::kWrongShard && map_) Send(from, WrongShard{*map_});
    return RefusePush(from, m, std::move(fine));
  }
  const Contribution& c = m.contribution;
  SlotKey key = KeyOf(c);
  if (EVERSTEP_PLANTED("slot-by-name")) key = {c.worker, c.base, {}, {}};
  auto it = slots_.find(key);
  if (done_.contains(key) && !EVERSTEP_PLANTED("late-duplicate")) {
    ++counters_.duplicate_pushes;
    return;
  }
  if (it == slots_.end()) {
    if (slots_.size() >= limits::kMaxSlots)
      return RefusePush(from, m, {Code::kResourceExhausted, "too many contributions are staged here"});
    it = slots_.emplace(key, Slot{c, {}, 0}).first;
  }
  Slot& slot = it->second;
  if (slot.contribution != c && !EVERSTEP_PLANTED("slot-by-name")) {
    return RefusePush(from, m, {Code::kCorrupt, "one contribution with two leases"});
  }
  if (Whole(slot) || slot.chunks.contains(m.chunk)) {
    ++counters_.duplicate_pushes;
    return;
  }
  slot.bytes += payload.size();
  slot.chunks.emplace(m.chunk, std::move(payload));
  if (Whole(slot) || EVERSTEP_PLANTED("staged-early")) Announce(slot);
}

void Replica::Announce(const Slot& slot) { Send(coordinator_, Staged{id_, slot.contribution}); }

void Replica::RefusePush(PeerId to, const Push& push, Status why) {
  ++counters_.refused_pushes;
  Send(to, PushRefused{push.contribution, push.chunk, why.code(), version_, why.message()});
}

// ---- Sealing and summing ----

void Replica::Handle(Time now, PeerId from, const SealStep& m, Ballot ballot) {
  const Seal& seal = m.seal;
  if (!map_ || !Obeys(ballot) || seal.id.ballot != ballot) return SendStale(from);
  if (applied_ && applied_->id == seal.id) return SendApplied(from);
  if (seal.id.step != version_ || seal.previous != digest_) return SendStale(from);
  promised_ = std::max(promised_, ballot);
  if (prepared_ && prepared_->seal.id == seal.id) return SendPrepared(from);
  if (nonfinite_ && nonfinite_->seal == seal.id) return Send(from, *nonfinite_);
  if ((summing_ && summing_->id == seal.id) || (gathering_ && gathering_->seal.id == seal.id)) return;
  if (prepared_ && prepared_->seal.id.ballot >= ballot) return SendStale(from);
  collapsed_ = m.collapsed;
  StartSum(seal);
  // A server without chunks has nothing to compute.
  if (primary_chunks_.empty()) OnSummed(now, {seal.id, {}, {}, {}, {}});
}

void Replica::SendPrepared(PeerId to) {
  Send(to, Prepared{id_, options_.incarnation, prepared_->seal.id, prepared_->seal.digest, NormsOf(*prepared_)});
}

std::vector<ChunkNorm> Replica::NormsOf(const Record& record) {
  std::vector<ChunkNorm> norms;
  for (const auto& [chunk, squared] : record.squared_norms) norms.push_back({chunk, squared});
  return norms;
}

// ---- Committing and publishing ----

void Replica::Handle(Time, PeerId from, const Commit& m, Ballot ballot) {
  if (applied_ && applied_->id == m.seal && applied_->digest == m.digest) return SendApplied(from);
  if (!Obeys(ballot)) return SendStale(from);
  const bool same = prepared_ && prepared_->seal.id.step == version_ && prepared_->seal.digest == m.digest;
  if (!same && !(prepared_ && EVERSTEP_PLANTED("commit-by-step"))) return SendStale(from);
  StartApply(m.scale);
}

void Replica::StartApply(double scale) {
  applying_ = true;
  applying_scale_ = scale;
  const Record& record = *prepared_;
  ApplyWork work{record.seal.id, {}, {}, {}, record.seal.learning_rate, scale, record.seal.id.step.value};
  const uint64_t every = job_->verify_replicas;
  work.check = every > 0 && version_.value % every == 0 && map_->servers.size() > 1;
  if (!record.ahead.empty()) {
    work.chunks = held_chunks_;
    work.parameters = record.ahead;
    work.ahead = true;
    applies_.push_back(std::move(work));
    return;
  }
  for (ChunkId chunk : held_chunks_) {
    const Buffer& sum = record.sums.at(chunk);
    work.chunks.push_back(chunk);
    work.sums.push_back(sum);
    if (version_.value > 0) work.parameters.push_back(published_.back().chunks.at(chunk));
  }
  if (version_.value == 0) {
    // Step 0 is the initialisation: its one contribution is the parameters themselves.
    work.parameters = work.sums;
    return OnApplied({}, {work.seal, std::move(work.parameters), {}});
  }
  if (work.chunks.empty()) return OnApplied({}, {work.seal, {}, {}});
  applies_.push_back(std::move(work));
}

void Replica::OnApplied(Time now, ApplyResult result) {
  EVERSTEP_CHECK(applying_ && prepared_ && prepared_->seal.id == result.seal, "an update that nobody asked for");
  applying_ = false;
  std::map<ChunkId, Buffer> chunks;
  checks_.clear();
  for (size_t i = 0; i < held_chunks_.size(); ++i) {
    chunks.emplace(held_chunks_[i], std::move(result.parameters[i]));
    if (i < result.checksums.size()) checks_.push_back({held_chunks_[i], result.checksums[i]});
  }
  applied_ = std::move(prepared_->seal);
  applied_scale_ = applying_scale_;
  prepared_.reset();
  nonfinite_.reset();
  Publish(Next(version_), applied_->digest, std::move(chunks));
  DropSlotsAfter(*applied_);
  SendApplied(coordinator_);
  std::erase_if(early_, [&](const auto& entry) { return entry.first.step < version_; });
  move_.reset();  // a copy of the version before is of no use
  AnswerWaitingPulls();
  RunDeferred(now);
}

void Replica::SendApplied(PeerId to) {
  Send(to, Applied{id_, options_.incarnation, applied_->id, applied_->digest, applied_scale_, checks_});
}

void Replica::Publish(Version version, Digest digest, std::map<ChunkId, Buffer> chunks) {
  version_ = version;
  digest_ = digest;
  published_.push_back({version, digest, std::move(chunks)});
  while (published_.size() > KeptVersions(job_->mode)) published_.pop_front();
  history_.emplace(version, digest);
  const uint64_t allowed = job_->mode == Mode::kSync ? 0 : job_->staleness;
  while (!history_.empty() && history_.begin()->first.value + allowed < version.value &&
         !EVERSTEP_PLANTED("accept-stale")) {
    history_.erase(history_.begin());
  }
}

void Replica::DropSlotsAfter(const Seal& applied) {
  for (const Contribution& c : applied.contributors) done_.insert(KeyOf(c));
  std::erase_if(done_, [&](const SlotKey& key) { return !history_.contains(std::get<Version>(key)); });
  std::erase_if(slots_, [&](const auto& entry) {
    const Contribution& c = entry.second.contribution;
    if (EVERSTEP_PLANTED("keep-slots")) return false;
    if (!history_.contains(c.base)) return true;
    return std::find(applied.contributors.begin(), applied.contributors.end(), c) != applied.contributors.end();
  });
}

// ---- Reading ----

const Replica::Published* Replica::Find(Version version) const {
  for (const Published& p : published_) {
    if (p.version == version) return &p;
  }
  return nullptr;
}

const std::map<ChunkId, Buffer>* Replica::Parameters(Version version) const {
  const Published* found = Find(version);
  return found == nullptr ? nullptr : &found->chunks;
}

void Replica::Handle(PeerId from, const Pull& m) {
  if (!map_) return Send(from, PullRefused{Code::kUnavailable, version_, "the servers are not ready; pull again"});
  for (ChunkId chunk : m.chunks) {
    if (chunk.value >= layout_->size())
      return Send(from, PullRefused{Code::kCorrupt, version_, "the model has no such chunk"});
    if (!map_->IsPrimary(id_, chunk)) return Send(from, WrongShard{*map_});
  }
  if (m.pending && !done_.contains(KeyOf(*m.pending))) AnswerPending(from, *m.pending);
  // One a link: what an earlier life of the worker waited for there is void.
  std::erase_if(waiting_, [&](const WaitingPull& w) { return w.peer == from; });
  if (m.at_least <= version_) {
    const Published* published = m.exact ? Find(m.at_least) : &published_.back();
    if (published != nullptr) return AnswerPull(from, m, *published);
    return Send(from, PullRefused{Code::kStale, version_, "version " + ToString(m.at_least) + " is not kept any more"});
  }
  if (waiting_.size() >= limits::kMaxWaitingPulls) {
    return Send(from, PullRefused{Code::kResourceExhausted, version_, "too many readers wait here"});
  }
  waiting_.push_back({from, m, m.chunks.empty()});
  // What "all" means is said by the map of now.
  if (m.chunks.empty()) waiting_.back().pull.chunks = primary_chunks_;
}

// The worker believes that its contribution is here. Says which parts are not (lost with a link that broke), or that it
// became too old before it was whole; in step with the others the next version says the latter.
void Replica::AnswerPending(PeerId to, const Contribution& c) {
  if (c.base > version_) return;
  if (!history_.contains(c.base)) {
    if (job_->mode == Mode::kSync) return;
    return Send(to, PushRefused{c, {}, Code::kStale, version_, "it became too old before all of it was here"});
  }
  const auto it = slots_.find(KeyOf(c));
  Missing missing{c, {}};
  for (ChunkId chunk : primary_chunks_) {
    if (it == slots_.end() || !it->second.chunks.contains(chunk)) missing.chunks.push_back(chunk);
  }
  if (!missing.chunks.empty()) Send(to, std::move(missing));
}

void Replica::AnswerPull(PeerId to, const Pull& pull, const Published& published) {
  for (ChunkId chunk : pull.chunks.empty() ? primary_chunks_ : pull.chunks) {
    const auto it = published.chunks.find(chunk);
    if (it != published.chunks.end()) Send(to, ChunkData{published.version, published.digest, chunk}, it->second);
  }
}

void Replica::AnswerWaitingPulls() {
  std::vector<WaitingPull> still;
  for (WaitingPull& w : waiting_) {
    if (w.pull.at_least > version_) {
      still.push_back(std::move(w));
    } else {
      AnswerPull(w.peer, w.pull, published_.back());
    }
  }
  waiting_ = std::move(still);
}

Replica::Stats Replica::stats() const {
  Stats stats = counters_;
  stats.slots = slots_.size();
  for (const auto& [key, slot] : slots_) stats.slot_bytes += slot.bytes;
  stats.waiting_pulls = waiting_.size();
  return stats;
}

}  // namespace everstep
