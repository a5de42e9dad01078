#include "transport/queued_connection.h"

#include <algorithm>

#include "base/check.h"
#include "transport/connection_id.h"

namespace everstep::transport {

QueuedConnection::QueuedConnection(Loop& loop, std::string peer, const BackendOptions& options)
    : loop_(loop),
      peer_(std::move(peer)),
      id_(NextConnectionId()),
      window_(options.window_bytes),
      linger_(options.linger),
      credit_return_(loop, options.window_bytes, [this] {
        credit_to_tell_ += credit_return_.TakeOwed();
        Wake();
      }) {}

Status QueuedConnection::Send(Frame frame) {
  if (over_ || closing_) return {Code::kUnavailable, "the connection to " + peer_ + " is closed"};
  EVERSTEP_CHECK(loop_.InLoop(), "a connection belongs to its loop's thread");
  EVERSTEP_RETURN_IF_ERROR(queue_.Push(std::move(frame), peer_));
  Wake();
  return Status::Ok();
}

void QueuedConnection::Close() {
  if (over_ || closing_) return;
  EVERSTEP_CHECK(loop_.InLoop(), "a connection belongs to its loop's thread");
  closing_ = true;
  handler_ = nullptr;
  close_timer_ = loop_.At(SteadyNow() + linger_, [this] {
    close_timer_ = 0;
    GiveUp();
  });
  Wake();
}

void QueuedConnection::Grant(uint64_t window) {
  send_window_ = SendWindow(static_cast<size_t>(std::min<uint64_t>(window, limits::kCreditWindowBytes)));
}

bool QueuedConnection::TakeCredit(uint64_t bytes) {
  if (!send_window_.Return(bytes)) return false;
  if (!queue_.empty()) Wake();
  return true;
}

void QueuedConnection::SentFront(Counters& counters) {
  const Frame& frame = queue_.front();
  send_window_.Spend(frame.payload.size());
  counters.frames_sent += 1;
  counters.bytes_sent += frame.header.size() + frame.payload.size();
  queue_.Pop();
}

bool QueuedConnection::HandOut(Buffer header, Buffer payload, Counters& counters) {
  const size_t bytes = payload.size();
  if (!credit_return_.Admits(bytes)) return false;
  Credit credit = bytes > 0 ? credit_return_.Lend(bytes) : Credit();
  counters.frames_received += 1;
  counters.bytes_received += header.size() + bytes;
  if (handler_ != nullptr) handler_->OnFrame(*this, {std::move(header), std::move(payload), std::move(credit)});
  return true;
}

void QueuedConnection::Retire() {
  queue_.Clear();
  credit_return_.Detach();
  StopCloseTimer();
}

void QueuedConnection::StopCloseTimer() {
  if (close_timer_ != 0) loop_.Cancel(std::exchange(close_timer_, 0));
}

}  // namespace everstep::transport
