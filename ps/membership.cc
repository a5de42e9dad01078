#include "ps/membership.h"

#include <algorithm>

#include "base/limits.h"

namespace everstep {
namespace {

// A name that came this often within the window without one committed contribution waits until the window has passed.
constexpr size_t kFlapArrivals = 5;
constexpr size_t kMaxTrackedNames = 4 * limits::kMaxMembers;

Duration FlapWindow(const JobSpec& job) { return job.timeout; }

}  // namespace

Status Membership::MayJoin(Time now, const Hello& hello) const {
  if (hello.worker == WorkerId{}) return {Code::kCorrupt, "a worker without an identity"};
  const bool replaces =
      std::any_of(members_.begin(), members_.end(), [&](const auto& m) { return m.second.name == hello.name; });
  if (!replaces && members_.size() >= job_.max_workers) {
    return {Code::kResourceExhausted, "the job has its maximum of " + std::to_string(job_.max_workers) +
                                          " workers; raise `workers = \"MIN:MAX\"` in the job file"};
  }
  if (const auto it = arrivals_.find(hello.name); it != arrivals_.end() && it->second.size() >= kFlapArrivals) {
    const Time again = it->second[it->second.size() - kFlapArrivals] + FlapWindow(job_);
    if (again > now) {
      return {Code::kUnavailable, "worker " + hello.name + " joined " + std::to_string(kFlapArrivals) +
                                      " times without one committed contribution; it may come again in " +
                                      std::to_string(static_cast<int>(Seconds(again - now)) + 1) +
                                      " s. Look at its log"};
    }
  }
  return Status::Ok();
}

Member& Membership::Add(Time now, const Hello& hello, PeerId peer) {
  Member member;
  member.id = hello.worker;
  member.name = hello.name;
  member.peer = peer;
  member.order = next_order_++;
  member.joined_at = member.last_seen = member.progress_at = now;
  if (!hello.name.empty() && (arrivals_.size() < kMaxTrackedNames || arrivals_.contains(hello.name))) {
    auto& times = arrivals_[hello.name];
    times.push_back(now);
    while (times.size() > kFlapArrivals) times.pop_front();
  }
  Member& added = members_.emplace(hello.worker, std::move(member)).first->second;
  max_seen_ = std::max(max_seen_, members_.size());
  return added;
}

Member Membership::Remove(WorkerId id, bool replaced) {
  auto node = members_.extract(id);
  EVERSTEP_CHECK(!node.empty(), "removing a member that is not there");
  if (fenced_.insert(id).second) fenced_order_.push_back(id);
  if (replaced) replaced_.insert(id);
  while (fenced_order_.size() > 4 * limits::kMaxMembers) {
    fenced_.erase(fenced_order_.front());
    replaced_.erase(fenced_order_.front());
    fenced_order_.pop_front();
  }
  return std::move(node.mapped());
}

Member* Membership::Find(WorkerId id) {
  const auto it = members_.find(id);
  return it == members_.end() ? nullptr : &it->second;
}

Member* Membership::FindByPeer(PeerId peer) {
  for (auto& [id, member] : members_) {
    if (member.peer == peer) return &member;
  }
  return nullptr;
}

Member* Membership::FindByName(const std::string& name) {
  for (auto& [id, member] : members_) {
    if (member.name == name) return &member;
  }
  return nullptr;
}

std::vector<Member*> Membership::All() {
  std::vector<Member*> all;
  for (auto& [id, member] : members_) all.push_back(&member);
  std::sort(all.begin(), all.end(), [](const Member* a, const Member* b) { return a->order < b->order; });
  return all;
}

std::vector<Member*> Membership::ReadyMembers() {
  std::vector<Member*> ready = All();
  std::erase_if(ready, [](const Member* m) { return !m->ready; });
  return ready;
}

size_t Membership::ready_count() const {
  return static_cast<size_t>(
      std::count_if(members_.begin(), members_.end(), [](const auto& m) { return m.second.ready; }));
}

}  // namespace everstep
