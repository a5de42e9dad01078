#include "transport/shm/shm_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/limits.h"

namespace everstep::transport::shm {
namespace {

constexpr size_t kReadBytes = 64 << 10;
constexpr size_t kMaxIov = 64;
// Longer runs are not gathered with others.
constexpr size_t kSmallBytes = 4096;
constexpr size_t kMaxFds = 8;  // in one message; more than a sender ever passes at once
// Descriptors that came and whose records have not been looked at yet; a sender that goes on is broken.
constexpr size_t kMaxWaitingFds = 1024;

}  // namespace

Socket::Socket(int fd) : fd_(fd), in_(kReadBytes) {
  (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  ucred credentials = {};
  socklen_t size = sizeof credentials;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0) peer_ = credentials.pid;
}

Socket::~Socket() {
  for (int fd : fds_) close(fd);
  close(fd_);
}

// ---- Out ----

void Socket::Put(const Record& record, std::string_view text, Buffer payload,
                 std::shared_ptr<const SharedSegment> with) {
  const std::string_view bytes(reinterpret_cast<const char*>(&record), sizeof record);
  const bool joins = !out_.empty() && out_.back().large.empty() && !out_.back().with && !with;
  if (!joins || out_.back().small.size() >= kReadBytes) out_.push_back({{}, {}, std::move(with)});
  out_.back().small.append(bytes);
  const auto add = [&](std::string_view run, Buffer whole) {
    if (run.empty()) return;
    if (run.size() <= kSmallBytes && out_.back().large.empty() && !out_.back().with) {
      out_.back().small.append(run);
    } else if (run.size() <= kSmallBytes) {
      out_.push_back({std::string(run), {}, nullptr});
    } else {
      out_.push_back({{}, whole.empty() ? Buffer::Copy(run) : std::move(whole), nullptr});
    }
  };
  add(text, {});
  add(payload.text(), payload);
}

bool Socket::Flush() {
  while (!out_.empty()) {
    iovec iov[kMaxIov];
    size_t count = 0;
    const bool alone = out_.front().with != nullptr && out_done_ == 0;
    for (const Piece& piece : out_) {
      if (count == kMaxIov || (count > 0 && (alone || piece.with))) break;
      const size_t done = count == 0 ? out_done_ : 0;
      iov[count++] = {const_cast<char*>(static_cast<const char*>(piece.data()) + done), piece.size() - done};
    }
    msghdr message = {};
    message.msg_iov = iov;
    message.msg_iovlen = count;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (alone) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* const header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int));
      const int fd = out_.front().with->fd();
      std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
    }
    const ssize_t sent = sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ETOOMANYREFS;
    }
    out_done_ += static_cast<size_t>(sent);
    while (!out_.empty() && out_done_ >= out_.front().size()) {
      out_done_ -= out_.front().size();
      out_.pop_front();
    }
  }
  return true;
}

// ---- In ----

ssize_t Socket::Receive(void* data, size_t size) {
  iovec iov{data, size};
  msghdr message = {};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))];
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got = 0;
  do {
    got = recvmsg(fd_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return got;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      fds_.push_back(fd);
    }
  }
  return got;
}

Socket::Read Socket::Fill() {
  if (in_begin_ == in_end_) in_begin_ = in_end_ = 0;
  // A long payload goes where it belongs, without a stop in between.
  Body* const body = record_ && text_.whole() && !payload_.whole() ? &payload_ : nullptr;
  const bool direct = body != nullptr && in_begin_ == in_end_ && body->bytes.size() - body->have >= kReadBytes;
  if (!direct && in_end_ == in_.size()) {
    std::memmove(in_.data(), in_.data() + in_begin_, in_end_ - in_begin_);
    in_end_ -= in_begin_;
    in_begin_ = 0;
  }
  std::byte* const to = direct ? body->bytes.data() + body->have : in_.data() + in_end_;
  const size_t room = direct ? body->bytes.size() - body->have : in_.size() - in_end_;
  const ssize_t got = Receive(to, room);
  if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? Read::kNothing : Read::kEnd;
  if (got == 0 || fds_.size() > kMaxWaitingFds) return Read::kEnd;
  (direct ? body->have : in_end_) += static_cast<size_t>(got);
  return Read::kSome;
}

void Socket::TakeInto(Body& body) {
  const size_t size = std::min(body.bytes.size() - body.have, in_end_ - in_begin_);
  if (size > 0) std::memcpy(body.bytes.data() + body.have, in_.data() + in_begin_, size);
  body.have += size;
  in_begin_ += size;
}

Status Socket::Check(const Record& record) const {
  const auto corrupt = [](const char* what) { return Status(Code::kCorrupt, what); };
  switch (record.kind) {
    case Kind::kInline:
    case Kind::kShared:
      if (record.text_bytes == 0 || record.text_bytes > limits::kMaxHeaderBytes)
        return corrupt("sent a frame whose header has an impossible size");
      if ((record.kind == Kind::kInline ? record.a : record.c) > limits::kMaxPayloadBytes)
        return corrupt("sent a payload over its limit");
      return Status::Ok();
    case Kind::kRelease:
      if (record.text_bytes % 8 != 0 || record.text_bytes > limits::kMaxQueuedFrames * 8)
        return corrupt("released a strange number of payloads");
      return Status::Ok();
    case Kind::kClose: return record.text_bytes > kMaxReasonBytes ? corrupt("sent a long farewell") : Status::Ok();
    case Kind::kHello:
    case Kind::kWelcome:
    case Kind::kSegment:
    case Kind::kForget:
    case Kind::kCredit: return record.text_bytes != 0 ? corrupt("sent bytes where there are none") : Status::Ok();
  }
  return corrupt("sent a message of an unknown kind");
}

Result<bool> Socket::Next(Inbound& inbound) {
  if (!record_) {
    if (in_end_ - in_begin_ < sizeof(Record)) return false;
    Record record;
    std::memcpy(&record, in_.data() + in_begin_, sizeof record);
    EVERSTEP_RETURN_IF_ERROR(Check(record));
    in_begin_ += sizeof record;
    record_ = record;
    text_ = {MutableBuffer(record.text_bytes), 0};
    payload_ = {MutableBuffer(record.kind == Kind::kInline ? static_cast<size_t>(record.a) : 0), 0};
  }
  TakeInto(text_);
  if (!text_.whole()) return false;
  TakeInto(payload_);
  if (!payload_.whole()) return false;
  inbound = {*record_, std::move(text_.bytes).Freeze(), std::move(payload_.bytes).Freeze(), -1};
  record_.reset();
  text_ = {};
  payload_ = {};
  if (inbound.record.kind == Kind::kSegment) {
    if (fds_.empty()) return Status(Code::kCorrupt, "announced memory without its descriptor");
    inbound.fd = fds_.front();
    fds_.pop_front();
  }
  return true;
}

}  // namespace everstep::transport::shm
