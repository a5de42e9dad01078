// Coordinator: chunks that move between servers. A lost copy is made again, a new server gets its share, a draining one
// is emptied: all of it is a copy between two steps and a new map (rule R16), at most limits::kMoveBatchBytes at a time
// so that no step is held up for long.
#include <algorithm>

#include "base/limits.h"
#include "base/log.h"
#include "base/plant.h"
#include "ps/coordinator.h"

namespace everstep {
namespace {

// After a move the steps get so many times its duration for themselves, unless one of them is over before.
constexpr int kRestFactor = 3;

}  // namespace

// True while the step must not be sealed, because chunks move or are about to.
bool Coordinator::WantsMove(Time now) {
  if (!rebalance_ || !map_ || version_.value == 0 || restarted_ || giving_up_) return false;
  const Time earliest = version_ == moved_at_ ? std::max(next_move_at_, no_move_before_) : no_move_before_;
  if (now < earliest) {
    recheck_ = std::min(recheck_, earliest);
    return false;
  }
  if (confirming_ && !EVERSTEP_PLANTED("add-mid-step")) return true;  // every replica must have applied the version
  for (const Server& server : servers_) {
    // It will be back or taken out of the map in a moment; until then nobody knows which copies there are.
    if (InMap(server) && server.peer == PeerId{}) return false;
  }
  std::vector<ServerEntry> reachable;
  std::set<ServerId> draining;
  size_t staying = 0;
  for (const Server& server : servers_) {
    if (server.draining) draining.insert(server.id);
    if (server.peer == PeerId{} || (server.draining && !InMap(server))) continue;
    if (!server.beats && !InMap(server)) continue;  // whoever only said hello may never say anything else
    reachable.push_back({server.id, server.incarnation, server.address});
    if (const ServerEntry* entry = map_->Find(server.id)) reachable.back() = *entry;
    staying += !server.draining;
  }
  auto plan = PlanMove(*map_, *layout_, reachable, draining, options_.spec.Copies(staying), limits::kMoveBatchBytes);
  if (!plan) {
    rebalance_ = false;
    return false;
  }
  BeginMove(now, std::move(*plan));
  return true;
}

void Coordinator::BeginMove(Time now, MovePlan plan) {
  state_ = State::kMoving;
  moving_ = Moving{std::move(plan), {}, now};
  for (const ChunkCopy& copy : moving_->plan.copies) moving_->waiting[copy.to].insert(copy.chunk);
  if (moving_->waiting.empty()) return EndMove(now);
  SendMove();
  next_retransmit_ = now + options_.spec.retransmit();
}

void Coordinator::SendMove() {
  std::map<std::pair<ServerId, ServerId>, std::vector<ChunkId>> parts;
  for (const ChunkCopy& copy : moving_->plan.copies) {
    if (moving_->waiting.contains(copy.to)) parts[{copy.to, copy.from}].push_back(copy.chunk);
  }
  for (auto& [way, chunks] : parts) {
    const Server* to = FindServer(way.first);
    const ServerEntry* from = map_->Find(way.second);
    if (to == nullptr || from == nullptr) continue;
    Send(to->peer, ReceiveChunks{*from, version_, digest_, std::move(chunks), map_->chunk_bytes, *parameters_});
  }
}

void Coordinator::Handle(Time now, PeerId from, const Copied& m) {
  const Server* server = FindServerByPeer(from);
  if (state_ != State::kMoving || server == nullptr || server->id != m.server) return;
  if (server->incarnation != m.incarnation || m.ballot != ballot_) return;
  if (m.version != version_ && !EVERSTEP_PLANTED("add-mid-step")) return;
  const auto waiting = moving_->waiting.find(m.server);
  if (waiting == moving_->waiting.end()) return;
  for (ChunkId chunk : m.chunks) waiting->second.erase(chunk);
  if (waiting->second.empty()) moving_->waiting.erase(waiting);
  if (moving_->waiting.empty()) EndMove(now);
}

// The copies are made: the new map comes into force with a ballot, like every change.
void Coordinator::EndMove(Time now) {
  const MovePlan plan = std::move(moving_->plan);
  const Duration took = now - moving_->began;
  counters_.moved_chunks += plan.copies.size();
  counters_.moved_bytes += plan.bytes;
  moved_at_ = version_;
  next_move_at_ = now + took * kRestFactor;
  const std::string what = std::to_string(plan.copies.size()) + " chunks, " + std::to_string(plan.bytes) +
                           " bytes in " + std::to_string(static_cast<int>(Milliseconds(took))) + " ms";
  Note(now, "moved", options_.spec.name, what);
  NewBallot(now, "chunks have new holders", plan.next);
}

// Nothing has changed yet, so there is nothing to undo; a receiver forgets its copies with the next ballot.
void Coordinator::CancelMove(Time now, Duration rest) {
  moving_.reset();
  if (state_ == State::kMoving) state_ = State::kOpen;
  no_move_before_ = now + rest;
}

// A server that goes, and holds nothing yet, must not be in the next map: also when its copies are made and only those
// of others are waited for. Nobody would take it out again.
void Coordinator::CancelMoveTo(Time now, ServerId id) {
  if (moving_ && moving_->plan.next.Find(id) != nullptr) CancelMove(now, options_.spec.retransmit());
}

// Whoever cannot be copied to must not hold up the steps for ever.
void Coordinator::ExpireMove(Time now) {
  const JobSpec& job = options_.spec;
  if (!moving_ || now - moving_->began <= job.timeout) return;
  std::string names;
  for (const auto& [id, chunks] : moving_->waiting) names += (names.empty() ? "" : ", ") + FindServer(id)->name;
  Note(now, "move-failed", names,
       "it did not get its chunks within " + std::to_string(static_cast<int>(Seconds(job.timeout))) +
           " s; tried again later");
  CancelMove(now, job.progress_deadline());
}

}  // namespace everstep
