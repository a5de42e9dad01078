// CORE. The workers of a job: who is in, under which name, what they were given, when they were last heard of. Pure
// bookkeeping for the coordinator, which decides; single-threaded.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "schema/messages.h"
#include "schema/peer.h"

namespace everstep {

// Work a member was given: compute on `lease` from `version`.
struct Work {
  uint64_t number = 0;
  Version version;
  Lease lease;
};

struct Member {
  WorkerId id;
  std::string name;
  PeerId peer;
  uint64_t order = 0;           // of admission
  bool ready = false;           // has the parameters, may be given work
  std::optional<Work> work;     // for the step in flight
  std::optional<Work> next;     // for the step after the one that is sealed, given ahead
  std::optional<Work> late;     // was not in the seal that is out; its work again should that seal be dropped
  std::optional<Work> claimed;  // what it says it was lent, until a recovered coordinator has looked
  uint64_t clock = 0;           // committed contributions (ssp: how far it is)
  Time joined_at;
  Time last_seen;
  Phase phase = Phase::kJoining;
  uint64_t progress = 0;
  Time progress_at;
  uint64_t samples = 0;  // committed
};

class Membership {
 public:
  explicit Membership(const JobSpec& job) : job_(job) {}

  // Whether a worker with this hello may come in: bounds, back-off of a name that keeps coming and never contributes.
  Status MayJoin(Time now, const Hello& hello) const;
  // REQUIRES: MayJoin, and no member with this id.
  Member& Add(Time now, const Hello& hello, PeerId peer);
  // Forgets the member; its id is fenced for ever (as far as the bound goes: the oldest fences are forgotten first, and
  // the servers refuse what is that old by its version anyway).
  // `replaced`: another process has taken its name.
  Member Remove(WorkerId id, bool replaced = false);

  Member* Find(WorkerId id);
  Member* FindByPeer(PeerId peer);
  Member* FindByName(const std::string& name);
  bool IsFenced(WorkerId id) const { return fenced_.contains(id); }
  bool IsReplaced(WorkerId id) const { return replaced_.contains(id); }

  // In order of admission.
  std::vector<Member*> All();
  std::vector<Member*> ReadyMembers();
  size_t size() const { return members_.size(); }
  size_t ready_count() const;
  size_t max_seen() const { return max_seen_; }

  // A contribution of this name was committed: it is no flapper.
  void Contributed(const std::string& name) { arrivals_.erase(name); }

 private:
  const JobSpec& job_;
  std::map<WorkerId, Member> members_;
  std::set<WorkerId> fenced_;
  std::set<WorkerId> replaced_;  // of these
  std::deque<WorkerId> fenced_order_;
  std::map<std::string, std::deque<Time>> arrivals_;  // by name, since its last committed contribution
  uint64_t next_order_ = 1;
  size_t max_seen_ = 0;
};

}  // namespace everstep
