#include "transport/shm/shm_link.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "base/check.h"
#include "base/log.h"
#include "transport/shm/shm_orphans.h"

namespace everstep::transport::shm {
namespace {

// Reads of one connection in one round of the loop, so that the others get their turn.
constexpr int kReadsPerRound = 16;

// Bytes that one connection copies in one round, for the same reason.
constexpr size_t kCopiesPerRound = 4u << 20;

bool Aligned(const Buffer& payload) { return reinterpret_cast<uintptr_t>(payload.data()) % 8 == 0; }

}  // namespace

// The peer's payloads that are read here. Told by whichever thread drops the last Buffer; outlives the link.
class Link::Releases : public std::enable_shared_from_this<Link::Releases> {
 public:
  Releases(Loop& loop, std::weak_ptr<Link> link) : loop_(&loop), link_(std::move(link)) {}

  // A buffer over `bytes` of `segment`, which is payload `number` of the peer.
  Buffer Lend(std::shared_ptr<const SharedSegment> segment, uint64_t number, size_t offset, size_t bytes) {
    {
      std::lock_guard lock(mutex_);
      ++lent_;
    }
    const std::byte* const data = segment->data() + offset;
    std::shared_ptr<const void> owner(
        data, [self = shared_from_this(), segment = std::move(segment), number](const void*) { self->Return(number); });
    return {std::move(owner), data, bytes};
  }

  std::vector<uint64_t> Take() {
    std::lock_guard lock(mutex_);
    posted_ = false;
    return std::exchange(returned_, {});
  }
  bool none_lent() {
    std::lock_guard lock(mutex_);
    return lent_ == 0 && returned_.empty();
  }
  void Detach() {
    std::lock_guard lock(mutex_);
    loop_ = nullptr;
  }

 private:
  void Return(uint64_t number) {
    std::lock_guard lock(mutex_);
    --lent_;
    if (loop_ == nullptr) return;
    returned_.push_back(number);
    if (std::exchange(posted_, true)) return;
    loop_->Post([link = link_] {
      if (const auto alive = link.lock(); alive && alive->host_ != nullptr) alive->host_->Wake(*alive);
    });
  }

  std::mutex mutex_;
  Loop* loop_;  // null once the socket is closed
  const std::weak_ptr<Link> link_;
  size_t lent_ = 0;
  std::vector<uint64_t> returned_;
  bool posted_ = false;
};

Link::Link(LinkHost& host, Side side, std::string peer, const Options& options)
    : QueuedConnection(host.loop(), std::move(peer), options), host_(&host), side_(side) {}

void Link::Attach(int fd) {
  socket_ = std::make_unique<Socket>(fd);
  releases_ = std::make_shared<Releases>(loop_, weak_from_this());
  loop_.Watch(fd, [this] { Readable(); });
  if (side_ == Side::kDialer) socket_->Put({Kind::kHello, 0, kMagic, kVersion, window()}, {});
  Wake();
}

// ---- Out ----

void Link::GiveUp() {
  over_ = true;
  EndSocket();
}

void Link::Flush() {
  if (!socket_) return;
  FlushReleases();
  if (open_ && !told_) {
    if (credit_to_tell_ > 0) socket_->Put({Kind::kCredit, 0, std::exchange(credit_to_tell_, 0)}, {});
    const bool more = FlushFrames();
    if (more) Wake();
    // What still waits for credit is not sent: the caller has no use for an answer.
    if (closing_ && !more) PutClose(Status::Ok());
  }
  if (!socket_->Flush()) return;  // the reading side finds out why, after what has still come
  const bool full = !socket_->flushed();
  if (full != writing_) {
    writing_ = full;
    if (full) {
      loop_.WatchWritable(socket_->fd(), [this] { Wake(); });
    } else {
      loop_.UnwatchWritable(socket_->fd());
    }
  }
  // The farewell has left. What remains is the other end's word on the memory that it still reads.
  if (closing_ && told_ && !full) StopCloseTimer();
  MaybeEnd();
}

bool Link::FlushFrames() {
  size_t copied = 0;
  while (!queue_.empty()) {
    if (copied >= kCopiesPerRound) return true;
    if (!send_window_.Admits(queue_.front().payload.size()) || sent_.size() >= limits::kMaxQueuedFrames) return false;
    Frame frame = queue_.front();
    SentFront(host_->counters());
    copied += PutFrame(std::move(frame));
  }
  return false;
}

size_t Link::PutFrame(Frame frame) {
  const std::string_view header = frame.header.text();
  const auto header_bytes = static_cast<uint32_t>(header.size());
  const size_t bytes = frame.payload.size();
  std::optional<SharedPlace> place;
  size_t copied = 0;
  if (bytes > kInlineBytes) {
    if (Aligned(frame.payload)) place = FindShared(frame.payload.span());
    if (!place) {
      MutableBuffer copy = host_->pool().Take(bytes);
      std::memcpy(copy.data(), frame.payload.data(), bytes);
      frame.payload = std::move(copy).Freeze();
      place = FindShared(frame.payload.span());
      copied = bytes;
    }
  }
  if (!place) {
    socket_->Put({Kind::kInline, header_bytes, bytes}, header, std::move(frame.payload));
    return copied;
  }
  const uint64_t segment = place->segment->id();
  if (!announced_.contains(segment)) {
    std::erase_if(announced_, [&](const auto& entry) {
      if (!entry.second.expired()) return false;
      socket_->Put({Kind::kForget, 0, entry.first}, {});
      return true;
    });
    announced_[segment] = place->segment;
    socket_->Put({Kind::kSegment, 0, segment, place->segment->size()}, {}, {}, place->segment);
  }
  socket_->Put({Kind::kShared, header_bytes, segment, place->offset, bytes}, header);
  sent_.emplace(next_shared_++, std::move(frame.payload));
  return copied;
}

void Link::FlushReleases() {
  const std::vector<uint64_t> numbers = releases_->Take();
  for (size_t done = 0; done < numbers.size(); done += limits::kMaxQueuedFrames) {
    const size_t count = std::min(limits::kMaxQueuedFrames, numbers.size() - done);
    const auto bytes = static_cast<uint32_t>(count * sizeof(uint64_t));
    socket_->Put({Kind::kRelease, bytes}, {reinterpret_cast<const char*>(numbers.data() + done), bytes});
  }
}

void Link::PutClose(const Status& why) {
  if (!socket_ || told_) return;
  told_ = true;
  over_ = true;
  queue_.Clear();
  const std::string_view text = std::string_view(why.message()).substr(0, kMaxReasonBytes);
  socket_->Put({Kind::kClose, static_cast<uint32_t>(text.size()), static_cast<uint64_t>(why.code())}, text);
}

// ---- In ----

void Link::Readable() {
  const auto self = shared_from_this();
  for (int i = 0; i < kReadsPerRound && socket_; ++i) {
    const Socket::Read read = socket_->Fill();
    if (read == Socket::Read::kNothing) return;
    if (read == Socket::Read::kEnd) return Vanished();
    HandleAll();
  }
}

void Link::HandleAll() {
  while (socket_) {
    Socket::Inbound inbound;
    const Result<bool> next = socket_->Next(inbound);
    if (!next.ok()) return Break(next.status().message());
    if (!*next) return;
    Handle(std::move(inbound));
  }
}

void Link::Handle(Socket::Inbound inbound) {
  const Record& record = inbound.record;
  if (!open_ && record.kind != Kind::kClose) return HandleHandshake(record);
  switch (record.kind) {
    case Kind::kInline:
    case Kind::kShared: return HandleFrame(std::move(inbound));
    case Kind::kSegment: {
      auto opened = SharedSegment::Open(inbound.fd, record.b);
      if (!opened.ok()) return Break("offered " + opened.status().message());
      mapped_[record.a] = std::move(*opened);
      return;
    }
    case Kind::kForget: mapped_.erase(record.a); return;
    case Kind::kRelease: return HandleRelease(inbound.text);
    case Kind::kCredit:
      if (!TakeCredit(record.a)) Break("returned credit for bytes that it was not sent");
      return;
    case Kind::kClose: {
      told_ = true;
      const bool known = record.a <= static_cast<uint64_t>(Code::kInternal);
      Status why = record.a == 0 ? Status::Ok()
                                 : Status(known ? static_cast<Code>(record.a) : Code::kUnavailable,
                                          std::string(inbound.text.text()) + " (" + peer() + ")");
      return Finish(why);
    }
    case Kind::kHello:
    case Kind::kWelcome: return Break("shook hands twice");
  }
}

void Link::HandleHandshake(const Record& record) {
  const Kind expected = side_ == Side::kDialer ? Kind::kWelcome : Kind::kHello;
  if (record.kind != expected || record.a != kMagic) {
    return Fail({Code::kCorrupt, peer() + " does not speak Everstep's shared-memory protocol"});
  }
  if (record.b != kVersion) {
    const Status why(Code::kWrongVersion, "shared-memory protocol version " + std::to_string(record.b) + " there, " +
                                              std::to_string(kVersion) + " here; install the same Everstep on both");
    PutClose(why);
    return Fail(why);
  }
  Grant(record.c);
  if (side_ == Side::kListener) {
    socket_->Put({Kind::kWelcome, 0, kMagic, kVersion, window()}, {});
    open_ = true;
    host_->counters().accepted += 1;
    ConnectionHandler* const handler = host_->Accept(shared_from_this());
    if (handler == nullptr) {
      PutClose({Code::kUnavailable, "the listener refused the connection"});
      Wake();
      return;
    }
    if (!over_ && !closing_) handler_ = handler;
  }
  open_ = true;
  if (host_ != nullptr) Wake();
}

void Link::HandleFrame(Socket::Inbound inbound) {
  const Record& record = inbound.record;
  if (record.kind == Kind::kShared && !HandleSharedPayload(record, inbound.payload)) return;
  // While closing nobody listens; what arrives is dropped, and so released.
  if (over_ || closing_) return;
  if (!HandOut(std::move(inbound.text), std::move(inbound.payload), host_->counters()))
    Break("sent more than its credit allows");
}

bool Link::HandleSharedPayload(const Record& record, Buffer& payload) {
  const auto segment = mapped_.find(record.a);
  if (segment == mapped_.end() || record.b > segment->second->size() || record.c > segment->second->size() - record.b ||
      record.b % 8 != 0) {
    Break("named memory that it never offered");
    return false;
  }
  payload = releases_->Lend(segment->second, received_shared_++, record.b, record.c);
  return true;
}

void Link::HandleRelease(const Buffer& numbers) {
  for (size_t i = 0; i < numbers.size(); i += sizeof(uint64_t)) {
    uint64_t number = 0;
    std::memcpy(&number, numbers.data() + i, sizeof number);
    if (sent_.erase(number) == 0) return Break("released a payload twice");
  }
  if (!queue_.empty()) Wake();
  MaybeEnd();
}

// ---- Ends ----

void Link::Break(const std::string& what) {
  if (host_ == nullptr) return;
  if (open_) host_->counters().refused_frames += 1;
  const Status why(Code::kCorrupt, peer() + " broke the protocol: " + what + "; the connection is closed");
  log::Warning(why.message());
  PutClose({Code::kCorrupt, "the peer broke the protocol: " + what});
  Fail(why);
}

void Link::Fail(const Status& why) {
  const auto self = shared_from_this();
  if (socket_) (void)socket_->Flush();
  ConnectionHandler* const handler = std::exchange(handler_, nullptr);
  over_ = true;
  EndSocket();
  if (handler != nullptr) handler->OnClosed(*this, why);
}

void Link::Finish(const Status& why) {
  ConnectionHandler* const handler = std::exchange(handler_, nullptr);
  const bool first = !std::exchange(over_, true);
  queue_.Clear();
  Wake();
  if (first && handler != nullptr) handler->OnClosed(*this, why);
}

// The socket is at its end without a farewell, or after it.
void Link::Vanished() {
  ConnectionHandler* const handler = std::exchange(handler_, nullptr);
  const bool first = !std::exchange(over_, true);
  EndSocket();
  if (first && handler != nullptr)
    handler->OnClosed(*this, {Code::kUnavailable, peer() + (open_ ? " vanished" : " refused the connection")});
}

// The connection is over and neither end reads the other's memory any more.
void Link::MaybeEnd() {
  if (!over_ || !told_ || !socket_ || !socket_->flushed() || !sent_.empty() || !releases_->none_lent()) return;
  EndSocket();
}

void Link::EndSocket() {
  if (host_ == nullptr) return;
  Retire();
  std::vector<Buffer> unreleased;
  for (auto& [number, payload] : std::exchange(sent_, {})) unreleased.push_back(std::move(payload));
  if (!open_ && side_ == Side::kListener) host_->counters().failed_handshakes += 1;
  if (socket_) {
    releases_->Detach();
    KeepUntilDead(socket_->peer(), std::move(unreleased));
    loop_.Unwatch(socket_->fd());
    if (writing_) loop_.UnwatchWritable(socket_->fd());
    socket_.reset();
  }
  mapped_.clear();
  announced_.clear();
  std::exchange(host_, nullptr)->Ended(*this);
}

void Link::FinishNow() {
  const auto self = shared_from_this();
  if (!closing_) Close();
  const Time deadline = SteadyNow() + linger();
  while (socket_ && open_) {
    Flush();
    if (!socket_ || (told_ && socket_->flushed())) break;
    pollfd room{socket_->fd(), POLLOUT, 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - SteadyNow()).count();
    if (left <= 0 || poll(&room, 1, static_cast<int>(left)) <= 0 || (room.revents & (POLLERR | POLLHUP)) != 0) break;
  }
  over_ = true;
  EndSocket();
}

}  // namespace everstep::transport::shm
