#include "tests/schema/random_messages.h"

#include <algorithm>

#include "base/check.h"

namespace everstep::test {
namespace {

// Mostly small numbers, sometimes any: both ends of every width are met.
uint64_t Number(Random& random) {
  switch (random.Below(4)) {
    case 0: return random.Below(4);
    case 1: return random.Next();
    case 2: return UINT64_MAX - random.Below(2);
    default: return random.Below(1u << 20);
  }
}
uint32_t Number32(Random& random) { return static_cast<uint32_t>(Number(random)); }
bool Coin(Random& random) { return random.Chance(0.5); }
double Real(Random& random) { return random.Uniform() * static_cast<double>(random.Below(1000) + 1); }

template <typename Enum>
Enum Pick(Random& random, Enum last) {
  return static_cast<Enum>(random.Below(static_cast<uint64_t>(last) + 1));
}
Code Reason(Random& random) { return static_cast<Code>(1 + random.Below(static_cast<uint64_t>(Code::kInternal))); }

template <typename T, typename Make>
std::vector<T> Several(Random& random, size_t most, Make make) {
  std::vector<T> out;
  for (size_t n = random.Below(most + 1); n > 0; --n) out.push_back(make());
  return out;
}

std::vector<ChunkId> Chunks(Random& random) {
  return Several<ChunkId>(random, 5, [&] { return ChunkId{Number32(random)}; });
}
std::vector<ChunkNorm> Norms(Random& random) {
  return Several<ChunkNorm>(random, 5, [&] { return ChunkNorm{{Number32(random)}, Real(random)}; });
}
SealId RandomSealId(Random& random) { return {{Number(random)}, {Number(random)}}; }

void Fill(Random& r, Hello* m) {
  m->role = Pick(r, PeerRole::kObserver);
  m->name = RandomText(r, 256);
  m->job_name = RandomText(r, 256);
  m->worker = {Number(r)};
  m->incarnation = {Number(r)};
  m->address = RandomText(r, 256);
  if (Coin(r)) m->spec = RandomSpec(r, 5);
  m->dataset_size = r.Below((uint64_t{1} << 56) + 1);
  m->version = {Number(r)};
  if (Coin(r)) m->lease = RandomLease(r);
  m->may_coordinate = Coin(r);
}
void Fill(Random& r, Welcome* m) {
  m->job = RandomJob(r);
  m->server = {Number32(r)};
  m->version = {Number(r)};
  if (Coin(r)) m->map = RandomMap(r);
}
void Fill(Random& r, Refused* m) { *m = {Reason(r), RandomText(r, 1000)}; }
void Fill(Random& r, MapUpdate* m) { *m = {RandomMap(r)}; }
void Fill(Random& r, Ready* m) { *m = {{Number(r)}, {Number(r)}, {Number(r)}}; }
void Fill(Random& r, Grant* m) { *m = {{Number(r)}, Number(r), {Number(r)}, RandomLease(r)}; }
void Fill(Random& r, Heartbeat* m) { *m = {{Number(r)}, Pick(r, Phase::kEvaluating), Number(r), Number(r)}; }
void Fill(Random&, HeartbeatAck*) {}
void Fill(Random& r, Report* m) {
  *m = {{Number(r)}, {Number(r)}, {Number(r)}, Coin(r), {}};
  m->metrics = Several<Metric>(r, 4, [&] { return Metric{RandomText(r, 20), Real(r)}; });
}
void Fill(Random& r, Fenced* m) { *m = {{Number(r)}, RandomText(r, 100)}; }
void Fill(Random& r, Leave* m) { *m = {{Number(r)}, RandomText(r, 100)}; }
void Fill(Random&, LeaveAck*) {}
void Fill(Random& r, Finish* m) { *m = {{Number(r)}, Coin(r)}; }
void Fill(Random& r, JobFailed* m) { *m = {Reason(r), RandomText(r, 100)}; }
void Fill(Random& r, Push* m) { *m = {RandomContribution(r), {Number32(r)}}; }
void Fill(Random& r, PushRefused* m) {
  *m = {RandomContribution(r), {Number32(r)}, Reason(r), {Number(r)}, RandomText(r, 100)};
}
void Fill(Random& r, Pull* m) {
  *m = {{Number(r)}, {Number(r)}, Coin(r), Chunks(r), {}};
  if (Coin(r)) m->pending = RandomContribution(r);
}
void Fill(Random& r, Missing* m) { *m = {RandomContribution(r), Chunks(r)}; }
void Fill(Random& r, ChunkData* m) { *m = {{Number(r)}, {Number(r)}, {Number32(r)}}; }
void Fill(Random& r, PullRefused* m) { *m = {Reason(r), {Number(r)}, RandomText(r, 100)}; }
void Fill(Random& r, WrongShard* m) { *m = {RandomMap(r)}; }
void Fill(Random& r, Promise* m) {
  *m = {RandomMap(r), RandomSpec(r, 5)};
  if (Coin(r)) m->restore = RestoreFrom{RandomText(r, 100), RandomSeal(r), Real(r)};
}
void Fill(Random& r, Promised* m) {
  m->server = {Number32(r)};
  m->incarnation = {Number(r)};
  m->version = {Number(r)};
  m->digest = {Number(r)};
  if (Coin(r)) m->applied = RandomSeal(r);
  m->applied_scale = Real(r);
  if (Coin(r)) m->prepared = RandomSeal(r);
  m->norms = Norms(r);
  m->held = Several<Contribution>(r, 4, [&] { return RandomContribution(r); });
}
void Fill(Random& r, Staged* m) { *m = {{Number32(r)}, RandomContribution(r)}; }
void Fill(Random& r, SealStep* m) { *m = {RandomSeal(r), Coin(r)}; }
void Fill(Random& r, Prepared* m) { *m = {{Number32(r)}, {Number(r)}, RandomSealId(r), {Number(r)}, Norms(r)}; }
void Fill(Random& r, NonFinite* m) {
  *m = {{Number32(r)}, RandomSealId(r), Several<WorkerId>(r, 4, [&] { return WorkerId{Number(r)}; })};
}
void Fill(Random& r, Commit* m) { *m = {RandomSealId(r), {Number(r)}, Real(r)}; }
void Fill(Random& r, Applied* m) {
  *m = {{Number32(r)}, {Number(r)}, RandomSealId(r), {Number(r)}, Real(r), {}};
  m->checks = Several<ChunkCheck>(r, 3, [&] { return ChunkCheck{{Number32(r)}, Number(r)}; });
}
void Fill(Random& r, StaleBallot* m) { *m = {{Number32(r)}, {Number(r)}, {Number(r)}}; }
void Fill(Random&, StatusRequest*) {}
void Fill(Random& r, StatusReply* m) { m->json = RandomText(r, 3000); }
void Fill(Random& r, Snapshot* m) { *m = {{Number(r)}, {Number(r)}, RandomText(r, 100)}; }
void Fill(Random& r, SnapshotDone* m) {
  *m = {{Number32(r)}, RandomText(r, 100), RandomText(r, 100), Number(r), Number(r), Chunks(r), {}, Code::kOk, {}};
  m->arrays = Several<std::string>(r, 3, [&] { return RandomText(r, 20); });
  if (Coin(r)) m->code = Reason(r);
  m->message = RandomText(r, 100);
}
void Fill(Random& r, ReplicateSum* m) {
  *m = {{Number32(r)}, {Number(r)}, RandomSealId(r), {Number(r)}, {Number32(r)}, Real(r)};
}
void Fill(Random& r, WantSums* m) { *m = {{Number32(r)}, {Number(r)}, RandomSealId(r), {Number(r)}, Chunks(r)}; }
void Fill(Random& r, ReceiveChunks* m) {
  m->source = {{Number32(r)}, {Number(r)}, RandomText(r, 100)};
  m->version = {Number(r)};
  m->digest = {Number(r)};
  m->chunks = Chunks(r);
  m->chunk_bytes = Number(r);
  m->spec = RandomSpec(r, 5);
}
void Fill(Random& r, WantChunks* m) { *m = {{Number(r)}, {Number(r)}, {Number(r)}, Chunks(r)}; }
void Fill(Random& r, History* m) {
  *m = {{Number(r)}, {Number(r)}, {}, Real(r), {}, {}};
  if (Coin(r)) m->applied = RandomSeal(r);
  m->versions = Several<VersionDigest>(r, 4, [&] { return VersionDigest{{Number(r)}, {Number(r)}}; });
  m->done = Several<Contribution>(r, 4, [&] { return RandomContribution(r); });
}
void Fill(Random& r, ChunkState* m) {
  *m = {{Number(r)}, {Number(r)}, {Number32(r)}, Several<std::string>(r, 3, [&] { return RandomText(r, 20); })};
}
void Fill(Random& r, Copied* m) { *m = {{Number32(r)}, {Number(r)}, {Number(r)}, {Number(r)}, Chunks(r)}; }
void Fill(Random&, Drained*) {}
void Fill(Random& r, NotCoordinator* m) { m->address = RandomText(r, 100); }
void Fill(Random& r, ControlRequest* m) { *m = {RandomText(r, 20), RandomText(r, 100)}; }
void Fill(Random& r, ControlReply* m) { *m = {Coin(r) ? Code::kOk : Reason(r), RandomText(r, 100)}; }

template <size_t... I>
void Emplace(size_t kind, Body* body, std::index_sequence<I...>) {
  ((kind == I ? static_cast<void>(body->emplace<I>()) : void()), ...);
}

}  // namespace

std::string RandomText(Random& random, size_t most) {
  std::string text;
  for (size_t n = random.Below(most + 1); n > 0; --n) text += static_cast<char>(' ' + random.Below(95));
  return text;
}

ParameterSpec RandomSpec(Random& random, size_t most_tensors) {
  ParameterSpec spec;
  const size_t count = 1 + random.Below(most_tensors);
  for (size_t i = 0; i < count; ++i) {
    TensorSpec tensor;
    tensor.name = "t" + std::to_string(i) + "." + RandomText(random, 10);
    for (size_t d = random.Below(4); d > 0; --d) tensor.shape.push_back(random.Between(i == 0 ? 1 : 0, 9));
    tensor.role = i > 0 && Coin(random) ? Role::kBuffer : Role::kTrainable;
    if (tensor.role == Role::kBuffer && Coin(random)) tensor.dtype = DType::kInt64;
    spec.tensors.push_back(std::move(tensor));
  }
  EVERSTEP_CHECK(Validate(spec).ok(), "random specs are valid");
  return spec;
}

std::vector<SampleRange> RandomRanges(Random& random, size_t most) {
  std::vector<SampleRange> ranges;
  uint64_t at = random.Below(100);
  for (size_t n = random.Below(most + 1); n > 0; --n) {
    const uint64_t end = at + 1 + random.Below(1000);
    ranges.push_back({at, end});
    at = end + random.Below(3);  // touching neighbours are allowed on the wire
  }
  return ranges;
}

Lease RandomLease(Random& random) { return {{Number(random)}, Number(random), RandomRanges(random, 5)}; }

Contribution RandomContribution(Random& random) {
  return {{Number(random)}, {Number(random)}, {Number(random)}, RandomLease(random)};
}

Seal RandomSeal(Random& random) {
  Seal seal;
  seal.id = RandomSealId(random);
  seal.contributors = Several<Contribution>(random, 4, [&] { return RandomContribution(random); });
  for (size_t i = 0; i < seal.contributors.size(); ++i) seal.weights.push_back(random.Uniform());
  seal.learning_rate = Real(random);
  seal.clip_norm = Real(random);
  seal.ledger_after = {Number(random), RandomRanges(random, 5)};
  seal.previous = {Number(random)};
  seal.digest = SealDigest(seal);
  return seal;
}

ShardMap RandomMap(Random& random) {
  ShardMap map{{Number(random)}, Number(random), 64 * (1 + random.Below(limits::kMaxChunkBytes / 64)), {}, {}};
  const auto servers = static_cast<uint32_t>(1 + random.Below(5));
  for (uint32_t i = 0; i < servers; ++i) map.servers.push_back({{i}, {Number(random)}, RandomText(random, 40)});
  const uint64_t replication = 1 + random.Below(servers);
  for (size_t chunks = random.Below(8); chunks > 0; --chunks) {
    std::vector<uint32_t> holders;
    const auto primary = static_cast<uint32_t>(random.Below(servers));
    for (uint32_t k = 0; k < replication; ++k) holders.push_back((primary + k) % servers);
    map.replicas.push_back(std::move(holders));
  }
  return map;
}

JobSpec RandomJob(Random& random) {
  JobSpec job;
  job.name = "j" + RandomText(random, 255);
  job.mode = Pick(random, Mode::kAsync);
  OptimizerOptions& o = job.optimizer;
  o = {Pick(random, OptimizerKind::kAdamW),
       Real(random),
       Real(random),
       Real(random),
       false,
       random.Uniform(),
       random.Uniform(),
       Real(random),
       Real(random)};
  if (Coin(random)) {
    o.nesterov = true;
    o.momentum = 0.5 + random.Uniform();
    o.dampening = 0;
  }
  job.schedule = {Pick(random, ScheduleKind::kWsd),
                  Number(random),
                  Number(random),
                  Number(random),
                  Real(random),
                  Real(random),
                  Number(random)};
  job.clip_norm = Real(random);
  job.batch = 1 + random.Below(uint64_t{1} << 32);
  job.epochs = 1 + random.Below(1000);
  job.max_steps = Number(random);
  job.seed = Number(random);
  job.servers = static_cast<uint32_t>(1 + random.Below(limits::kMaxServers));
  job.replication = static_cast<uint32_t>(random.Below(std::min<uint64_t>(job.servers, limits::kMaxReplication) + 1));
  job.min_workers = static_cast<uint32_t>(1 + random.Below(limits::kMaxMembers));
  job.max_workers = static_cast<uint32_t>(job.min_workers + random.Below(limits::kMaxMembers - job.min_workers + 1));
  job.chunk_bytes = 64 * (1 + random.Below(limits::kMaxChunkBytes / 64));
  job.quorum = 1 - random.Uniform();
  job.grace = Duration(random.Between(0, 1'000'000'000'000));
  job.staleness = random.Below(limits::kMaxStaleness + 1);
  job.staleness_power = Real(random);
  job.timeout = Duration(random.Between(500'000'000, 86'400'000'000'000));
  job.task = RandomText(random, 300);
  job.verify_replicas = random.Below(100);
  const Status valid = Validate(job);
  EVERSTEP_CHECK(valid.ok(), valid.message());
  return job;
}

Envelope RandomEnvelope(Random& random, size_t kind) {
  Envelope envelope{{Number(random)}, {Number(random)}, {}};
  Emplace(kind, &envelope.body, std::make_index_sequence<kMessageKinds>());
  std::visit([&](auto& m) { Fill(random, &m); }, envelope.body);
  return envelope;
}

}  // namespace everstep::test
