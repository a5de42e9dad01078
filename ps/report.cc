#include "ps/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ps/coordinator_host.h"

namespace everstep {
namespace {

using nlohmann::json;

std::string Hex(uint64_t value) {
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

double Ms(Time t) { return static_cast<double>(t.ns) / 1e6; }

json ToJson(const Event& event) {
  return {{"at_ms", Ms(event.at)}, {"kind", event.kind}, {"target", event.target}, {"detail", event.detail}};
}

json Percentiles(const StepTimes& times) {
  return {{"median", times.Percentile(0.5)},
          {"p90", times.Percentile(0.9)},
          {"p99", times.Percentile(0.99)},
          {"max", times.max()}};
}

json Counters(const Coordinator::Counters& c) {
  return {{"joins", c.joins},
          {"leaves", c.leaves},
          {"losses", c.losses},
          {"refused_hellos", c.refusals},
          {"refused_contributions", c.refused_contributions},
          {"void_leases", c.void_leases},
          {"ballots", c.ballots},
          {"checkpoints", c.checkpoints},
          {"failed_checkpoints", c.failed_checkpoints},
          {"server_losses", c.server_losses},
          {"moved_chunks", c.moved_chunks},
          {"moved_bytes", c.moved_bytes},
          {"paused_ms", Milliseconds(c.paused)}};
}

json ReplicaJson(const Replica& replica) {
  const Replica::Stats stats = replica.stats();
  return {{"version", replica.version().value},
          {"digest", Hex(replica.digest().value)},
          {"slots", stats.slots},
          {"slot_bytes", stats.slot_bytes},
          {"waiting_pulls", stats.waiting_pulls},
          {"refused_pushes", stats.refused_pushes},
          {"duplicate_pushes", stats.duplicate_pushes}};
}

json TransportJson(const transport::Counters& c) {
  return {{"frames_sent", c.frames_sent},
          {"frames_received", c.frames_received},
          {"bytes_sent", c.bytes_sent},
          {"bytes_received", c.bytes_received},
          {"accepted", c.accepted},
          {"refused_frames", c.refused_frames},
          {"failed_handshakes", c.failed_handshakes}};
}

json MembersJson(Time now, Coordinator& coordinator) {
  json list = json::array();
  for (const Member* m : coordinator.members().All()) {
    list.push_back({{"name", m->name},
                    {"life", Hex(m->id.value)},
                    {"ready", m->ready},
                    {"working", m->work.has_value()},
                    {"samples", m->samples},
                    {"contributions", m->clock},
                    {"seen_ms_ago", Milliseconds(now - m->last_seen)},
                    {"in_job_s", Seconds(now - m->joined_at)}});
  }
  return list;
}

json ServersJson(const Coordinator& coordinator) {
  json list = json::array();
  for (const auto& s : coordinator.Servers()) {
    list.push_back({{"name", s.name},
                    {"address", s.address},
                    {"connected", s.connected},
                    {"chunks", s.chunks},
                    {"bytes", s.bytes},
                    {"draining", s.draining}});
  }
  return list;
}

// The server that hosts it; "" until it has said hello.
std::string HostName(const Coordinator& coordinator) {
  for (const auto& s : coordinator.Servers()) {
    if (s.address == coordinator.address()) return s.name;
  }
  return {};
}

json Samples(const Coordinator& coordinator) {
  const Ledger& ledger = coordinator.ledger();
  return {{"dataset", ledger.dataset_size()}, {"epoch", ledger.committed().epoch}, {"consumed", ledger.consumed()}};
}

// Where the time went. `lost`: what steps that lost a member took over the median step; `paused`: below the minimum of
// workers. What is left was useful.
json Goodput(const Coordinator& coordinator, const RunHistory& history) {
  const double total = Milliseconds(history.last_commit - history.started);
  const double median = history.step_ms.Percentile(0.5);
  double lost = 0;
  for (float ms : history.lost_ms) lost += std::max(0.0, ms - median);
  const double paused = Milliseconds(coordinator.counters().paused);
  const double useful = std::max(0.0, total - lost - paused);
  return {{"total_ms", total},
          {"useful_ms", useful},
          {"paused_ms", paused},
          {"lost_ms", lost},
          {"goodput", total > 0 ? useful / total : 0.0}};
}

}  // namespace

std::string JobToJson(JobUid uid, const JobSpec& job) {
  return json{{"job", job.name},
              {"uid", Hex(uid.value)},
              {"mode", Name(job.mode)},
              {"optimizer", Name(job.optimizer.kind)},
              {"learning_rate", job.optimizer.learning_rate},
              {"momentum", job.optimizer.momentum},
              {"dampening", job.optimizer.dampening},
              {"nesterov", job.optimizer.nesterov},
              {"beta1", job.optimizer.beta1},
              {"beta2", job.optimizer.beta2},
              {"epsilon", job.optimizer.epsilon},
              {"weight_decay", job.optimizer.weight_decay},
              {"schedule", Name(job.schedule.kind)},
              {"warmup_steps", job.schedule.warmup_steps},
              {"total_steps", job.schedule.total_steps},
              {"step_size", job.schedule.step_size},
              {"gamma", job.schedule.gamma},
              {"final_scale", job.schedule.final_scale},
              {"decay_steps", job.schedule.decay_steps},
              {"clip_norm", job.clip_norm},
              {"batch", job.batch},
              {"epochs", job.epochs},
              {"max_steps", job.max_steps},
              {"seed", job.seed}}
      .dump();
}

namespace {

json Pairs(const std::vector<SampleRange>& ranges) {
  json list = json::array();
  for (const SampleRange& r : ranges) list.push_back({r.begin, r.end});
  return list;
}

}  // namespace

std::string CommitToJson(const CommitRecord& record) {
  json contributors = json::array();
  for (size_t i = 0; i < record.seal.contributors.size(); ++i) {
    const Contribution& c = record.seal.contributors[i];
    contributors.push_back({{"worker", Hex(c.worker.value)},
                            {"name", i < record.names.size() ? record.names[i] : ""},
                            {"base", c.base.value},
                            {"base_digest", Hex(c.base_digest.value)},
                            {"lease", Hex(c.lease.id.value)},
                            {"epoch", c.lease.epoch},
                            {"ranges", Pairs(c.lease.ranges)},
                            {"weight", record.seal.weights[i]}});
  }
  return json{
      {"step", record.seal.id.step.value},
      {"ballot", record.seal.id.ballot.value},
      {"digest", Hex(record.seal.digest.value)},
      {"previous", Hex(record.seal.previous.value)},
      {"learning_rate", record.seal.learning_rate},
      {"scale", record.scale},
      {"clip_norm", record.seal.clip_norm},
      {"ledger", {{"epoch", record.seal.ledger_after.epoch}, {"consumed", Pairs(record.seal.ledger_after.consumed)}}},
      {"members", record.members},
      {"granted_ms", Ms(record.granted_at)},
      {"sealed_ms", Ms(record.sealed_at)},
      {"committed_ms", Ms(record.committed_at)},
      {"metrics", record.metrics},
      {"contributors", std::move(contributors)}}
      .dump();
}

std::string StatusJson(Time now, Coordinator& coordinator, const RunHistory& history, const Replica& replica,
                       const transport::Counters& counters) {
  json events = json::array();
  for (const Event& event : history.events) events.push_back(ToJson(event));
  json out{{"job", coordinator.spec().name},
           {"uid", Hex(coordinator.job().value)},
           {"mode", Name(coordinator.spec().mode)},
           {"coordinator", HostName(coordinator)},
           {"state", coordinator.paused() ? "paused" : Name(coordinator.state())},
           {"now_ms", Ms(now)},
           {"version", coordinator.version().value},
           {"step", coordinator.version().value > 0 ? coordinator.version().value - 1 : 0},
           {"steps_total", coordinator.job_steps()},
           {"ballot", coordinator.ballot().value},
           {"metrics", history.metrics},
           {"samples_per_second", history.samples_per_second},
           {"step_ms", Percentiles(history.step_ms)},
           {"members", MembersJson(now, coordinator)},
           {"members_max", coordinator.members().max_seen()},
           {"servers", ServersJson(coordinator)},
           {"counters", Counters(coordinator.counters())},
           {"server", ReplicaJson(replica)},
           {"transport", TransportJson(counters)},
           {"evaluation", coordinator.evaluation()},
           {"events", std::move(events)}};
  if (coordinator.has_ledger()) out["samples"] = Samples(coordinator);
  if (coordinator.failure()) out["failure"] = coordinator.failure()->ToString();
  return out.dump();
}

std::string StatusJson(const Replica& replica, const transport::Counters& counters) {
  return json{{"state", "serving"}, {"server", ReplicaJson(replica)}, {"transport", TransportJson(counters)}}.dump();
}

std::string ReportJson(Time now, Coordinator& coordinator, const RunHistory& history) {
  json events = json::array();
  for (const Event& event : history.events) events.push_back(ToJson(event));
  json out{{"job", coordinator.spec().name},
           {"uid", Hex(coordinator.job().value)},
           {"coordinator", HostName(coordinator)},
           {"state", Name(coordinator.state())},
           {"ended_ms", Ms(now)},
           {"version", coordinator.version().value},
           {"digest", Hex(coordinator.digest().value)},
           {"steps_committed", coordinator.version().value > 0 ? coordinator.version().value - 1 : 0},
           {"samples_committed", coordinator.has_ledger() ? coordinator.ledger().consumed() : 0},
           {"members_max", coordinator.members().max_seen()},
           {"metrics", history.metrics},
           {"evaluation", coordinator.evaluation()},
           {"step_ms", Percentiles(history.step_ms)},
           {"time", Goodput(coordinator, history)},
           {"counters", Counters(coordinator.counters())},
           {"events", std::move(events)},
           {"events_dropped", history.events_dropped}};
  if (coordinator.has_ledger()) {
    out["samples"] = Samples(coordinator);
    out["samples_expected"] = coordinator.ledger().dataset_size() * coordinator.spec().epochs;
  }
  if (coordinator.failure()) out["failure"] = coordinator.failure()->ToString();
  return out.dump(2);
}

}  // namespace everstep
