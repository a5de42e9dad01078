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

}  // namespace

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

std::vector<std::string> KindsOf(Act act) {
  switch (act) {
    case Act::kKill:
    case Act::kFreeze: return {"worker-lost", "worker-fenced"};
    case Act::kJoin: return {"worker-joined"};
    case Act::kThaw: return {"worker-ready"};
    case Act::kDrain: return {"worker-left"};
  }
  return {};
}

std::optional<double> FirstEvent(const json& events, const std::vector<std::string>& kinds, const std::string& target,
                                 double after_ms) {
  if (!events.is_array()) return std::nullopt;
  for (const json& event : events) {
    if (Text(event, "target") != target || Number(event, "at_ms", -1) < after_ms) continue;
    for (const std::string& kind : kinds) {
      if (Text(event, "kind") == kind) return Number(event, "at_ms");
    }
  }
  return std::nullopt;
}

std::optional<DemoScript::Cue> DemoScript::Next(Time now, const json& status) {
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
  }
  if (next_ == plan_.size()) return std::nullopt;
  const double total = Number(status, "steps_total");
  const PlannedAct& planned = plan_[next_];
  if (total <= 0 || Number(status, "step") < planned.at * total) return std::nullopt;
  ++next_;
  waiting_ = true;
  done_.push_back({planned.act, planned.target, Ms(now), 0});
  return Cue{planned.act, planned.target};
}

bool DemoScript::EffectSeen(const json& status) const {
  const DoneAct& last = done_.back();
  const json& events = At(status, "events");
  switch (last.act) {
    case Act::kKill:
    case Act::kDrain: return FirstEvent(events, KindsOf(last.act), last.target, last.at_ms).has_value();
    case Act::kJoin:
      return FirstEvent(events, KindsOf(last.act), last.target, last.at_ms) && Contributes(status, last.target);
    case Act::kFreeze:
    case Act::kThaw:
      return FirstEvent(events, KindsOf(Act::kThaw), last.target, last.thawed_at_ms) &&
             Contributes(status, last.target);
  }
  return false;
}

std::string DemoScript::WaitsFor() const {
  if (!waiting_)
    return next_ < plan_.size() ? "its time to " + std::string(Name(plan_[next_].act)) + " " + plan_[next_].target
                                : "nothing";
  const DoneAct& last = done_.back();
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
