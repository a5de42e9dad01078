#include "worker/worker.h"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <tuple>

#include "base/bytes.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/permutation.h"
#include "schema/codec.h"
#include "schema/kept_contribution.h"
#include "transport/registry.h"
#include "transport/shared_memory.h"
#include "worker/session.h"
#include "worker/slicer.h"

namespace everstep {
namespace internal {
namespace {

// Gradients of a step that is over, kept for the next one.
constexpr size_t kIdleBytes = size_t{1} << 40;

std::string DefaultName() {
  static std::atomic<int> count{0};
  char host[128] = "host";
  gethostname(host, sizeof host - 1);
  const int nth = ++count;
  return std::string(host) + "-" + std::to_string(getpid()) + (nth > 1 ? "-" + std::to_string(nth) : "");
}

}  // namespace

// Driver of a Session: links and timers live on the loop's thread; the user's thread waits for steps, moves bytes
// between the model and buffers, and posts the rest.
class WorkerImpl {
 public:
  WorkerImpl(WorkerOptions options, Model& model)
      : options_(std::move(options)),
        model_(model),
        pool_(kIdleBytes, options_.shared_memory ? transport::SharedAllocator() : BufferPool::Allocator()) {}
  ~WorkerImpl();

  Status Start();
  std::optional<Step> NextStep();
  Status Commit(uint64_t serial, std::vector<Metric> metrics);
  void Abandon(uint64_t serial);
  Status status() const;
  bool finished() const { return finished_; }
  bool evaluate() const { return evaluate_; }
  void ReportEvaluation(std::vector<Metric> metrics);
  void RequestLeave();
  void KeepAlive();
  const JobSpec& job() const { return *job_; }
  Worker::Stats stats();

 private:
  class Link;
  using Lock = std::unique_lock<std::mutex>;

  // Loop thread.
  void Pump();
  void OpenLink(const Session::Opening& opening);
  void OnFrame(PeerId peer, transport::Received received);
  void OnClosed(PeerId peer, const Status& why);
  void Tell();
  void ArmTimer();

  // User's thread.
  enum class Load { kTraining, kFinal };
  void LoadParameters(std::map<ChunkId, Buffer> parameters, Load load);
  bool Share(size_t tensor, const std::map<ChunkId, Buffer>& parameters);
  void Initialise(uint64_t serial);
  void OnGradient(size_t tensor);
  Buffer ReadChunk(ChunkId chunk, bool values);
  void PushChunk(uint64_t serial, ChunkId chunk, Buffer bytes);
  Status Keep(bool values);
  Step MakeStep(const Session::StepWork& work);

  const WorkerOptions options_;
  Model& model_;
  std::shared_ptr<const ChunkLayout> layout_;
  std::unique_ptr<Slicer> slicer_;
  std::mutex slicer_mutex_;                 // hooks may fire on several threads
  std::atomic<uint64_t> hooked_serial_{0};  // step whose gradients are being produced; 0: none
  BufferPool pool_;
  Duration waiting_{0};
  Duration copying_{0};
  Version base_;   // of the work in hand
  LeaseId lease_;  // ... and its lease

  // Shared between the two threads.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool user_waits_ = false;
  std::optional<Session::StepWork> work_;
  std::optional<JobSpec> job_;
  Status failure_;
  bool ended_ = false;  // NextStep has nothing more to give
  bool left_ = false;
  std::atomic<bool> finished_{false};
  std::atomic<bool> evaluate_{false};
  std::atomic<bool> leave_requested_{false};
  std::map<ChunkId, Buffer> final_;

  // Loop thread only.
  std::unique_ptr<Session> session_;
  std::unique_ptr<transport::Context> context_;
  std::map<PeerId, std::unique_ptr<Link>> links_;
  std::vector<std::unique_ptr<Link>> retired_;
  std::optional<Loop::TimerId> timer_;
  bool pumping_ = false;

  LoopThread io_;  // last: ends first
};

class WorkerImpl::Link : public transport::ConnectionHandler {
 public:
  Link(WorkerImpl& worker, PeerId peer) : worker_(worker), peer_(peer) {}
  ~Link() override {
    if (connection) connection->Close();
  }
  std::shared_ptr<transport::Connection> connection;

 private:
  void OnFrame(transport::Connection&, transport::Received received) override {
    worker_.OnFrame(peer_, std::move(received));
  }
  void OnClosed(transport::Connection&, const Status& why) override {
    connection.reset();
    worker_.OnClosed(peer_, why);
  }
  WorkerImpl& worker_;
  const PeerId peer_;
};

// ---- Loop thread ----

void WorkerImpl::OpenLink(const Session::Opening& opening) {
  auto& link = links_[opening.peer] = std::make_unique<Link>(*this, opening.peer);
  auto connected = context_->Connect(opening.address, link.get(), Session::kConnectDeadline);
  if (connected.ok()) {
    link->connection = *connected;
    return;
  }
  io_.loop().Post([this, peer = opening.peer, why = connected.status()] { OnClosed(peer, why); });
}

void WorkerImpl::OnFrame(PeerId peer, transport::Received received) {
  const Result<Envelope> envelope = Decode(received.header);
  if (!envelope.ok()) {
    log::Warning("from a server: " + envelope.status().ToString());
    if (auto node = links_.extract(peer); !node.empty()) retired_.push_back(std::move(node.mapped()));
    io_.loop().Post([this, peer, why = envelope.status()] { OnClosed(peer, why); });
    return;
  }
  session_->OnMessage(SteadyNow(), peer, *envelope, std::move(received.payload));
  Pump();
}

void WorkerImpl::OnClosed(PeerId peer, const Status& why) {
  if (auto node = links_.extract(peer); !node.empty()) retired_.push_back(std::move(node.mapped()));
  session_->OnClosed(SteadyNow(), peer, why);
  Pump();
}

void WorkerImpl::Pump() {
  if (pumping_ || !session_) return;
  pumping_ = true;
  for (const Session::Opening& opening : session_->TakeOpenings()) OpenLink(opening);
  for (Outgoing& message : session_->TakeOutbox()) {
    const auto it = links_.find(message.to);
    if (it == links_.end() || !it->second->connection) continue;
    const Status sent = it->second->connection->Send({Encode(message.envelope), std::move(message.payload)});
    if (!sent.ok()) log::Debug("to " + it->second->connection->peer() + ": " + sent.ToString());
  }
  for (PeerId peer : session_->TakeClosings()) {
    if (auto node = links_.extract(peer); !node.empty()) retired_.push_back(std::move(node.mapped()));
  }
  if (!retired_.empty()) io_.loop().Post([this] { retired_.clear(); });
  pumping_ = false;
  Tell();
  ArmTimer();
}

// Shows the user's thread what is new.
void WorkerImpl::Tell() {
  Lock lock(mutex_);
  const auto seen = [this] { return std::tuple(job_.has_value(), work_.has_value(), ended_, left_, failure_.ok()); };
  const auto before = seen();
  if (session_->job() && !job_) job_ = session_->job();
  if (session_->failure() && failure_.ok()) {
    failure_ = *session_->failure();
    ended_ = true;
  }
  if (session_->left()) {
    left_ = ended_ = true;
    if (!finished_ && failure_.ok()) failure_ = {Code::kCancelled, "left on request"};
  }
  if (session_->finished() && !finished_) {
    final_ = session_->TakeFinal();
    finished_ = ended_ = true;
  }
  if (session_->evaluate()) evaluate_ = true;
  if (user_waits_ && !work_ && !ended_) work_ = session_->TakeStep(SteadyNow());
  const bool news = seen() != before;  // most frames bring none, and waking somebody costs a switch
  lock.unlock();
  if (news) changed_.notify_all();
}

void WorkerImpl::ArmTimer() {
  if (timer_) io_.loop().Cancel(*timer_);
  timer_ = io_.loop().At(session_->NextDeadline(), [this] {
    timer_.reset();
    session_->OnTick(SteadyNow());
    Pump();
  });
}

// ---- User's thread ----

Status WorkerImpl::Start() {
  if (options_.servers.empty())
    return {Code::kInvalidArgument, "no server's address was given; e.g. .servers = {\"tcp://127.0.0.1:7070\"}"};
  for (const std::string& server : options_.servers) EVERSTEP_RETURN_IF_ERROR(transport::ParseAddress(server).status());
  EVERSTEP_RETURN_IF_ERROR(Validate(model_.spec()));
  Session::Options session;
  session.servers = options_.servers;
  session.job_name = options_.job;
  session.name = options_.name.empty() ? DefaultName() : options_.name;
  session.spec = model_.spec();
  session.dataset_size = options_.dataset_size;
  session.timeout = options_.timeout;
  session.seed = EntropyU64();
  io_.Call([&] {
    context_ = transport::MakeContext(io_.loop(), {options_.shared_memory});
    session_ = std::make_unique<Session>(SteadyNow(), std::move(session));
    session_->OnTick(SteadyNow());
    Pump();
  });
  Lock lock(mutex_);
  changed_.wait(lock, [&] { return job_ || ended_; });
  if (ended_) return failure_;
  lock.unlock();
  if (options_.overlap) model_.OnGradient([this](size_t tensor) { OnGradient(tensor); });
  return Status::Ok();
}

WorkerImpl::~WorkerImpl() {
  if (options_.overlap) model_.OnGradient({});
  if (session_) {
    io_.loop().Post([this] {
      if (!session_->failure()) session_->Leave(SteadyNow(), finished_ ? "the job is complete" : "left on request");
      Pump();
    });
    Lock lock(mutex_);
    changed_.wait_for(lock, job_ ? job_->lease() * 2 : std::chrono::seconds(1),
                      [&] { return left_ || !failure_.ok(); });
  }
  io_.Call([&] {
    if (timer_) io_.loop().Cancel(*timer_);
    links_.clear();
    retired_.clear();
    context_.reset();
    session_.reset();
  });
}

std::optional<Step> WorkerImpl::NextStep() {
  const Time began = SteadyNow();
  hooked_serial_ = 0;
  while (true) {
    io_.loop().Post([this] {
      // Set here and not by the waiting thread: when everything for the step is there already, no later event would
      // look at the flag again before the next tick.
      {
        Lock lock(mutex_);
        user_waits_ = true;
      }
      if (leave_requested_) session_->Leave(SteadyNow(), "left on request");
      session_->NoteProgress(Phase::kWaiting);
      Pump();
    });
    Lock lock(mutex_);
    changed_.wait(lock, [&] { return work_ || ended_; });
    user_waits_ = false;
    if (!work_) {
      auto parameters = std::exchange(final_, {});
      lock.unlock();
      LoadParameters(std::move(parameters), Load::kFinal);
      waiting_ += SteadyNow() - began;
      return std::nullopt;
    }
    Session::StepWork work = std::move(*work_);
    work_.reset();
    lock.unlock();
    if (work.fresh) LoadParameters(std::move(work.parameters), Load::kTraining);
    base_ = work.version;
    lease_ = work.lease.id;
    if (work.initialise) {
      Initialise(work.serial);
      continue;
    }
    waiting_ += SteadyNow() - began;
    return MakeStep(work);
  }
}

void WorkerImpl::LoadParameters(std::map<ChunkId, Buffer> parameters, Load load) {
  if (parameters.empty()) return;
  const Time began = SteadyNow();
  if (!layout_) layout_ = ChunkLayout::Make(model_.spec(), job_->chunk_bytes);
  std::vector<bool> shared(layout_->spec().tensors.size());
  for (size_t tensor = 0; load == Load::kTraining && tensor < shared.size(); ++tensor)
    shared[tensor] = Share(tensor, parameters);
  for (const auto& [chunk, bytes] : parameters) {
    for (const Segment& s : layout_->chunk(chunk).segments) {
      if (!shared[s.tensor])
        model_.WriteValues(s.tensor, s.tensor_offset, bytes.span().subspan(s.chunk_offset, s.bytes));
    }
  }
  copying_ += SteadyNow() - began;
}

// Offers the tensor's values to the model where they lie, when the parts that came lie end to end.
bool WorkerImpl::Share(size_t tensor, const std::map<ChunkId, Buffer>& parameters) {
  const TensorSpec& spec = layout_->spec().tensors[tensor];
  if (spec.role != Role::kTrainable || spec.bytes() == 0) return false;
  const std::byte* begin = nullptr;
  auto parts = std::make_shared<std::vector<Buffer>>();
  for (const ChunkId id : layout_->chunks_of(tensor)) {
    const auto part = parameters.find(id);
    if (part == parameters.end()) return false;
    for (const Segment& s : layout_->chunk(id).segments) {
      if (s.tensor != tensor) continue;
      const std::byte* const at = part->second.data() + s.chunk_offset;
      if (begin == nullptr) begin = at;
      if (at != begin + s.tensor_offset) return false;
    }
    parts->push_back(part->second);
  }
  return model_.ShareValues(tensor, Buffer(std::move(parts), begin, spec.bytes()));
}

// The first worker of a job offers its model's values; they go the way of every contribution.
void WorkerImpl::Initialise(uint64_t serial) {
  if (!layout_) layout_ = ChunkLayout::Make(model_.spec(), job_->chunk_bytes);
  if (const Status kept = Keep(true); !kept.ok()) log::Error(kept.message());
  for (uint32_t i = 0; i < layout_->size(); ++i) PushChunk(serial, {i}, ReadChunk({i}, true));
  io_.loop().Post([this, serial] {
    (void)session_->CommitStep(SteadyNow(), serial, {});
    Pump();
  });
}

struct StepData {
  uint64_t serial = 0;
  uint64_t number = 0;
  uint64_t epoch = 0;
  std::vector<uint64_t> samples;
};

Buffer WorkerImpl::ReadChunk(ChunkId id, bool values) {
  const Chunk& chunk = layout_->chunk(id);
  if (const Segment& s = chunk.segments.front(); !values && s.role == Role::kTrainable && s.bytes == chunk.bytes) {
    if (std::optional<Buffer> lent = model_.ShareGradient(s.tensor, s.tensor_offset, s.bytes)) return *std::move(lent);
  }
  MutableBuffer out = pool_.Take(chunk.bytes);
  uint64_t at = 0;
  for (const Segment& s : chunk.segments) {
    std::memset(out.data() + at, 0, s.chunk_offset - at);  // padding between tensors
    const std::span<std::byte> bytes(out.data() + s.chunk_offset, s.bytes);
    if (values || s.role == Role::kBuffer) {
      model_.ReadValues(s.tensor, s.tensor_offset, bytes);
    } else {
      model_.ReadGradient(s.tensor, s.tensor_offset, bytes);
    }
    at = s.chunk_offset + s.bytes;
  }
  return std::move(out).Freeze();
}

void WorkerImpl::PushChunk(uint64_t serial, ChunkId chunk, Buffer bytes) {
  io_.loop().Post([this, serial, chunk, bytes = std::move(bytes)]() mutable {
    session_->PushChunk(SteadyNow(), serial, chunk, std::move(bytes));
    Pump();
  });
}

void WorkerImpl::OnGradient(size_t tensor) {
  const uint64_t serial = hooked_serial_;
  if (serial == 0) return;
  std::lock_guard lock(slicer_mutex_);
  for (ChunkId chunk : slicer_->Ready(tensor)) PushChunk(serial, chunk, ReadChunk(chunk, false));
}

Status WorkerImpl::Commit(uint64_t serial, std::vector<Metric> metrics) {
  hooked_serial_ = 0;
  if (Status once = model_.step_status(); !once.ok()) {
    Abandon(serial);
    return once;
  }
  if (Status kept = Keep(false); !kept.ok()) {
    Abandon(serial);
    return kept;
  }
  {
    std::lock_guard lock(slicer_mutex_);
    for (ChunkId chunk : slicer_->TakeRest()) PushChunk(serial, chunk, ReadChunk(chunk, false));
  }
  Status committed;
  io_.Call([&] {
    committed = session_->CommitStep(SteadyNow(), serial, std::move(metrics));
    Pump();
  });
  return committed;
}

// Before the contribution can be whole: it may be committed before this process does anything more.
Status WorkerImpl::Keep(bool values) {
  if (options_.keep_contributions.empty()) return Status::Ok();
  WorkerId life;
  io_.Call([&] { life = session_->id(); });
  MutableBuffer all(model_.spec().bytes());
  uint64_t at = 0;
  for (size_t i = 0; i < model_.spec().tensors.size(); ++i) {
    const TensorSpec& tensor = model_.spec().tensors[i];
    const std::span<std::byte> bytes(all.data() + at, tensor.bytes());
    if (values || tensor.role == Role::kBuffer) {
      model_.ReadValues(i, 0, bytes);
    } else {
      model_.ReadGradient(i, 0, bytes);
    }
    at += tensor.bytes();
  }
  return WriteKept(options_.keep_contributions + "/" + KeptName(life, base_, lease_), {all.data(), all.size()});
}

void WorkerImpl::Abandon(uint64_t serial) {
  hooked_serial_ = 0;
  io_.loop().Post([this, serial] {
    session_->AbandonStep(SteadyNow(), serial);
    Pump();
  });
}

Status WorkerImpl::status() const {
  Lock lock(mutex_);
  return failure_;
}

void WorkerImpl::ReportEvaluation(std::vector<Metric> metrics) {
  io_.Call([&] {
    session_->ReportEvaluation(std::move(metrics));
    Pump();
  });
}

void WorkerImpl::RequestLeave() {
  leave_requested_ = true;
  io_.loop().Post([this] {
    Lock lock(mutex_);
    const bool waits = user_waits_ && !work_;
    lock.unlock();
    if (waits && session_) session_->Leave(SteadyNow(), "left on request");
    if (session_) Pump();
  });
}

void WorkerImpl::KeepAlive() {
  io_.loop().Post([this] { session_->NoteProgress(finished_ ? Phase::kEvaluating : Phase::kComputing); });
}

Worker::Stats WorkerImpl::stats() {
  Worker::Stats stats;
  io_.Call([&] {
    const Session::Stats& s = session_->stats();
    const transport::Counters c = context_->counters();
    stats = {s.lives,      s.contributed,    s.dropped, s.nonfinite, s.links,
             c.bytes_sent, c.bytes_received, waiting_,  copying_};
  });
  return stats;
}

}  // namespace internal

// ---- Step ----

struct Step::State {
  internal::WorkerImpl* worker = nullptr;
  internal::StepData data;
  bool committed = false;
};

Step internal::WorkerImpl::MakeStep(const Session::StepWork& work) {
  if (!layout_) layout_ = ChunkLayout::Make(model_.spec(), job_->chunk_bytes);
  if (!slicer_) slicer_ = std::make_unique<Slicer>(layout_);
  slicer_->Reset();
  model_.ClearGradients();
  auto state = std::make_unique<Step::State>();
  state->worker = this;
  state->data = {work.serial, work.version.value, work.lease.epoch, {}};
  if (options_.dataset_size > 0) {
    const Permutation order(job_->seed, work.lease.epoch, options_.dataset_size);
    for (const SampleRange& range : work.lease.ranges) {
      for (uint64_t position = range.begin; position < range.end; ++position)
        state->data.samples.push_back(order.At(position));
    }
  }
  hooked_serial_ = work.serial;
  return Step(std::move(state));
}

Step::Step(std::unique_ptr<State> state) : state_(std::move(state)) {}
Step::Step(Step&&) noexcept = default;

Step& Step::operator=(Step&& other) noexcept {
  if (this != &other) {
    Step old(std::move(*this));
    state_ = std::move(other.state_);
  }
  return *this;
}

Step::~Step() {
  if (state_ && !state_->committed) state_->worker->Abandon(state_->data.serial);
}

uint64_t Step::number() const { return state_->data.number; }
uint64_t Step::epoch() const { return state_->data.epoch; }
const std::vector<uint64_t>& Step::samples() const { return state_->data.samples; }

Status Step::Commit(std::vector<Metric> metrics) {
  EVERSTEP_CHECK(state_ && !state_->committed, "a step is committed once");
  state_->committed = true;
  return state_->worker->Commit(state_->data.serial, std::move(metrics));
}

// ---- Worker ----

Worker::Worker(std::unique_ptr<internal::WorkerImpl> impl) : impl_(std::move(impl)) {}
Worker::Worker(Worker&&) noexcept = default;
Worker& Worker::operator=(Worker&&) noexcept = default;
Worker::~Worker() = default;

Result<Worker> Worker::Join(WorkerOptions options, Model& model) {
  auto impl = std::make_unique<internal::WorkerImpl>(std::move(options), model);
  EVERSTEP_RETURN_IF_ERROR(impl->Start());
  return Worker(std::move(impl));
}

std::optional<Step> Worker::NextStep() { return impl_->NextStep(); }
Status Worker::status() const { return impl_->status(); }
bool Worker::finished() const { return impl_->finished(); }
bool Worker::evaluate() const { return impl_->evaluate(); }
void Worker::ReportEvaluation(std::vector<Metric> metrics) { impl_->ReportEvaluation(std::move(metrics)); }
void Worker::RequestLeave() { impl_->RequestLeave(); }
void Worker::KeepAlive() { impl_->KeepAlive(); }
const JobSpec& Worker::job() const { return impl_->job(); }
Worker::Stats Worker::stats() const { return impl_->stats(); }

}  // namespace everstep
