#include "tests/support/probe.h"

#include <algorithm>

namespace everstep::test {

Probe::Probe(const std::string& address) {
  io_.Call([&] {
    context_ = transport::MakeContext(io_.loop());
    auto connected = context_->Connect(address, this, std::chrono::seconds(5));
    if (connected.ok()) {
      connection_ = *connected;
    } else {
      closed_ = connected.status();
    }
  });
}

Probe::~Probe() {
  io_.Call([&] {
    if (connection_) connection_->Close();
    connection_.reset();
    context_.reset();
  });
}

void Probe::SendBytes(Buffer header, Buffer payload) {
  io_.Call([&] {
    if (connection_) (void)connection_->Send({std::move(header), std::move(payload)});
  });
}

void Probe::OnFrame(transport::Connection&, transport::Received received) {
  std::lock_guard lock(mutex_);
  inbox_.push_back(Decode(received.header));
  changed_.notify_all();
}

void Probe::OnClosed(transport::Connection&, const Status& why) {
  connection_.reset();
  std::lock_guard lock(mutex_);
  closed_ = why.ok() ? Status(Code::kUnavailable, "the server closed the connection") : why;
  changed_.notify_all();
}

Result<Envelope> Probe::Receive(Duration patience) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::max(patience, Duration{0}), [&] { return !inbox_.empty() || closed_; });
  if (!inbox_.empty()) {
    Result<Envelope> next = std::move(inbox_.front());
    inbox_.pop_front();
    return next;
  }
  return closed_ ? *closed_ : Status(Code::kDeadlineExceeded, "no message came");
}

bool Probe::WaitClosed(Duration patience) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, patience, [&] { return closed_.has_value(); });
}

Result<JobUid> Probe::FindJob(const std::string& address, Duration patience) {
  Probe probe(address);
  Hello hello;
  hello.role = PeerRole::kObserver;
  hello.name = "probe";
  probe.Send({{}, {}, hello});
  const Time deadline = SteadyNow() + patience;
  while (true) {
    EVERSTEP_ASSIGN(const Envelope next, probe.Receive(deadline - SteadyNow()));
    if (std::holds_alternative<Welcome>(next.body)) return next.job;
    if (const auto* refused = std::get_if<Refused>(&next.body)) return Status(refused->code, refused->message);
  }
}

}  // namespace everstep::test
