#include "ctl/demo_script.h"

namespace everstep::ctl {
namespace {

double Ms(Time t) { return static_cast<double>(t.ns) / 1e6; }

// The member called `name` is in the job and has contributed to a committed step.
bool Contributes(const json& status, const std::string& name) {
  const json& members = At(status, "members");
  if (!members.is_array()) return false;
  for (const json& m : members) {
    if (Text(m, "name") == name && Number(m, "contributions") > 0) return true;
  }
  return false;
}

uint64_t HeldBytes(const json& status) {
  uint64_t bytes = 0;
  const json& servers = At(status, "servers");
  if (!servers.is_array()) return 0;
  for (const json& server : servers) bytes += Count(server, "bytes");
  return bytes;
}

}  // namespace

const char* Name(Role role) {
  switch (role) {
    case Role::kWorker: return "worker";
    case Role::kServer: return "server";
    case Role::kCoordinator: return "coordinator";
  }
  return "unknown";
}

const char* Name(Act act) {
  switch (act) {
    case Act::kKill: return "kill";
    case Act::kJoin: return "join";
    case Act::kFreeze: return "freeze";
    case Act::kThaw: return "thaw";
    case Act::kDrain: return "drain";
  }
  return "unknown";
}

std::vector<std::string> KindsOf(Act act, Role role) {
  if (role == Role::kCoordinator) return {"recovered"};
  const bool server = role == Role::kServer;
  switch (act) {
    case Act::kKill:
    case Act::kFreeze:
      if (server) return {"server-lost"};
      return {"worker-lost", "worker-fenced"};
    case Act::kJoin: return {server ? "server-joined" : "worker-joined"};
    case Act::kThaw: return {"worker-ready"};
    case Act::kDrain: return {server ? "server-drained" : "worker-left"};
  }
  return {};
}

std::optional<double> Noticed(const json& events, const DoneAct& act) {
  const std::string about = act.role == Role::kCoordinator ? "" : act.target;
  return FirstEvent(events, KindsOf(act.act, act.role), about, act.at_ms);
}

std::optional<double> FirstEvent(const json& events, const std::vector<std::string>& kinds, const std::string& target,
                                 double after_ms) {
  if (!events.is_array()) return std::nullopt;
  for (const json& event : events) {
    if ((!target.empty() && Text(event, "target") != target) || Number(event, "at_ms", -1) < after_ms) continue;
    for (const std::string& kind : kinds) {
      if (Text(event, "kind") == kind) return Number(event, "at_ms");
    }
  }
  return std::nullopt;
}

std::optional<DemoScript::Cue> DemoScript::Next(Time now, const json& status) {
  if (full_bytes_ == 0) full_bytes_ = HeldBytes(status);
  if (waiting_) {
    DoneAct& last = done_.back();
    const bool asleep = last.act == Act::kFreeze && last.thawed_at_ms == 0;
    if (asleep && Ms(now) >= last.at_ms + Milliseconds(freeze_) &&
        FirstEvent(At(status, "events"), KindsOf(Act::kFreeze), last.target, last.at_ms)) {
      last.thawed_at_ms = Ms(now);
      return Cue{Act::kThaw, last.target};
    }
    if (asleep || !EffectSeen(status)) return std::nullopt;
    waiting_ = false;
    if (last.role != Role::kWorker) last.whole_at_ms = Ms(now);
  }
  if (next_ == plan_.size()) return std::nullopt;
  const double total = Number(status, "steps_total");
  const PlannedAct& planned = plan_[next_];
  if (total <= 0 || Number(status, "step") < planned.at * total) return std::nullopt;
  const bool whoever = planned.role == Role::kCoordinator;
  const std::string target = whoever ? Text(status, "coordinator") : planned.target;
  if (target.empty()) return std::nullopt;
  ++next_;
  waiting_ = true;
  done_.push_back({planned.act, target, Ms(now), 0, planned.role, 0});
  return Cue{planned.act, target, planned.role};
}

// The act has had its effect on the servers, and every chunk has all its copies (again).
bool DemoScript::ServersWhole(const json& status) const {
  const DoneAct& last = done_.back();
  const json& servers = At(status, "servers");
  if (!servers.is_array() || HeldBytes(status) != full_bytes_) return false;
  if (last.role == Role::kCoordinator && Text(status, "coordinator") == last.target) return false;
  const json* found = nullptr;
  for (const json& server : servers) {
    if (Text(server, "name") == last.target) found = &server;
  }
  if (last.act == Act::kJoin) return found != nullptr && Count(*found, "bytes") > 0;
  return found == nullptr || Count(*found, "bytes") == 0;
}

bool DemoScript::EffectSeen(const json& status) const {
  const DoneAct& last = done_.back();
  const json& events = At(status, "events");
  if (last.role != Role::kWorker) return Noticed(events, last) && ServersWhole(status);
  switch (last.act) {
    case Act::kKill:
    case Act::kDrain: return Noticed(events, last).has_value();
    case Act::kJoin: return Noticed(events, last) && Contributes(status, last.target);
    case Act::kFreeze:
    case Act::kThaw:
      return FirstEvent(events, KindsOf(Act::kThaw), last.target, last.thawed_at_ms) &&
             Contributes(status, last.target);
  }
  return false;
}

std::string DemoScript::WaitsFor() const {
  if (!waiting_)
    return next_ < plan_.size()
               ? "its time to " + std::string(Name(plan_[next_].act)) + " " +
                     (plan_[next_].role == Role::kCoordinator ? "the coordinating server" : plan_[next_].target)
               : "nothing";
  const DoneAct& last = done_.back();
  if (last.role == Role::kCoordinator) return "another server to take office from " + last.target;
  if (last.role == Role::kServer) {
    const std::string what = last.act == Act::kJoin    ? " to join and hold its share"
                             : last.act == Act::kDrain ? " to be empty"
                                                       : " to be reported lost and its copies to be made again";
    return last.target + what;
  }
  switch (last.act) {
    case Act::kKill: return last.target + " to be reported lost";
    case Act::kDrain: return last.target + " to leave";
    case Act::kJoin: return last.target + " to join and contribute";
    case Act::kFreeze:
    case Act::kThaw:
      return last.thawed_at_ms == 0 ? "frozen " + last.target + " to be excluded"
                                    : last.target + " to come back and contribute";
  }
  return "nothing";
}

}  // namespace everstep::ctl
