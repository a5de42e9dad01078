#include "transport/credit.h"

#include <mutex>

#include "base/check.h"

namespace everstep::transport {

struct CreditReturn::State {
  std::mutex mutex;
  Loop* loop = nullptr;  // null once detached
  std::function<void()> due;
  size_t urgent_bytes = 0;
  size_t owed = 0;
  bool scheduled = false;         // a task or the timer will look at `owed` within kCreditDelay
  bool urgent_scheduled = false;  // a task will look at `owed` at once
  Loop::TimerId timer = 0;        // loop's thread only; 0 while not armed
};

CreditReturn::CreditReturn(Loop& loop, size_t window, std::function<void()> due)
    : state_(std::make_shared<State>()), window_(window) {
  state_->loop = &loop;
  state_->due = std::move(due);
  state_->urgent_bytes = std::max<size_t>(window / 4, 1);
}

CreditReturn::~CreditReturn() { Detach(); }

void CreditReturn::Detach() {
  Loop* loop = nullptr;
  {
    std::lock_guard lock(state_->mutex);
    loop = std::exchange(state_->loop, nullptr);
  }
  if (loop != nullptr && state_->timer != 0) loop->Cancel(std::exchange(state_->timer, 0));
}

Credit CreditReturn::Lend(size_t bytes) {
  EVERSTEP_CHECK(bytes > 0, "an empty payload needs no credit");
  held_ += bytes;
  return Credit([state = state_, bytes] { Release(state, bytes); });
}

size_t CreditReturn::TakeOwed() {
  std::lock_guard lock(state_->mutex);
  const size_t owed = std::exchange(state_->owed, 0);
  EVERSTEP_CHECK(owed <= held_, "credit returned twice");
  held_ -= owed;
  return owed;
}

void CreditReturn::Release(const std::shared_ptr<State>& state, size_t bytes) {
  std::lock_guard lock(state->mutex);
  if (state->loop == nullptr) return;
  state->owed += bytes;
  const bool urgent = state->owed >= state->urgent_bytes;
  if (urgent ? std::exchange(state->urgent_scheduled, true) : std::exchange(state->scheduled, true)) return;
  state->loop->Post([weak = std::weak_ptr<State>(state), urgent] {
    if (const auto alive = weak.lock()) OnLoop(alive, urgent);
  });
}

void CreditReturn::OnLoop(const std::shared_ptr<State>& state, bool at_once) {
  Loop* loop = nullptr;
  bool owed = false;
  {
    std::lock_guard lock(state->mutex);
    loop = state->loop;
    owed = state->owed > 0;
    if (at_once) {
      state->urgent_scheduled = false;
    } else if (!owed) {
      state->scheduled = false;  // an urgent return has taken it along meanwhile
    }
  }
  if (loop == nullptr || !owed) return;
  if (at_once) {
    state->due();
    return;
  }
  state->timer = loop->At(SteadyNow() + kCreditDelay, [weak = std::weak_ptr<State>(state)] {
    const auto alive = weak.lock();
    if (alive == nullptr) return;
    alive->timer = 0;
    bool still_owed = false;
    {
      std::lock_guard lock(alive->mutex);
      alive->scheduled = false;
      still_owed = alive->loop != nullptr && alive->owed > 0;
    }
    if (still_owed) alive->due();
  });
}

Status SendQueue::Push(Frame frame, const std::string& peer) {
  const size_t header = frame.header.size();
  const size_t payload = frame.payload.size();
  if (header == 0 || header > limits::kMaxHeaderBytes) {
    return {Code::kInvalidArgument, "a frame's header has 1 to " + std::to_string(limits::kMaxHeaderBytes) +
                                        " bytes, this one " + std::to_string(header)};
  }
  if (payload > limits::kMaxPayloadBytes) {
    return {Code::kInvalidArgument, "a frame's payload has at most " + std::to_string(limits::kMaxPayloadBytes) +
                                        " bytes, this one " + std::to_string(payload) + "; cut it into chunks"};
  }
  if (frames_.size() >= limits::kMaxQueuedFrames || header + payload > limits::kMaxQueuedBytes - bytes_) {
    return {Code::kResourceExhausted, "the queue to " + peer + " is full (" + std::to_string(frames_.size()) +
                                          " frames, " + std::to_string(bytes_) +
                                          " bytes); the peer reads too slowly, send less at a time"};
  }
  bytes_ += header + payload;
  frames_.push_back(std::move(frame));
  return Status::Ok();
}

void SendQueue::Pop() {
  bytes_ -= frames_.front().header.size() + frames_.front().payload.size();
  frames_.pop_front();
}

void SendQueue::Clear() {
  frames_.clear();
  bytes_ = 0;
}

}  // namespace everstep::transport
