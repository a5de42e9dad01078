#include "transport/zmq/zmq_link.h"

#include "base/check.h"
#include "base/log.h"

namespace everstep::transport::zeromq {

Link::Link(LinkHost& host, std::string peer, std::string route, const Options& options)
    : QueuedConnection(host.loop(), std::move(peer), options), host_(&host), route_(std::move(route)) {}

void Link::GiveUp() {
  gave_up_ = true;
  Wake();
}

void Link::Open(uint64_t window) {
  EVERSTEP_CHECK(!open_, "a link opens once");
  open_ = true;
  Grant(window);
}

void Link::Receive(Inbound inbound) {
  if (over_) return;
  switch (inbound.prelude.kind) {
    case Kind::kData: ReceiveFrame(std::move(inbound)); return;
    case Kind::kCredit:
      if (!TakeCredit(inbound.prelude.value)) Break("returned credit for bytes that it was not sent");
      return;
    case Kind::kClose: Finish(DecodeReason(inbound.prelude.value, inbound.header.span(), peer())); return;
    case Kind::kHello:
    case Kind::kWelcome:
    case Kind::kReady: Break("shook hands twice"); return;
  }
}

void Link::ReceiveFrame(Inbound inbound) {
  if (inbound.header.empty()) return Break("sent a frame without a header");
  if (inbound.prelude.value != inbound.payload.size()) return Break("announced another payload than it sent");
  if (!HandOut(std::move(inbound.header), std::move(inbound.payload), host_->counters()))
    Break("sent more than its credit allows");
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
    SentFront(host_->counters());
  }
  return true;
}

void Link::Break(const std::string& what) {
  host_->counters().refused_frames += 1;
  const Status why(Code::kCorrupt, peer() + " broke the protocol: " + what + "; the connection is closed");
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
  Retire();
}

}  // namespace everstep::transport::zeromq
