#include <flatbuffers/flatbuffers.h>

#include "base/limits.h"
#include "schema/codec.h"
#include "wire_generated.h"

namespace everstep {
namespace {

using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;
using flatbuffers::String;
using flatbuffers::Vector;

std::string_view Bounded(const std::string& text, size_t bound) { return std::string_view(text).substr(0, bound); }

// Builds the tables of one message, children first. Absent optionals become absent fields.
class Writer {
 public:
  FlatBufferBuilder& fbb() { return fbb_; }

  Offset<String> Text(const std::string& text, size_t bound = limits::kMaxTextBytes) {
    const std::string_view bounded = Bounded(text, bound);
    return fbb_.CreateString(bounded.data(), bounded.size());
  }

  Offset<Vector<const wire::Range*>> Ranges(const std::vector<SampleRange>& ranges) {
    std::vector<wire::Range> out;
    out.reserve(ranges.size());
    for (const SampleRange& range : ranges) out.emplace_back(range.begin, range.end);
    return fbb_.CreateVectorOfStructs(out);
  }

  Offset<wire::WireLease> Write(const Lease& lease) {
    return wire::CreateWireLease(fbb_, lease.id.value, lease.epoch, Ranges(lease.ranges));
  }

  Offset<wire::WireLedger> Write(const LedgerState& ledger) {
    return wire::CreateWireLedger(fbb_, ledger.epoch, Ranges(ledger.consumed));
  }

  Offset<wire::WireContribution> Write(const Contribution& c) {
    return wire::CreateWireContribution(fbb_, c.worker.value, c.base.value, c.base_digest.value, Write(c.lease));
  }

  Offset<Vector<Offset<wire::WireContribution>>> Write(const std::vector<Contribution>& list) {
    std::vector<Offset<wire::WireContribution>> out;
    out.reserve(list.size());
    for (const Contribution& c : list) out.push_back(Write(c));
    return fbb_.CreateVector(out);
  }

  Offset<wire::WireSeal> Write(const Seal& seal) {
    const wire::WireSealId id(seal.id.ballot.value, seal.id.step.value);
    const auto contributors = Write(seal.contributors);
    const auto weights = fbb_.CreateVector(seal.weights);
    const auto ledger = Write(seal.ledger_after);
    return wire::CreateWireSeal(fbb_, &id, contributors, weights, seal.learning_rate, seal.clip_norm, ledger,
                                seal.previous.value, seal.digest.value);
  }

  Offset<wire::WireRestoreFrom> Write(const RestoreFrom& from) {
    const auto label = Text(from.label, limits::kMaxNameBytes);
    return wire::CreateWireRestoreFrom(fbb_, label, Write(from.seal), from.scale);
  }

  Offset<Vector<const wire::WireChunkNorm*>> Write(const std::vector<ChunkNorm>& norms) {
    std::vector<wire::WireChunkNorm> out;
    out.reserve(norms.size());
    for (const ChunkNorm& norm : norms) out.emplace_back(norm.squared, norm.chunk.value);
    return fbb_.CreateVectorOfStructs(out);
  }

  Offset<wire::WireSpec> Write(const ParameterSpec& spec) {
    std::vector<Offset<wire::WireTensor>> out;
    out.reserve(spec.tensors.size());
    for (const TensorSpec& t : spec.tensors) {
      const auto name = Text(t.name, limits::kMaxNameBytes);
      const auto shape = fbb_.CreateVector(t.shape);
      out.push_back(
          wire::CreateWireTensor(fbb_, name, shape, static_cast<uint8_t>(t.dtype), static_cast<uint8_t>(t.role)));
    }
    return wire::CreateWireSpec(fbb_, fbb_.CreateVector(out));
  }

  Offset<wire::WireServer> Write(const ServerEntry& server) {
    const auto address = Text(server.address, limits::kMaxNameBytes);
    return wire::CreateWireServer(fbb_, server.id.value, server.incarnation.value, address);
  }

  Offset<wire::WireMap> Write(const ShardMap& map) {
    std::vector<Offset<wire::WireServer>> servers;
    for (const ServerEntry& s : map.servers) servers.push_back(Write(s));
    std::vector<uint8_t> counts;
    std::vector<uint32_t> holders;
    counts.reserve(map.replicas.size());
    for (const auto& list : map.replicas) {
      counts.push_back(static_cast<uint8_t>(list.size()));
      holders.insert(holders.end(), list.begin(), list.end());
    }
    const auto servers_at = fbb_.CreateVector(servers);
    const auto counts_at = fbb_.CreateVector(counts);
    return wire::CreateWireMap(fbb_, map.ballot.value, map.spec_hash, map.chunk_bytes, servers_at, counts_at,
                               fbb_.CreateVector(holders));
  }

  Offset<wire::WireJob> Write(const JobSpec& job) {
    const auto name = Text(job.name, limits::kMaxNameBytes);
    const auto task = Text(job.task, limits::kMaxTextBytes);
    wire::WireJobBuilder b(fbb_);
    b.add_name(name);
    b.add_mode(static_cast<uint8_t>(job.mode));
    b.add_optimizer(static_cast<uint8_t>(job.optimizer.kind));
    b.add_learning_rate(job.optimizer.learning_rate);
    b.add_momentum(job.optimizer.momentum);
    b.add_dampening(job.optimizer.dampening);
    b.add_nesterov(job.optimizer.nesterov);
    b.add_beta1(job.optimizer.beta1);
    b.add_beta2(job.optimizer.beta2);
    b.add_epsilon(job.optimizer.epsilon);
    b.add_weight_decay(job.optimizer.weight_decay);
    b.add_schedule(static_cast<uint8_t>(job.schedule.kind));
    b.add_warmup_steps(job.schedule.warmup_steps);
    b.add_total_steps(job.schedule.total_steps);
    b.add_step_size(job.schedule.step_size);
    b.add_gamma(job.schedule.gamma);
    b.add_final_scale(job.schedule.final_scale);
    b.add_decay_steps(job.schedule.decay_steps);
    b.add_clip_norm(job.clip_norm);
    b.add_batch(job.batch);
    b.add_epochs(job.epochs);
    b.add_max_steps(job.max_steps);
    b.add_seed(job.seed);
    b.add_servers(job.servers);
    b.add_replication(job.replication);
    b.add_min_workers(job.min_workers);
    b.add_max_workers(job.max_workers);
    b.add_chunk_bytes(job.chunk_bytes);
    b.add_quorum(job.quorum);
    b.add_grace_ns(job.grace.count());
    b.add_staleness(job.staleness);
    b.add_staleness_power(job.staleness_power);
    b.add_timeout_ns(job.timeout.count());
    b.add_task(task);
    b.add_verify_replicas(job.verify_replicas);
    return b.Finish();
  }

  template <typename T>
  auto Optional(const std::optional<T>& value) -> decltype(Write(*value)) {
    if (!value) return 0;
    return Write(*value);
  }

  template <typename Id>
  Offset<Vector<decltype(Id::value)>> Ids(const std::vector<Id>& ids) {
    std::vector<decltype(Id::value)> out;
    out.reserve(ids.size());
    for (const Id& id : ids) out.push_back(id.value);
    return fbb_.CreateVector(out);
  }

 private:
  FlatBufferBuilder fbb_{1024};
};

// One overload a message, in the order of Body. Children are made before their parents, as FlatBuffers wants it.

auto WriteBody(Writer& w, const Hello& m) {
  const auto name = w.Text(m.name, limits::kMaxNameBytes);
  const auto job = w.Text(m.job_name, limits::kMaxNameBytes);
  const auto address = w.Text(m.address, limits::kMaxNameBytes);
  const auto spec = w.Write(m.spec);
  const auto lease = w.Optional(m.lease);
  return wire::CreateWireHello(w.fbb(), static_cast<uint8_t>(m.role), name, job, m.worker.value, m.incarnation.value,
                               address, spec, m.dataset_size, m.version.value, lease, m.may_coordinate);
}
auto WriteBody(Writer& w, const Welcome& m) {
  const auto job = w.Write(m.job);
  const auto map = w.Optional(m.map);
  return wire::CreateWireWelcome(w.fbb(), job, m.server.value, m.version.value, map);
}
auto WriteBody(Writer& w, const Refused& m) {
  return wire::CreateWireRefused(w.fbb(), static_cast<uint8_t>(m.code), w.Text(m.message));
}
auto WriteBody(Writer& w, const MapUpdate& m) { return wire::CreateWireMapUpdate(w.fbb(), w.Write(m.map)); }
auto WriteBody(Writer& w, const Ready& m) {
  return wire::CreateWireReady(w.fbb(), m.worker.value, m.version.value, m.void_lease.value);
}
auto WriteBody(Writer& w, const Grant& m) {
  return wire::CreateWireGrant(w.fbb(), m.worker.value, m.number, m.version.value, w.Write(m.lease));
}
auto WriteBody(Writer& w, const Heartbeat& m) {
  return wire::CreateWireHeartbeat(w.fbb(), m.worker.value, static_cast<uint8_t>(m.phase), m.progress, m.grant);
}
auto WriteBody(Writer& w, const HeartbeatAck&) { return wire::CreateWireHeartbeatAck(w.fbb()); }
auto WriteBody(Writer& w, const Report& m) {
  std::vector<Offset<wire::WireMetric>> metrics;
  for (const Metric& metric : m.metrics) {
    metrics.push_back(wire::CreateWireMetric(w.fbb(), w.Text(metric.name, limits::kMaxNameBytes), metric.value));
  }
  const auto metrics_at = w.fbb().CreateVector(metrics);
  return wire::CreateWireReport(w.fbb(), m.worker.value, m.base.value, m.lease.value, m.evaluation, metrics_at);
}
auto WriteBody(Writer& w, const Fenced& m) {
  return wire::CreateWireFenced(w.fbb(), m.worker.value, w.Text(m.message), m.replaced);
}
auto WriteBody(Writer& w, const Leave& m) { return wire::CreateWireLeave(w.fbb(), m.worker.value, w.Text(m.message)); }
auto WriteBody(Writer& w, const LeaveAck&) { return wire::CreateWireLeaveAck(w.fbb()); }
auto WriteBody(Writer& w, const Finish& m) { return wire::CreateWireFinish(w.fbb(), m.version.value, m.evaluate); }
auto WriteBody(Writer& w, const JobFailed& m) {
  return wire::CreateWireJobFailed(w.fbb(), static_cast<uint8_t>(m.code), w.Text(m.message));
}
auto WriteBody(Writer& w, const Push& m) {
  return wire::CreateWirePush(w.fbb(), w.Write(m.contribution), m.chunk.value);
}
auto WriteBody(Writer& w, const PushRefused& m) {
  const auto contribution = w.Write(m.contribution);
  const auto message = w.Text(m.message);
  return wire::CreateWirePushRefused(w.fbb(), contribution, m.chunk.value, static_cast<uint8_t>(m.code),
                                     m.version.value, message);
}
auto WriteBody(Writer& w, const Pull& m) {
  const auto chunks = w.Ids(m.chunks);
  const auto pending = w.Optional(m.pending);
  return wire::CreateWirePull(w.fbb(), m.worker.value, m.at_least.value, m.exact, chunks, pending);
}
auto WriteBody(Writer& w, const Missing& m) {
  const auto contribution = w.Write(m.contribution);
  return wire::CreateWireMissing(w.fbb(), contribution, w.Ids(m.chunks));
}
auto WriteBody(Writer& w, const ChunkData& m) {
  return wire::CreateWireChunkData(w.fbb(), m.version.value, m.digest.value, m.chunk.value);
}
auto WriteBody(Writer& w, const PullRefused& m) {
  return wire::CreateWirePullRefused(w.fbb(), static_cast<uint8_t>(m.code), m.version.value, w.Text(m.message));
}
auto WriteBody(Writer& w, const WrongShard& m) { return wire::CreateWireWrongShard(w.fbb(), w.Write(m.map)); }
auto WriteBody(Writer& w, const Promise& m) {
  const auto map = w.Write(m.map);
  const auto spec = w.Write(m.spec);
  return wire::CreateWirePromise(w.fbb(), map, spec, w.Optional(m.restore));
}
auto WriteBody(Writer& w, const Promised& m) {
  const auto applied = w.Optional(m.applied);
  const auto prepared = w.Optional(m.prepared);
  const auto norms = w.Write(m.norms);
  const auto held = w.Write(m.held);
  return wire::CreateWirePromised(w.fbb(), m.server.value, m.incarnation.value, m.version.value, m.digest.value,
                                  applied, m.applied_scale, prepared, norms, held);
}
auto WriteBody(Writer& w, const Staged& m) {
  return wire::CreateWireStaged(w.fbb(), m.server.value, w.Write(m.contribution));
}
auto WriteBody(Writer& w, const SealStep& m) { return wire::CreateWireSealStep(w.fbb(), w.Write(m.seal), m.collapsed); }
auto WriteBody(Writer& w, const Prepared& m) {
  const wire::WireSealId id(m.seal.ballot.value, m.seal.step.value);
  const auto norms_at = w.Write(m.norms);
  return wire::CreateWirePrepared(w.fbb(), m.server.value, m.incarnation.value, &id, m.digest.value, norms_at);
}
auto WriteBody(Writer& w, const NonFinite& m) {
  const wire::WireSealId id(m.seal.ballot.value, m.seal.step.value);
  return wire::CreateWireNonFinite(w.fbb(), m.server.value, &id, w.Ids(m.workers));
}
auto WriteBody(Writer& w, const Commit& m) {
  const wire::WireSealId id(m.seal.ballot.value, m.seal.step.value);
  return wire::CreateWireCommit(w.fbb(), &id, m.digest.value, m.scale);
}
auto WriteBody(Writer& w, const Applied& m) {
  const wire::WireSealId id(m.seal.ballot.value, m.seal.step.value);
  std::vector<wire::WireChunkCheck> checks;
  for (const ChunkCheck& check : m.checks) checks.emplace_back(check.checksum, check.chunk.value);
  const auto checks_at = checks.empty() ? 0 : w.fbb().CreateVectorOfStructs(checks);
  return wire::CreateWireApplied(w.fbb(), m.server.value, m.incarnation.value, &id, m.digest.value, m.scale, checks_at);
}
auto WriteBody(Writer& w, const StaleBallot& m) {
  return wire::CreateWireStaleBallot(w.fbb(), m.server.value, m.promised.value, m.version.value);
}
auto WriteBody(Writer& w, const StatusRequest&) { return wire::CreateWireStatusRequest(w.fbb()); }
auto WriteBody(Writer& w, const StatusReply& m) { return wire::CreateWireStatusReply(w.fbb(), w.Text(m.json)); }
auto WriteBody(Writer& w, const Snapshot& m) {
  return wire::CreateWireSnapshot(w.fbb(), m.version.value, m.digest.value, w.Text(m.label, limits::kMaxNameBytes));
}
auto WriteBody(Writer& w, const SnapshotDone& m) {
  const auto label = w.Text(m.label, limits::kMaxNameBytes);
  const auto file = w.Text(m.file, limits::kMaxNameBytes);
  const auto chunks = w.Ids(m.chunks);
  std::vector<Offset<String>> arrays;
  for (const std::string& array : m.arrays) arrays.push_back(w.Text(array, limits::kMaxNameBytes));
  const auto arrays_at = w.fbb().CreateVector(arrays);
  return wire::CreateWireSnapshotDone(w.fbb(), m.server.value, label, file, m.bytes, m.checksum, chunks, arrays_at,
                                      static_cast<uint8_t>(m.code), w.Text(m.message));
}

auto WriteBody(Writer& w, const ReplicateSum& m) {
  const wire::WireSealId id(m.seal.ballot.value, m.seal.step.value);
  return wire::CreateWireReplicateSum(w.fbb(), m.server.value, m.incarnation.value, &id, m.digest.value, m.chunk.value,
                                      m.squared);
}
auto WriteBody(Writer& w, const WantSums& m) {
  const wire::WireSealId id(m.seal.ballot.value, m.seal.step.value);
  const auto chunks = w.Ids(m.chunks);
  return wire::CreateWireWantSums(w.fbb(), m.server.value, m.incarnation.value, &id, m.digest.value, chunks);
}
auto WriteBody(Writer& w, const ReceiveChunks& m) {
  const auto source = w.Write(m.source);
  const auto chunks = w.Ids(m.chunks);
  const auto spec = w.Write(m.spec);
  return wire::CreateWireReceiveChunks(w.fbb(), source, m.version.value, m.digest.value, chunks, m.chunk_bytes, spec);
}
auto WriteBody(Writer& w, const WantChunks& m) {
  return wire::CreateWireWantChunks(w.fbb(), m.ballot.value, m.version.value, m.digest.value, w.Ids(m.chunks));
}
auto WriteBody(Writer& w, const History& m) {
  const auto applied = w.Optional(m.applied);
  std::vector<wire::WireVersionDigest> versions;
  for (const VersionDigest& v : m.versions) versions.emplace_back(v.version.value, v.digest.value);
  const auto versions_at = w.fbb().CreateVectorOfStructs(versions);
  const auto done = w.Write(m.done);
  return wire::CreateWireHistory(w.fbb(), m.version.value, m.digest.value, applied, m.applied_scale, versions_at, done);
}
auto WriteBody(Writer& w, const ChunkState& m) {
  std::vector<Offset<String>> arrays;
  for (const std::string& name : m.arrays) arrays.push_back(w.Text(name, limits::kMaxNameBytes));
  const auto arrays_at = w.fbb().CreateVector(arrays);
  return wire::CreateWireChunkState(w.fbb(), m.version.value, m.digest.value, m.chunk.value, arrays_at);
}
auto WriteBody(Writer& w, const Copied& m) {
  const auto chunks = w.Ids(m.chunks);
  return wire::CreateWireCopied(w.fbb(), m.server.value, m.incarnation.value, m.ballot.value, m.version.value, chunks);
}
auto WriteBody(Writer& w, const Drained&) { return wire::CreateWireDrained(w.fbb()); }
auto WriteBody(Writer& w, const NotCoordinator& m) {
  return wire::CreateWireNotCoordinator(w.fbb(), w.Text(m.address, limits::kMaxNameBytes));
}
auto WriteBody(Writer& w, const ControlRequest& m) {
  const auto command = w.Text(m.command, limits::kMaxNameBytes);
  return wire::CreateWireControlRequest(w.fbb(), command, w.Text(m.target, limits::kMaxNameBytes));
}
auto WriteBody(Writer& w, const ControlReply& m) {
  return wire::CreateWireControlReply(w.fbb(), static_cast<uint8_t>(m.code), w.Text(m.message));
}

}  // namespace

Buffer Encode(const Envelope& envelope) {
  Writer writer;
  // Body's alternatives and WireBody's members stand in the same order; NONE is 0 on the wire.
  static_assert(static_cast<size_t>(wire::WireBody::MAX) == std::variant_size_v<Body>);
  const auto kind = static_cast<wire::WireBody>(envelope.body.index() + 1);
  const auto body = std::visit([&](const auto& m) { return WriteBody(writer, m).Union(); }, envelope.body);
  auto& fbb = writer.fbb();
  wire::FinishWireEnvelopeBuffer(
      fbb, wire::CreateWireEnvelope(fbb, kProtocolVersion, envelope.job.value, envelope.ballot.value, kind, body));
  // The finished bytes stay where the builder put them; the Buffer owns the builder's memory.
  auto memory = std::make_shared<flatbuffers::DetachedBuffer>(fbb.Release());
  const void* data = memory->data();
  const size_t size = memory->size();
  return {std::shared_ptr<const void>(std::move(memory)), data, size};
}

}  // namespace everstep
