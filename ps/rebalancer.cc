#include "ps/rebalancer.h"

#include <algorithm>
#include <map>

namespace everstep {
namespace {

using Holders = std::vector<ServerId>;  // of one chunk, primary first

class Planner {
 public:
  Planner(const ShardMap& map, const ChunkLayout& layout, const std::vector<ServerEntry>& servers,
          const std::set<ServerId>& draining, uint32_t replicas, uint64_t max_bytes)
      : map_(map), layout_(layout), servers_(servers), draining_(draining), budget_(max_bytes) {
    for (const ServerEntry& server : servers) {
      reachable_.insert(server.id);
      if (!draining.contains(server.id)) load_[server.id] = 0;
    }
    // Servers of the map that cannot be reached just now keep what they hold.
    for (const auto& indexes : map.replicas) {
      Holders& holders = holders_.emplace_back();
      for (uint32_t index : indexes) holders.push_back(map.servers[index].id);
      for (ServerId id : holders) AddLoad(id, Bytes(holders_.size() - 1), &load_);
    }
    size_t able = load_.size();
    for (const ServerEntry& s : map.servers) able += !reachable_.contains(s.id) && !draining.contains(s.id);
    replicas_ = static_cast<uint32_t>(std::min<size_t>(replicas, able));
  }

  std::optional<MovePlan> Plan() {
    for (size_t chunk = 0; chunk < holders_.size(); ++chunk) Repair(chunk);
    if (copies_.empty() && !out_of_budget_) Balance();
    BalancePrimaries();
    MovePlan plan{std::move(copies_), bytes_, NextMap()};
    if (plan.next.replicas == map_.replicas && plan.next.servers == map_.servers) return std::nullopt;
    return plan;
  }

 private:
  uint64_t Bytes(size_t chunk) const { return layout_.chunk({static_cast<uint32_t>(chunk)}).bytes; }
  static void AddLoad(ServerId id, uint64_t bytes, std::map<ServerId, uint64_t>* load) {
    if (const auto it = load->find(id); it != load->end()) it->second += bytes;
  }
  static bool In(const Holders& holders, ServerId id) {
    return std::find(holders.begin(), holders.end(), id) != holders.end();
  }

  // The least loaded server that could take the chunk; nothing when there is none.
  std::optional<ServerId> Target(const Holders& holders) const {
    std::optional<ServerId> best;
    for (const auto& [id, load] : load_) {
      if (!In(holders, id) && (!best || load < load_.at(*best))) best = id;
    }
    return best;
  }

  // Copies the chunk to `to`; false when nobody can give it, or when this move is large enough already.
  bool Copy(size_t chunk, ServerId to) {
    const uint64_t bytes = Bytes(chunk);
    if (!copies_.empty() && bytes > budget_ - std::min(budget_, bytes_)) {
      out_of_budget_ = true;
      return false;
    }
    std::optional<ServerId> from;
    // Whoever holds it now, also if it will not afterwards.
    for (uint32_t index : map_.replicas[chunk]) {
      const ServerId id = map_.servers[index].id;
      if (reachable_.contains(id) && (!from || given_[id] < given_[*from])) from = id;
    }
    if (!from) return false;
    given_[*from] += bytes;
    bytes_ += bytes;
    copies_.push_back({{static_cast<uint32_t>(chunk)}, *from, to});
    fresh_.insert({chunk, to});
    load_[to] += bytes;
    return true;
  }

  // Enough copies on servers that stay, and none on those that go.
  void Repair(size_t chunk) {
    Holders& holders = holders_[chunk];
    const auto leaves = [&](ServerId id) { return draining_.contains(id); };
    auto staying =
        static_cast<size_t>(std::count_if(holders.begin(), holders.end(), [&](ServerId id) { return !leaves(id); }));
    while (staying < replicas_) {
      const std::optional<ServerId> to = Target(holders);
      if (!to || out_of_budget_ || !Copy(chunk, *to)) return;
      // In the place of one that goes, so that what was balanced stays so.
      const auto going = std::find_if(holders.begin(), holders.end(), leaves);
      if (going != holders.end()) {
        *going = *to;
      } else {
        holders.push_back(*to);
      }
      ++staying;
    }
    if (staying == 0) return;
    std::erase_if(holders, leaves);
    const bool all_there =
        std::all_of(holders.begin(), holders.end(), [&](ServerId id) { return reachable_.contains(id); });
    while (holders.size() > replicas_ && all_there) {
      // One too many, by a lowered number of copies: the fullest gives it up, the primary last.
      auto last = holders.begin() + 1;
      for (auto it = last; it != holders.end(); ++it) {
        if (Load(*it) > Load(*last)) last = it;
      }
      AddLoad(*last, uint64_t{0} - Bytes(chunk), &load_);
      holders.erase(last);
    }
  }
  uint64_t Load(ServerId id) const {
    const auto it = load_.find(id);
    return it == load_.end() ? 0 : it->second;
  }

  // From the fullest to the emptiest, as long as that does not turn them around.
  void Balance() {
    while (load_.size() > 1) {
      const auto less = [](const auto& a, const auto& b) { return a.second < b.second; };
      const auto [low, high] = std::minmax_element(load_.begin(), load_.end(), less);
      const uint64_t difference = high->second - low->second;
      std::optional<size_t> best;
      for (size_t chunk = 0; chunk < holders_.size(); ++chunk) {
        const Holders& holders = holders_[chunk];
        if (!In(holders, high->first) || In(holders, low->first) || 2 * Bytes(chunk) > difference) continue;
        if (fresh_.contains({chunk, high->first})) continue;
        if (!best || Bytes(chunk) > Bytes(*best)) best = chunk;
      }
      if (!best || Bytes(*best) == 0 || !Copy(*best, low->first)) return;
      *std::find(holders_[*best].begin(), holders_[*best].end(), high->first) = low->first;
      high->second -= Bytes(*best);
    }
  }

  // Sums, pushes and pulls are the primaries' work. Changing the order of holders moves no bytes of state, but workers
  // push again: only along with a move, or when it is much out of balance.
  void BalancePrimaries() {
    std::map<ServerId, uint64_t> load;
    for (const auto& [id, bytes] : load_) load[id] = 0;
    uint64_t total = 0;
    uint64_t largest = 0;
    for (size_t chunk = 0; chunk < holders_.size(); ++chunk) {
      AddLoad(holders_[chunk][0], Bytes(chunk), &load);
      total += Bytes(chunk);
      largest = std::max(largest, Bytes(chunk));
    }
    if (load.size() < 2) return;
    uint64_t low = UINT64_MAX;
    uint64_t high = 0;
    for (const auto& [id, bytes] : load) {
      low = std::min(low, bytes);
      high = std::max(high, bytes);
    }
    if (copies_.empty() && high - low <= std::max(2 * largest, total / load.size() / 4)) return;
    // Each swap makes the sum of the squares smaller, so this ends; the bound only keeps a bug from turning for ever.
    for (int round = 0; round < 100; ++round) {
      bool swapped = false;
      for (size_t chunk = 0; chunk < holders_.size(); ++chunk) {
        Holders& holders = holders_[chunk];
        if (!load.contains(holders[0])) continue;
        for (size_t k = 1; k < holders.size(); ++k) {
          const auto other = load.find(holders[k]);
          if (other == load.end() || load[holders[0]] < other->second + 2 * Bytes(chunk) || Bytes(chunk) == 0) continue;
          load[holders[0]] -= Bytes(chunk);
          other->second += Bytes(chunk);
          std::swap(holders[0], holders[k]);
          swapped = true;
        }
      }
      if (!swapped) return;
    }
  }

  ShardMap NextMap() const {
    std::set<ServerId> used;
    for (const Holders& holders : holders_) used.insert(holders.begin(), holders.end());
    ShardMap next{map_.ballot, map_.spec_hash, map_.chunk_bytes, {}, {}};
    std::map<ServerId, uint32_t> index;
    const auto add = [&](const ServerEntry& server) {
      index[server.id] = static_cast<uint32_t>(next.servers.size());
      next.servers.push_back(server);
    };
    for (const ServerEntry& server : map_.servers) {
      if (used.contains(server.id) || !draining_.contains(server.id)) add(server);
    }
    for (const ServerEntry& server : servers_) {
      if (used.contains(server.id) && !index.contains(server.id)) add(server);
    }
    for (const Holders& holders : holders_) {
      auto& list = next.replicas.emplace_back();
      for (ServerId id : holders) list.push_back(index.at(id));
    }
    return next;
  }

  const ShardMap& map_;
  const ChunkLayout& layout_;
  const std::vector<ServerEntry>& servers_;
  const std::set<ServerId>& draining_;
  const uint64_t budget_;
  uint32_t replicas_ = 1;
  std::set<ServerId> reachable_;
  std::vector<Holders> holders_;
  std::map<ServerId, uint64_t> load_;   // bytes held, of servers that may be given more
  std::map<ServerId, uint64_t> given_;  // bytes that this move reads from a server
  std::set<std::pair<size_t, ServerId>> fresh_;
  std::vector<ChunkCopy> copies_;
  uint64_t bytes_ = 0;
  bool out_of_budget_ = false;
};

}  // namespace

std::optional<MovePlan> PlanMove(const ShardMap& map, const ChunkLayout& layout,
                                 const std::vector<ServerEntry>& servers, const std::set<ServerId>& draining,
                                 uint32_t replicas, uint64_t max_bytes) {
  return Planner(map, layout, servers, draining, replicas, max_bytes).Plan();
}

}  // namespace everstep
