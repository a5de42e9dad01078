// Replica: links to other servers, and chunks that move. A server that shall hold a chunk from the next ballot on
// fetches it, parameters and optimizer state, from one that holds it, between two steps (rule R16).
#include <algorithm>

#include "base/log.h"
#include "base/plant.h"
#include "ps/replica.h"

namespace everstep {

// ---- Links ----

Replica::Link& Replica::LinkTo(Time now, const ServerEntry& server) {
  Link& link = links_[server.id];
  if (link.server != server) {
    if (link.peer != PeerId{}) closings_.push_back(link.peer);
    link = Link{server, {}, now, Duration{0}};
  }
  if (link.peer == PeerId{} && now >= link.retry_at) {
    link.peer = {next_link_++};
    openings_.push_back({link.peer, server.address});
  }
  return link;
}

// Links to servers that are in the map no more.
void Replica::ForgetLinks() {
  for (auto it = links_.begin(); it != links_.end();) {
    const ServerEntry* entry = map_->Find(it->first);
    if (entry != nullptr && *entry == it->second.server) {
      ++it;
      continue;
    }
    if (it->second.peer != PeerId{}) closings_.push_back(it->second.peer);
    it = links_.erase(it);
  }
}

// ---- The receiver ----

void Replica::Handle(Time now, PeerId from, const ReceiveChunks& m, Ballot ballot) {
  if (!Obeys(ballot)) return SendStale(from);
  if (map_ && (m.version != version_ || m.digest != digest_)) return;  // a replica copies at its own version only
  if (!map_ && !published_.empty()) return;
  if (move_ && ballot < move_->ballot) return;  // of a move that came to nothing
  if (Status valid = Validate(m.spec, m.chunk_bytes); !valid.ok()) return log::Warning(valid.message() + "; ignored");
  auto layout = layout_ ? layout_ : ChunkLayout::Make(m.spec, m.chunk_bytes);
  if (layout->spec().hash() != m.spec.hash() || m.chunk_bytes != job_->chunk_bytes) {
    return log::Warning("chunks of another model were offered; ignored");
  }
  for (ChunkId chunk : m.chunks) {
    if (chunk.value >= layout->size()) return;
  }
  layout_ = std::move(layout);
  newcomer_ = !map_;
  if (!move_ || move_->ballot != ballot || move_->version != m.version || move_->digest != m.digest) {
    move_ = Move{ballot, m.version, m.digest, {}, {}, {}, {}, now};
  }
  const bool known = std::any_of(move_->parts.begin(), move_->parts.end(), [&](const ReceiveChunks& part) {
    return part.source == m.source && part.chunks == m.chunks;
  });
  if (!known) {
    std::erase_if(move_->parts, [&](const ReceiveChunks& part) { return part.source.id == m.source.id; });
    move_->parts.push_back(m);
    for (ChunkId chunk : m.chunks) move_->copies.try_emplace(chunk);
    move_->asked_at = now;
    AskFor(now, m);
  }
  MaybeCopied();
}

void Replica::AskForChunks(Time now) {
  if (!move_ || now - move_->asked_at < job_->heartbeat()) return;
  move_->asked_at = now;
  for (const ReceiveChunks& part : move_->parts) AskFor(now, part);
}

void Replica::AskFor(Time now, const ReceiveChunks& part) {
  WantChunks want{move_->ballot, move_->version, move_->digest, {}};
  for (ChunkId chunk : part.chunks) {
    if (move_->copies[chunk].parameters.empty() && !move_->importing.contains(chunk)) want.chunks.push_back(chunk);
  }
  if (!want.chunks.empty() || !move_->history) Send(LinkTo(now, part.source).peer, std::move(want));
}

void Replica::Handle(const History& m) {
  if (move_ && newcomer_ && EVERSTEP_PLANTED("add-mid-step")) {
    move_->version = m.version;
    move_->digest = m.digest;
  }
  if (!move_ || m.version != move_->version || m.digest != move_->digest) return;
  move_->history = m;
  MaybeCopied();
}

void Replica::Handle(const ChunkState& m, Buffer payload) {
  if (!move_ || m.version != move_->version || m.digest != move_->digest) return;
  const auto it = move_->copies.find(m.chunk);
  if (it == move_->copies.end() || !it->second.parameters.empty() || move_->importing.contains(m.chunk)) return;
  if (payload.size() != layout_->chunk(m.chunk).bytes * (1 + m.arrays.size())) {
    return log::Warning("chunk " + ToString(m.chunk) + " came with another size than it has; ignored");
  }
  // Held already: nothing may touch the state that the next update goes on from.
  if (std::find(held_chunks_.begin(), held_chunks_.end(), m.chunk) != held_chunks_.end()) return;
  move_->importing.insert(m.chunk);
  imports_.push_back({m, std::move(payload)});
}

void Replica::OnImported(Time, ImportResult result) {
  if (!result.outcome.ok()) log::Warning(result.outcome.ToString());
  if (!move_ || result.header.version != move_->version || result.header.digest != move_->digest) return;
  move_->importing.erase(result.header.chunk);
  if (result.outcome.ok()) move_->copies[result.header.chunk].parameters = std::move(result.parameters);
  MaybeCopied();
}

void Replica::MaybeCopied() {
  if (!move_ || !move_->history || move_->copies.empty()) return;
  Copied answer{id_, options_.incarnation, move_->ballot, move_->version, {}};
  for (const auto& [chunk, copy] : move_->copies) {
    if (copy.parameters.empty()) return;
    answer.chunks.push_back(chunk);
  }
  Send(coordinator_, std::move(answer));
}

// ---- The source ----

void Replica::Handle(PeerId from, const WantChunks& m) {
  if (!map_ || applying_ || m.ballot != promised_) return;
  if ((m.version != version_ || m.digest != digest_) && !EVERSTEP_PLANTED("add-mid-step")) return;
  History history{version_, digest_, applied_, applied_scale_, {}, {}};
  for (const auto& [version, digest] : history_) history.versions.push_back({version, digest});
  for (const SlotKey& key : done_) {
    history.done.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), {std::get<3>(key), 0, {}}});
  }
  Send(from, std::move(history));
  for (ChunkId chunk : std::set<ChunkId>(m.chunks.begin(), m.chunks.end())) {
    const auto it = published_.back().chunks.find(chunk);
    if (it == published_.back().chunks.end()) continue;
    exports_.push_back({from, {version_, digest_, chunk, {}}, it->second});
  }
}

void Replica::OnExported(Time, ExportResult result) {
  Send(result.to, std::move(result.header), std::move(result.payload));
}

// ---- A new map ----

// Whether this server has what the map says it holds.
bool Replica::CanHold(const ShardMap& map) const {
  // In the first map nothing exists yet; a server that came later was offered chunks before it was in any.
  if (published_.empty() && !newcomer_) return true;
  if (!published_.empty() && version_.value == 0) return true;
  const bool moved = move_ && move_->history && (published_.empty() || move_->version == version_) &&
                     (published_.empty() || move_->digest == digest_);
  for (ChunkId chunk : map.HeldChunks(id_)) {
    if (!published_.empty() && published_.back().chunks.contains(chunk)) continue;
    const auto it = moved ? move_->copies.find(chunk) : decltype(move_->copies.find(chunk)){};
    if (!moved || it == move_->copies.end() || it->second.parameters.empty()) return false;
  }
  return true;
}

void Replica::InstallCopies() {
  if (!move_ || !move_->history) return;
  if (published_.empty()) {
    applied_ = move_->history->applied;
    applied_scale_ = move_->history->applied_scale;
    for (const VersionDigest& v : move_->history->versions) history_.emplace(v.version, v.digest);
    for (const Contribution& c : move_->history->done) done_.insert(KeyOf(c));
    Publish(move_->version, move_->digest, {});
  }
  if (move_->version != version_ || move_->digest != digest_) return;
  for (ChunkId chunk : held_chunks_) {
    const auto it = move_->copies.find(chunk);
    if (it == move_->copies.end() || it->second.parameters.empty()) continue;
    if (published_.back().chunks.contains(chunk)) continue;
    published_.back().chunks.emplace(chunk, it->second.parameters);
  }
}

void Replica::AdoptPlacement(Time now) {
  primary_chunks_ = map_->PrimaryChunks(id_);
  held_chunks_ = map_->HeldChunks(id_);
  InstallCopies();
  move_.reset();
  if (published_.empty()) Publish({0}, {}, {});
  const auto held = [&](ChunkId chunk) { return map_->Holds(id_, chunk); };
  for (Published& published : published_) {
    std::erase_if(published.chunks, [&](const auto& entry) { return !held(entry.first); });
  }
  // A record that lacks the sum of a chunk held now is of a seal that was dropped before the chunk came.
  if (prepared_ && !std::all_of(held_chunks_.begin(), held_chunks_.end(),
                                [&](ChunkId chunk) { return prepared_->sums.contains(chunk); })) {
    prepared_.reset();
  }
  for (auto& [key, slot] : slots_) {
    std::erase_if(slot.chunks, [&](const auto& entry) {
      if (map_->IsPrimary(id_, entry.first)) return false;
      slot.bytes -= entry.second.size();
      return true;
    });
  }
  // Readers that wait for what is elsewhere now; and those that asked for all, which is more or less now: they may have
  // meant it by the new map already, and would get only a part.
  std::erase_if(waiting_, [&](const WaitingPull& w) {
    const bool same = !w.all || w.pull.chunks == primary_chunks_;
    if (same && std::all_of(w.pull.chunks.begin(), w.pull.chunks.end(), held)) return false;
    Send(w.peer, WrongShard{*map_});
    return true;
  });
  ForgetLinks();
  // Ready for the first sum.
  for (ChunkId chunk : primary_chunks_) {
    const auto& holders = map_->replicas[chunk.value];
    for (size_t k = 1; k < holders.size(); ++k) (void)LinkTo(now, map_->servers[holders[k]]);
  }
}

}  // namespace everstep
