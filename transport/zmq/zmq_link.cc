#include "transport/zmq/zmq_link.h"

#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "transport/connection_id.h"

namespace everstep::transport::zeromq {

Link::Link(LinkHost& host, std::string peer, std::string route, const Options& options)
    : host_(&host),
      loop_(host.loop()),
      peer_(std::move(peer)),
      route_(std::move(route)),
      id_(NextConnectionId()),
      window_(options.window_bytes),
      linger_(options.linger) {
  credit_return_.emplace(loop_, window_, [this] {
    credit_to_tell_ += credit_return_->TakeOwed();
    host_->Wake(*this);
  });
}

Link::~Link() = default;

Status Link::Send(Frame frame) {
  if (over_ || closing_) return {Code::kUnavailable, "the connection to " + peer_ + " is closed"};
  EVERSTEP_CHECK(loop_.InLoop(), "a connection belongs to its loop's thread");
  EVERSTEP_RETURN_IF_ERROR(queue_.Push(std::move(frame), peer_));
  host_->Wake(*this);
  return Status::Ok();
}

void Link::Close() {
  if (over_ || closing_) return;
  EVERSTEP_CHECK(loop_.InLoop(), "a connection belongs to its loop's thread");
  closing_ = true;
  handler_ = nullptr;
  close_timer_ = loop_.At(SteadyNow() + linger_, [this] {
    close_timer_ = 0;
    gave_up_ = true;
    host_->Wake(*this);
  });
  host_->Wake(*this);
}

void Link::Open(uint64_t window) {
  EVERSTEP_CHECK(!open_, "a link opens once");
  open_ = true;
  send_window_ = SendWindow(static_cast<size_t>(std::min<uint64_t>(window, limits::kCreditWindowBytes)));
}

void Link::Receive(Inbound inbound) {
  if (over_) return;
  switch (inbound.prelude.kind) {
    case Kind::kData: ReceiveFrame(std::move(inbound)); return;
    case Kind::kCredit:
      if (!send_window_.Return(inbound.prelude.value)) {
        Break("returned credit for bytes that it was not sent");
      } else if (!queue_.empty()) {
        host_->Wake(*this);  // what waited for credit goes on by itself, not with the next Send
      }
      return;
    case Kind::kClose: Finish(DecodeReason(inbound.prelude.value, inbound.header.span(), peer_)); return;
    case Kind::kHello:
    case Kind::kWelcome:
    case Kind::kReady: Break("shook hands twice"); return;
  }
}

void Link::ReceiveFrame(Inbound inbound) {
  const size_t bytes = inbound.payload.size();
  if (inbound.header.empty()) return Break("sent a frame without a header");
  if (inbound.prelude.value != bytes) return Break("announced another payload than it sent");
  if (!credit_return_->Admits(bytes)) return Break("sent more than its credit allows");
  Credit credit = bytes > 0 ? credit_return_->Lend(bytes) : Credit();
  host_->counters().frames_received += 1;
  host_->counters().bytes_received += inbound.header.size() + bytes;
  // While closing nobody listens; what arrives is dropped.
  if (handler_ == nullptr) return;
  handler_->OnFrame(*this, {std::move(inbound.header), std::move(inbound.payload), std::move(credit)});
}

bool Link::Flush() {
  if (over_) return false;
  if (closing_ && (gone_ || gave_up_)) {
    End();
    return false;
  }
  if (!open_ || gone_) return false;
  if (!FlushCredit() || !FlushFrames()) return !gone_;
  if (closing_) {
    // What still waits for credit is not sent: the caller has no use for an answer.
    if (PutClose(Status::Ok()) == Sent::kFull) return true;
    Leave();
  }
  return false;
}

// False when the socket did not take it.
bool Link::FlushCredit() {
  if (credit_to_tell_ == 0) return true;
  const Sent sent = host_->Put(*this, {Kind::kCredit, credit_to_tell_}, {}, {});
  gone_ = sent == Sent::kGone;
  if (sent != Sent::kDone) return false;
  credit_to_tell_ = 0;
  return true;
}

bool Link::FlushFrames() {
  while (!queue_.empty()) {
    const Frame& frame = queue_.front();
    const size_t bytes = frame.payload.size();
    if (!send_window_.Admits(bytes)) return true;
    const Sent sent = host_->Put(*this, {Kind::kData, bytes}, frame.header, frame.payload);
    if (sent != Sent::kDone) {
      gone_ = sent == Sent::kGone;
      return false;
    }
    send_window_.Spend(bytes);
    host_->counters().frames_sent += 1;
    host_->counters().bytes_sent += frame.header.size() + bytes;
    queue_.Pop();
  }
  return true;
}

void Link::Break(const std::string& what) {
  host_->counters().refused_frames += 1;
  const Status why(Code::kCorrupt, peer_ + " broke the protocol: " + what + "; the connection is closed");
  log::Warning(why.message());
  PutClose({Code::kCorrupt, "the peer broke the protocol: " + what});
  Finish(why);
}

void Link::Refuse(const Status& why) {
  if (over_) return;
  PutClose(why);
  Leave();
}

void Link::Finish(const Status& why) {
  if (over_) return;
  ConnectionHandler* handler = handler_;
  Leave();
  if (handler != nullptr) handler->OnClosed(*this, why);
}

void Link::End() {
  if (over_) return;
  PutClose(Status::Ok());
  Leave();
}

Sent Link::PutClose(const Status& why) {
  if (gone_) return Sent::kGone;
  const Buffer text = Buffer::Copy(std::string_view(why.message()).substr(0, kMaxReasonBytes));
  return host_->Put(*this, {Kind::kClose, static_cast<uint64_t>(why.code())}, text, {});
}

void Link::Leave() {
  over_ = true;
  handler_ = nullptr;
  host_ = nullptr;
  queue_.Clear();
  credit_return_->Detach();
  if (close_timer_ != 0) loop_.Cancel(std::exchange(close_timer_, 0));
}

}  // namespace everstep::transport::zeromq
