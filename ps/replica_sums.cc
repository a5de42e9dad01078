// Replica: the sums of a seal. A primary adds up the contributions to its chunks and sends each sum to the chunk's
// backups; a replica is prepared when the sums of all its chunks are here (rules R9, R10, R13, R18).
#include <algorithm>

#include "base/log.h"
#include "base/plant.h"
#include "ps/clip.h"
#include "ps/replica.h"

namespace everstep {
namespace {

// Sums of this many seals may be waiting: the one that is under way and the one after it.
constexpr size_t kMaxEarlySeals = 2;

}  // namespace

// ---- Own sums ----

void Replica::StartSum(const Seal& seal) {
  SumWork work{seal.id, primary_chunks_, {}, seal.weights, {}};
  std::vector<const Slot*> slots;
  for (const Contribution& c : seal.contributors) {
    SlotKey key = KeyOf(c);
    if (EVERSTEP_PLANTED("slot-by-name")) key = {c.worker, c.base, {}, {}};
    const auto it = slots_.find(key);
    if (!primary_chunks_.empty() && (it == slots_.end() || !Whole(it->second))) {
      if (EVERSTEP_PLANTED("sum-what-is-here")) {
        work.weights.erase(work.weights.begin() + static_cast<long>(slots.size()));
        continue;
      }
      return log::Warning("a seal names a contribution that is not here; waiting for another ballot");
    }
    if (!primary_chunks_.empty()) slots.push_back(&it->second);
  }
  gathering_.reset();
  summing_ = seal;
  if (primary_chunks_.empty()) return;
  for (ChunkId chunk : primary_chunks_) {
    auto& inputs = work.contributions.emplace_back();
    for (const Slot* slot : slots) inputs.push_back(slot->chunks.at(chunk));
  }
  if (collapsed_ && seal.clip_norm == 0 && version_.value > 0) {
    work.ahead = Ahead{{}, seal.learning_rate, seal.id.step.value};
    for (ChunkId chunk : primary_chunks_) work.ahead->parameters.push_back(published_.back().chunks.at(chunk));
  }
  if (EVERSTEP_PLANTED("arrival-order")) {
    for (auto& inputs : work.contributions) std::reverse(inputs.begin(), inputs.end());
  }
  sums_.push_back(std::move(work));
}

void Replica::OnSummed(Time now, SumResult result) {
  if (!summing_ || summing_->id != result.seal || version_ != result.seal.step) return;  // superseded meanwhile
  Seal seal = std::move(*summing_);
  summing_.reset();
  std::vector<WorkerId> poisoned;
  for (const auto& positions : result.nonfinite) {
    for (uint32_t position : positions) {
      if (position < seal.contributors.size()) poisoned.push_back(seal.contributors[position].worker);
    }
  }
  if (!poisoned.empty() && !EVERSTEP_PLANTED("let-nan-in")) {
    std::sort(poisoned.begin(), poisoned.end());
    poisoned.erase(std::unique(poisoned.begin(), poisoned.end()), poisoned.end());
    counters_.nonfinite += poisoned.size();
    nonfinite_ = NonFinite{id_, seal.id, std::move(poisoned)};
    return Send(coordinator_, *nonfinite_);
  }
  gathering_ = Record{std::move(seal), {}, {}, std::move(result.ahead)};
  gathering_since_ = now;
  for (size_t i = 0; i < result.squared_norms.size(); ++i) {
    if (gathering_->ahead.empty()) gathering_->sums.emplace(primary_chunks_[i], std::move(result.sums[i]));
    gathering_->squared_norms.emplace(primary_chunks_[i], result.squared_norms[i]);
  }
  for (ChunkId chunk : primary_chunks_) {
    const auto& holders = map_->replicas[chunk.value];
    for (size_t k = 1; k < holders.size(); ++k)
      SendSum(LinkTo(now, map_->servers[holders[k]]).peer, *gathering_, chunk);
  }
  TakeEarlySums();
  MaybePrepared(now);
}

// ---- The others' sums ----

void Replica::SendSum(PeerId to, const Record& record, ChunkId chunk) {
  Send(to,
       ReplicateSum{id_, options_.incarnation, record.seal.id, record.seal.digest, chunk,
                    record.squared_norms.at(chunk)},
       record.sums.at(chunk));
}

// Rule R9: only of a ballot that is not over, only for a step that is not over, only for chunks held here and only from
// their primary. What belongs to a seal or promise that is still under way waits, within bounds.
void Replica::Handle(const ReplicateSum& m, Ballot ballot, Buffer payload) {
  if (!layout_ || m.chunk.value >= layout_->size() || payload.size() != layout_->chunk(m.chunk).bytes) return;
  if ((!Obeys(ballot) && !EVERSTEP_PLANTED("old-sums")) || m.seal.ballot != ballot) return;
  if (m.seal.step < version_ || m.seal.step > Next(version_)) return;
  const ServerEntry* sender = map_ ? map_->Find(m.server) : nullptr;
  if (sender == nullptr || sender->incarnation != m.incarnation) return;  // trace T8
  auto& early = early_[m.seal];
  early[m.chunk] = {m.server, m.incarnation, m.digest, m.squared, std::move(payload)};
  // The oldest are over first; what is dropped wrongly is asked for again.
  while (early_.size() > kMaxEarlySeals) early_.erase(early_.begin());
  TakeEarlySums();
}

void Replica::TakeEarlySums() {
  if (!gathering_ || !map_) return;
  auto it = early_.find(gathering_->seal.id);
  if (EVERSTEP_PLANTED("old-sums") && !early_.empty()) it = early_.begin();
  if (it == early_.end()) return;
  for (auto& [chunk, early] : std::exchange(it->second, {})) {
    if ((early.digest != gathering_->seal.digest && !EVERSTEP_PLANTED("old-sums")) || !map_->Holds(id_, chunk))
      continue;
    const ServerEntry& primary = map_->primary(chunk);
    if (primary.id == id_ || primary.id != early.server || primary.incarnation != early.incarnation) continue;
    gathering_->sums.emplace(chunk, std::move(early.sum));
    gathering_->squared_norms.emplace(chunk, early.squared);
  }
}

void Replica::MaybePrepared(Time) {
  if (!gathering_ || gathering_->seal.id.step != version_) return;
  const size_t here = std::max(gathering_->sums.size(), gathering_->ahead.size());
  if (here < held_chunks_.size()) {
    if (EVERSTEP_PLANTED("prepared-early")) {
      Send(coordinator_,
           Prepared{id_, options_.incarnation, gathering_->seal.id, gathering_->seal.digest, NormsOf(*gathering_)});
    }
    return;
  }
  prepared_ = std::move(*gathering_);
  gathering_.reset();
  early_.erase(prepared_->seal.id);
  if (collapsed_) {
    StartApply(ClipScale(prepared_->seal.clip_norm, prepared_->squared_norms));
  } else {
    SendPrepared(coordinator_);
  }
}

// ---- Lost ones ----

void Replica::AskForSums(Time now) {
  if (!gathering_ || now - gathering_since_ < job_->heartbeat() / 2) return;
  std::map<ServerId, std::vector<ChunkId>> missing;
  for (ChunkId chunk : held_chunks_) {
    if (!gathering_->sums.contains(chunk)) missing[map_->primary(chunk).id].push_back(chunk);
  }
  for (auto& [server, chunks] : missing) {
    Send(LinkTo(now, *map_->Find(server)).peer,
         WantSums{id_, options_.incarnation, gathering_->seal.id, gathering_->seal.digest, std::move(chunks)});
  }
}

const Replica::Record* Replica::RecordOf(const SealId& seal, Digest digest) const {
  for (const std::optional<Record>* record : {&gathering_, &prepared_}) {
    if (*record && (*record)->seal.id == seal && (*record)->seal.digest == digest) return &**record;
  }
  return nullptr;
}

void Replica::Handle(PeerId from, const WantSums& m) {
  const Record* record = RecordOf(m.seal, m.digest);
  if (record == nullptr || !map_) return;
  const ServerEntry* asker = map_->Find(m.server);
  if (asker == nullptr || asker->incarnation != m.incarnation || m.seal.ballot != promised_) return;
  for (ChunkId chunk : m.chunks) {
    if (chunk.value >= layout_->size() || !map_->IsPrimary(id_, chunk) || !map_->Holds(m.server, chunk)) continue;
    if (!record->sums.contains(chunk)) continue;
    SendSum(from, *record, chunk);
  }
}

}  // namespace everstep
