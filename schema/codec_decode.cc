#include <flatbuffers/flatbuffers.h>

#include <cstdint>
#include <type_traits>

#include "base/limits.h"
#include "schema/codec.h"
#include "wire_generated.h"

namespace everstep {
namespace {

// Reads verified tables into messages. The first thing that makes no sense is remembered; values read after that are
// defaults and are thrown away by Decode. So no reader needs an error path of its own.
class Reader {
 public:
  bool ok() const { return problem_.empty(); }
  const std::string& problem() const { return problem_; }
  void Fail(std::string what) {
    if (problem_.empty()) problem_ = std::move(what);
  }

  std::string Text(const flatbuffers::String* text, size_t bound = limits::kMaxTextBytes) {
    if (text == nullptr) return {};
    if (text->size() > bound) {
      Fail("text too long");
      return {};
    }
    return text->str();
  }

  template <typename Enum>
  Enum Enumerator(uint8_t value, Enum last, const char* what) {
    if (value > static_cast<uint8_t>(last)) Fail(std::string("unknown ") + what + " " + std::to_string(value));
    return static_cast<Enum>(value);
  }
  Code ErrorCode(uint8_t value) {
    const Code code = Enumerator(value, Code::kInternal, "code");
    if (code == Code::kOk) Fail("a refusal without a reason");
    return code;
  }

  // How many elements there are to read. FlatBuffers' verifier looks at their bounds, not at their alignment.
  template <typename T>
  size_t Count(const flatbuffers::Vector<T>* vector, size_t bound, const char* what) {
    if (vector == nullptr || vector->size() == 0) return 0;
    if (reinterpret_cast<uintptr_t>(vector->Data()) % alignof(std::remove_pointer_t<T>) != 0) {
      Fail(std::string("misaligned ") + what);
      return 0;
    }
    if (vector->size() > bound) {
      Fail(std::string("too many ") + what);
      return 0;
    }
    return vector->size();
  }

  template <typename Table>
  const Table* Required(const Table* table, const char* what) {
    if (table == nullptr) Fail(std::string("no ") + what);
    return table;
  }

  std::vector<SampleRange> Ranges(const flatbuffers::Vector<const wire::Range*>* list, size_t bound) {
    std::vector<SampleRange> out;
    const size_t count = Count(list, bound, "ranges");
    out.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      const wire::Range* range = list->Get(static_cast<flatbuffers::uoffset_t>(i));
      if (range->begin() >= range->end() || (!out.empty() && range->begin() < out.back().end)) Fail("bad ranges");
      out.push_back({range->begin(), range->end()});
    }
    return out;
  }

  void Read(const wire::WireLease* in, Lease* out) {
    if (!Required(in, "lease")) return;
    *out = {{in->id()}, in->epoch(), Ranges(in->ranges(), limits::kMaxLeaseRanges)};
  }
  void Read(const wire::WireLedger* in, LedgerState* out) {
    if (!Required(in, "ledger")) return;
    *out = {in->epoch(), Ranges(in->consumed(), limits::kMaxLedgerRanges)};
  }
  void Read(const wire::WireContribution* in, Contribution* out) {
    if (!Required(in, "contribution")) return;
    out->worker = {in->worker()};
    out->base = {in->base()};
    out->base_digest = {in->base_digest()};
    Read(in->lease(), &out->lease);
  }
  void Read(const wire::WireSealId* in, SealId* out) {
    if (!Required(in, "seal id")) return;
    *out = {{in->ballot()}, {in->step()}};
  }

  using ContributionList = flatbuffers::Vector<flatbuffers::Offset<wire::WireContribution>>;
  void Read(const ContributionList* in, std::vector<Contribution>* out) {
    const size_t count = Count(in, limits::kMaxSlots, "contributions");
    out->resize(count);
    for (size_t i = 0; i < count; ++i) Read(in->Get(static_cast<flatbuffers::uoffset_t>(i)), &(*out)[i]);
  }

  void Read(const wire::WireSeal* in, Seal* out) {
    if (!Required(in, "seal")) return;
    Read(in->id(), &out->id);
    Read(in->contributors(), &out->contributors);
    const size_t count = Count(in->weights(), limits::kMaxSlots, "weights");
    for (size_t i = 0; i < count; ++i)
      out->weights.push_back(in->weights()->Get(static_cast<flatbuffers::uoffset_t>(i)));
    if (out->weights.size() != out->contributors.size()) Fail("a weight for each contributor is needed");
    out->learning_rate = in->learning_rate();
    out->clip_norm = in->clip_norm();
    Read(in->ledger_after(), &out->ledger_after);
    out->previous = {in->previous()};
    out->digest = {in->digest()};
    if (ok() && SealDigest(*out) != out->digest) Fail("a seal whose digest does not match its contents");
  }

  void Read(const wire::WireRestoreFrom* in, RestoreFrom* out) {
    out->label = Text(in->label(), limits::kMaxNameBytes);
    Read(in->seal(), &out->seal);
    out->scale = in->scale();
  }

  void Read(const flatbuffers::Vector<const wire::WireChunkNorm*>* in, std::vector<ChunkNorm>* out) {
    const size_t count = Count(in, limits::kMaxHeaderBytes, "norms");
    for (size_t i = 0; i < count; ++i) {
      const auto* norm = in->Get(static_cast<flatbuffers::uoffset_t>(i));
      out->push_back({{norm->chunk()}, norm->squared()});
    }
  }

  void Read(const wire::WireSpec* in, ParameterSpec* out) {
    if (!Required(in, "spec")) return;
    const size_t count = Count(in->tensors(), limits::kMaxTensors, "tensors");
    out->tensors.resize(count);
    for (size_t i = 0; i < count; ++i) {
      const auto* t = in->tensors()->Get(static_cast<flatbuffers::uoffset_t>(i));
      TensorSpec& tensor = out->tensors[i];
      tensor.name = Text(t->name(), limits::kMaxNameBytes);
      const size_t dims = Count(t->shape(), 64, "dimensions");
      for (size_t d = 0; d < dims; ++d) tensor.shape.push_back(t->shape()->Get(static_cast<flatbuffers::uoffset_t>(d)));
      tensor.dtype = Enumerator(t->dtype(), DType::kInt64, "dtype");
      tensor.role = Enumerator(t->role(), Role::kBuffer, "role");
    }
    if (!ok() || out->tensors.empty()) return;
    if (Status valid = Validate(*out); !valid.ok()) Fail(valid.message());
  }

  void Read(const wire::WireServer* in, ServerEntry* out) {
    if (!Required(in, "server")) return;
    *out = {{in->id()}, {in->incarnation()}, Text(in->address(), limits::kMaxNameBytes)};
  }

  void Read(const wire::WireMap* in, ShardMap* out) {
    if (!Required(in, "map")) return;
    out->ballot = {in->ballot()};
    out->spec_hash = in->spec_hash();
    out->chunk_bytes = in->chunk_bytes();
    if (out->chunk_bytes < limits::kMinChunkBytes || out->chunk_bytes > limits::kMaxChunkBytes ||
        out->chunk_bytes % limits::kChunkAlignment != 0) {
      return Fail("bad chunk size");
    }
    const size_t servers = Count(in->servers(), limits::kMaxServers, "servers");
    out->servers.resize(servers);
    for (size_t i = 0; i < servers; ++i)
      Read(in->servers()->Get(static_cast<flatbuffers::uoffset_t>(i)), &out->servers[i]);
    const size_t chunks = Count(in->holder_counts(), limits::kMaxHeaderBytes, "chunks");
    const size_t holders = Count(in->holders(), limits::kMaxHeaderBytes, "holders");
    size_t at = 0;
    for (size_t i = 0; i < chunks && ok(); ++i) {
      const size_t count = in->holder_counts()->Get(static_cast<flatbuffers::uoffset_t>(i));
      if (count == 0 || count > holders - at) return Fail("a chunk without holders");
      auto& list = out->replicas.emplace_back();
      for (size_t k = 0; k < count; ++k) {
        list.push_back(in->holders()->Get(static_cast<flatbuffers::uoffset_t>(at++)));
        if (list.back() >= servers) return Fail("a chunk on a server that does not exist");
      }
    }
  }

  void Read(const wire::WireJob* in, JobSpec* out) {
    if (!Required(in, "job")) return;
    out->name = Text(in->name(), limits::kMaxNameBytes);
    out->mode = Enumerator(in->mode(), Mode::kAsync, "mode");
    OptimizerOptions& o = out->optimizer;
    o.kind = Enumerator(in->optimizer(), OptimizerKind::kAdamW, "optimizer");
    o.learning_rate = in->learning_rate();
    o.momentum = in->momentum();
    o.dampening = in->dampening();
    o.nesterov = in->nesterov();
    o.beta1 = in->beta1();
    o.beta2 = in->beta2();
    o.epsilon = in->epsilon();
    o.weight_decay = in->weight_decay();
    ScheduleOptions& s = out->schedule;
    s.kind = Enumerator(in->schedule(), ScheduleKind::kWsd, "schedule");
    s.warmup_steps = in->warmup_steps();
    s.total_steps = in->total_steps();
    s.step_size = in->step_size();
    s.gamma = in->gamma();
    s.final_scale = in->final_scale();
    s.decay_steps = in->decay_steps();
    out->clip_norm = in->clip_norm();
    out->batch = in->batch();
    out->epochs = in->epochs();
    out->max_steps = in->max_steps();
    out->seed = in->seed();
    out->servers = in->servers();
    out->replication = in->replication();
    out->min_workers = in->min_workers();
    out->max_workers = in->max_workers();
    out->chunk_bytes = in->chunk_bytes();
    out->quorum = in->quorum();
    out->grace = Duration(in->grace_ns());
    out->staleness = in->staleness();
    out->staleness_power = in->staleness_power();
    out->timeout = Duration(in->timeout_ns());
    out->task = Text(in->task());
    out->verify_replicas = in->verify_replicas();
    if (Status valid = Validate(*out); ok() && !valid.ok()) Fail(valid.message());
  }

  template <typename Wire, typename T>
  void Optional(const Wire* in, std::optional<T>* out) {
    if (in != nullptr) Read(in, &out->emplace());
  }

  template <typename Id, typename Rep>
  void Ids(const flatbuffers::Vector<Rep>* in, std::vector<Id>* out, size_t bound) {
    const size_t count = Count(in, bound, "ids");
    for (size_t i = 0; i < count; ++i) out->push_back({in->Get(static_cast<flatbuffers::uoffset_t>(i))});
  }

 private:
  std::string problem_;
};

// One overload a message, in the order of Body.

void ReadBody(Reader& r, const wire::WireHello& in, Hello* m) {
  m->role = r.Enumerator(in.role(), PeerRole::kObserver, "role");
  m->name = r.Text(in.name(), limits::kMaxNameBytes);
  m->job_name = r.Text(in.job_name(), limits::kMaxNameBytes);
  m->worker = {in.worker()};
  m->incarnation = {in.incarnation()};
  m->address = r.Text(in.address(), limits::kMaxNameBytes);
  if (in.spec() != nullptr) r.Read(in.spec(), &m->spec);
  m->dataset_size = in.dataset_size();
  if (m->dataset_size > (uint64_t{1} << 56)) r.Fail("impossible dataset size");
  m->version = {in.version()};
  r.Optional(in.lease(), &m->lease);
  m->may_coordinate = in.may_coordinate();
}
void ReadBody(Reader& r, const wire::WireWelcome& in, Welcome* m) {
  r.Read(in.job(), &m->job);
  m->server = {in.server()};
  m->version = {in.version()};
  r.Optional(in.map(), &m->map);
}
void ReadBody(Reader& r, const wire::WireRefused& in, Refused* m) {
  *m = {r.ErrorCode(in.code()), r.Text(in.message())};
}
void ReadBody(Reader& r, const wire::WireMapUpdate& in, MapUpdate* m) { r.Read(in.map(), &m->map); }
void ReadBody(Reader&, const wire::WireReady& in, Ready* m) { *m = {{in.worker()}, {in.version()}, {in.void_lease()}}; }
void ReadBody(Reader& r, const wire::WireGrant& in, Grant* m) {
  m->worker = {in.worker()};
  m->number = in.number();
  m->version = {in.version()};
  r.Read(in.lease(), &m->lease);
}
void ReadBody(Reader& r, const wire::WireHeartbeat& in, Heartbeat* m) {
  *m = {{in.worker()}, r.Enumerator(in.phase(), Phase::kEvaluating, "phase"), in.progress(), in.grant()};
}
void ReadBody(Reader&, const wire::WireHeartbeatAck&, HeartbeatAck*) {}
void ReadBody(Reader& r, const wire::WireReport& in, Report* m) {
  m->worker = {in.worker()};
  m->base = {in.base()};
  m->lease = {in.lease()};
  m->evaluation = in.evaluation();
  const size_t count = r.Count(in.metrics(), 256, "metrics");
  for (size_t i = 0; i < count; ++i) {
    const auto* metric = in.metrics()->Get(static_cast<flatbuffers::uoffset_t>(i));
    m->metrics.push_back({r.Text(metric->name(), limits::kMaxNameBytes), metric->value()});
  }
}
void ReadBody(Reader& r, const wire::WireFenced& in, Fenced* m) {
  *m = {{in.worker()}, r.Text(in.message()), in.replaced()};
}
void ReadBody(Reader& r, const wire::WireLeave& in, Leave* m) { *m = {{in.worker()}, r.Text(in.message())}; }
void ReadBody(Reader&, const wire::WireLeaveAck&, LeaveAck*) {}
void ReadBody(Reader&, const wire::WireFinish& in, Finish* m) { *m = {{in.version()}, in.evaluate()}; }
void ReadBody(Reader& r, const wire::WireJobFailed& in, JobFailed* m) {
  *m = {r.ErrorCode(in.code()), r.Text(in.message())};
}
void ReadBody(Reader& r, const wire::WirePush& in, Push* m) {
  r.Read(in.contribution(), &m->contribution);
  m->chunk = {in.chunk()};
}
void ReadBody(Reader& r, const wire::WirePushRefused& in, PushRefused* m) {
  r.Read(in.contribution(), &m->contribution);
  m->chunk = {in.chunk()};
  m->code = r.ErrorCode(in.code());
  m->version = {in.version()};
  m->message = r.Text(in.message());
}
void ReadBody(Reader& r, const wire::WirePull& in, Pull* m) {
  m->worker = {in.worker()};
  m->at_least = {in.at_least()};
  m->exact = in.exact();
  r.Ids(in.chunks(), &m->chunks, limits::kMaxHeaderBytes);
  r.Optional(in.pending(), &m->pending);
}
void ReadBody(Reader& r, const wire::WireMissing& in, Missing* m) {
  r.Read(in.contribution(), &m->contribution);
  r.Ids(in.chunks(), &m->chunks, limits::kMaxHeaderBytes);
}
void ReadBody(Reader&, const wire::WireChunkData& in, ChunkData* m) {
  *m = {{in.version()}, {in.digest()}, {in.chunk()}};
}
void ReadBody(Reader& r, const wire::WirePullRefused& in, PullRefused* m) {
  *m = {r.ErrorCode(in.code()), {in.version()}, r.Text(in.message())};
}
void ReadBody(Reader& r, const wire::WireWrongShard& in, WrongShard* m) { r.Read(in.map(), &m->map); }
void ReadBody(Reader& r, const wire::WirePromise& in, Promise* m) {
  r.Read(in.map(), &m->map);
  r.Read(in.spec(), &m->spec);
  r.Optional(in.restore(), &m->restore);
  if (r.ok() && m->spec.tensors.empty()) r.Fail("an empty model");
}
void ReadBody(Reader& r, const wire::WirePromised& in, Promised* m) {
  m->server = {in.server()};
  m->incarnation = {in.incarnation()};
  m->version = {in.version()};
  m->digest = {in.digest()};
  r.Optional(in.applied(), &m->applied);
  m->applied_scale = in.applied_scale();
  r.Optional(in.prepared(), &m->prepared);
  r.Read(in.norms(), &m->norms);
  r.Read(in.held(), &m->held);
}
void ReadBody(Reader& r, const wire::WireStaged& in, Staged* m) {
  m->server = {in.server()};
  r.Read(in.contribution(), &m->contribution);
}
void ReadBody(Reader& r, const wire::WireSealStep& in, SealStep* m) {
  r.Read(in.seal(), &m->seal);
  m->collapsed = in.collapsed();
}
void ReadBody(Reader& r, const wire::WirePrepared& in, Prepared* m) {
  m->server = {in.server()};
  m->incarnation = {in.incarnation()};
  r.Read(in.seal(), &m->seal);
  m->digest = {in.digest()};
  r.Read(in.norms(), &m->norms);
}
void ReadBody(Reader& r, const wire::WireNonFinite& in, NonFinite* m) {
  m->server = {in.server()};
  r.Read(in.seal(), &m->seal);
  r.Ids(in.workers(), &m->workers, limits::kMaxMembers);
}
void ReadBody(Reader& r, const wire::WireCommit& in, Commit* m) {
  r.Read(in.seal(), &m->seal);
  m->digest = {in.digest()};
  m->scale = in.scale();
}
void ReadBody(Reader& r, const wire::WireApplied& in, Applied* m) {
  m->server = {in.server()};
  m->incarnation = {in.incarnation()};
  r.Read(in.seal(), &m->seal);
  m->digest = {in.digest()};
  m->scale = in.scale();
  const size_t count = r.Count(in.checks(), limits::kMaxHeaderBytes, "checks");
  for (size_t i = 0; i < count; ++i) {
    const auto* check = in.checks()->Get(static_cast<flatbuffers::uoffset_t>(i));
    m->checks.push_back({{check->chunk()}, check->checksum()});
  }
}
void ReadBody(Reader&, const wire::WireStaleBallot& in, StaleBallot* m) {
  *m = {{in.server()}, {in.promised()}, {in.version()}};
}
void ReadBody(Reader&, const wire::WireStatusRequest&, StatusRequest*) {}
void ReadBody(Reader& r, const wire::WireStatusReply& in, StatusReply* m) { m->json = r.Text(in.json()); }
void ReadBody(Reader& r, const wire::WireSnapshot& in, Snapshot* m) {
  *m = {{in.version()}, {in.digest()}, r.Text(in.label(), limits::kMaxNameBytes)};
}
void ReadBody(Reader& r, const wire::WireSnapshotDone& in, SnapshotDone* m) {
  m->server = {in.server()};
  m->label = r.Text(in.label(), limits::kMaxNameBytes);
  m->file = r.Text(in.file(), limits::kMaxNameBytes);
  m->bytes = in.bytes();
  m->checksum = in.checksum();
  r.Ids(in.chunks(), &m->chunks, limits::kMaxHeaderBytes);
  const size_t arrays = r.Count(in.arrays(), 16, "arrays");
  for (size_t i = 0; i < arrays; ++i)
    m->arrays.push_back(r.Text(in.arrays()->Get(static_cast<flatbuffers::uoffset_t>(i)), limits::kMaxNameBytes));
  m->code = r.Enumerator(in.code(), Code::kInternal, "code");
  m->message = r.Text(in.message());
}
void ReadBody(Reader& r, const wire::WireReplicateSum& in, ReplicateSum* m) {
  m->server = {in.server()};
  m->incarnation = {in.incarnation()};
  r.Read(in.seal(), &m->seal);
  m->digest = {in.digest()};
  m->chunk = {in.chunk()};
  m->squared = in.squared();
}
void ReadBody(Reader& r, const wire::WireWantSums& in, WantSums* m) {
  m->server = {in.server()};
  m->incarnation = {in.incarnation()};
  r.Read(in.seal(), &m->seal);
  m->digest = {in.digest()};
  r.Ids(in.chunks(), &m->chunks, limits::kMaxChunks);
}
void ReadBody(Reader& r, const wire::WireReceiveChunks& in, ReceiveChunks* m) {
  r.Read(in.source(), &m->source);
  m->version = {in.version()};
  m->digest = {in.digest()};
  r.Ids(in.chunks(), &m->chunks, limits::kMaxChunks);
  m->chunk_bytes = in.chunk_bytes();
  r.Read(in.spec(), &m->spec);
}
void ReadBody(Reader& r, const wire::WireWantChunks& in, WantChunks* m) {
  m->ballot = {in.ballot()};
  m->version = {in.version()};
  m->digest = {in.digest()};
  r.Ids(in.chunks(), &m->chunks, limits::kMaxChunks);
}
void ReadBody(Reader& r, const wire::WireHistory& in, History* m) {
  m->version = {in.version()};
  m->digest = {in.digest()};
  r.Optional(in.applied(), &m->applied);
  m->applied_scale = in.applied_scale();
  const size_t count = r.Count(in.versions(), limits::kMaxStaleness + 2, "versions");
  for (size_t i = 0; i < count; ++i) {
    const auto* version = in.versions()->Get(static_cast<flatbuffers::uoffset_t>(i));
    m->versions.push_back({{version->version()}, {version->digest()}});
  }
  r.Read(in.done(), &m->done);
}
void ReadBody(Reader& r, const wire::WireChunkState& in, ChunkState* m) {
  m->version = {in.version()};
  m->digest = {in.digest()};
  m->chunk = {in.chunk()};
  const size_t count = r.Count(in.arrays(), limits::kMaxStateArrays, "arrays");
  for (size_t i = 0; i < count; ++i)
    m->arrays.push_back(r.Text(in.arrays()->Get(static_cast<flatbuffers::uoffset_t>(i)), limits::kMaxNameBytes));
}
void ReadBody(Reader& r, const wire::WireCopied& in, Copied* m) {
  m->server = {in.server()};
  m->incarnation = {in.incarnation()};
  m->ballot = {in.ballot()};
  m->version = {in.version()};
  r.Ids(in.chunks(), &m->chunks, limits::kMaxChunks);
}
void ReadBody(Reader&, const wire::WireDrained&, Drained*) {}
void ReadBody(Reader& r, const wire::WireNotCoordinator& in, NotCoordinator* m) {
  m->address = r.Text(in.address(), limits::kMaxNameBytes);
}
void ReadBody(Reader& r, const wire::WireControlRequest& in, ControlRequest* m) {
  m->command = r.Text(in.command(), limits::kMaxNameBytes);
  m->target = r.Text(in.target(), limits::kMaxNameBytes);
}
void ReadBody(Reader& r, const wire::WireControlReply& in, ControlReply* m) {
  m->code = r.Enumerator(in.code(), Code::kInternal, "code");
  m->message = r.Text(in.message());
}

template <typename Wire, typename Message>
void ReadAs(Reader& r, const wire::WireEnvelope& envelope, Body* body) {
  ReadBody(r, *static_cast<const Wire*>(envelope.body()), &body->emplace<Message>());
}

void ReadAnyBody(Reader& r, const wire::WireEnvelope& e, Body* body) {
  using wire::WireBody;
  switch (e.body_type()) {
#define EVERSTEP_MESSAGE(name) \
  case WireBody::Wire##name: return ReadAs<wire::Wire##name, name>(r, e, body)
    EVERSTEP_MESSAGE(Hello);
    EVERSTEP_MESSAGE(Welcome);
    EVERSTEP_MESSAGE(Refused);
    EVERSTEP_MESSAGE(MapUpdate);
    EVERSTEP_MESSAGE(Ready);
    EVERSTEP_MESSAGE(Grant);
    EVERSTEP_MESSAGE(Heartbeat);
    EVERSTEP_MESSAGE(HeartbeatAck);
    EVERSTEP_MESSAGE(Report);
    EVERSTEP_MESSAGE(Fenced);
    EVERSTEP_MESSAGE(Leave);
    EVERSTEP_MESSAGE(LeaveAck);
    EVERSTEP_MESSAGE(Finish);
    EVERSTEP_MESSAGE(JobFailed);
    EVERSTEP_MESSAGE(Push);
    EVERSTEP_MESSAGE(PushRefused);
    EVERSTEP_MESSAGE(Pull);
    EVERSTEP_MESSAGE(Missing);
    EVERSTEP_MESSAGE(ChunkData);
    EVERSTEP_MESSAGE(PullRefused);
    EVERSTEP_MESSAGE(WrongShard);
    EVERSTEP_MESSAGE(Promise);
    EVERSTEP_MESSAGE(Promised);
    EVERSTEP_MESSAGE(Staged);
    EVERSTEP_MESSAGE(SealStep);
    EVERSTEP_MESSAGE(Prepared);
    EVERSTEP_MESSAGE(NonFinite);
    EVERSTEP_MESSAGE(Commit);
    EVERSTEP_MESSAGE(Applied);
    EVERSTEP_MESSAGE(StaleBallot);
    EVERSTEP_MESSAGE(StatusRequest);
    EVERSTEP_MESSAGE(StatusReply);
    EVERSTEP_MESSAGE(Snapshot);
    EVERSTEP_MESSAGE(SnapshotDone);
    EVERSTEP_MESSAGE(ReplicateSum);
    EVERSTEP_MESSAGE(WantSums);
    EVERSTEP_MESSAGE(ReceiveChunks);
    EVERSTEP_MESSAGE(WantChunks);
    EVERSTEP_MESSAGE(History);
    EVERSTEP_MESSAGE(ChunkState);
    EVERSTEP_MESSAGE(Copied);
    EVERSTEP_MESSAGE(Drained);
    EVERSTEP_MESSAGE(NotCoordinator);
    EVERSTEP_MESSAGE(ControlRequest);
    EVERSTEP_MESSAGE(ControlReply);
#undef EVERSTEP_MESSAGE
    case WireBody::NONE: break;
  }
  r.Fail("a message without a known body");
}

Status Corrupt(const std::string& what) { return {Code::kCorrupt, "message refused: " + what}; }

Result<Envelope> DecodeAligned(const Buffer& bytes) {
  flatbuffers::Verifier verifier(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), 64,
                                 static_cast<flatbuffers::uoffset_t>(4 * limits::kMaxTensors));
  if (bytes.size() < 8 || !wire::WireEnvelopeBufferHasIdentifier(bytes.data()))
    return Corrupt("not an Everstep message");
  if (!wire::VerifyWireEnvelopeBuffer(verifier)) return Corrupt("damaged");
  const wire::WireEnvelope& in = *wire::GetWireEnvelope(bytes.data());
  if (in.protocol() != kProtocolVersion) {
    return Status(Code::kWrongVersion, "the peer speaks protocol version " + std::to_string(in.protocol()) +
                                           ", this process speaks " + std::to_string(kProtocolVersion) +
                                           "; install the same Everstep on both");
  }
  if (in.body() == nullptr) return Corrupt("a message without a body");
  Reader reader;
  Envelope out{{in.job()}, {in.ballot()}, {}};
  ReadAnyBody(reader, in, &out.body);
  if (!reader.ok()) return Corrupt(reader.problem());
  return out;
}

}  // namespace

Result<Envelope> Decode(const Buffer& bytes) {
  if (bytes.size() > limits::kMaxHeaderBytes) return Corrupt("larger than any message");
  // FlatBuffers reads scalars in place: the bytes must be aligned as they were when they were built.
  if (reinterpret_cast<uintptr_t>(bytes.data()) % 8 != 0)
    return DecodeAligned(Buffer::Copy(bytes.data(), bytes.size()));
  return DecodeAligned(bytes);
}

}  // namespace everstep
