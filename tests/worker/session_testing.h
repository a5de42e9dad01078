// One Session, driven by hand: a coordinator and two servers that hold one chunk of 64 bytes each.
#pragma once

#include <gtest/gtest.h>

#include "tests/support/mailbox.h"
#include "worker/session.h"

namespace everstep::test {

class SessionTest : public testing::Test {
 protected:
  static constexpr JobUid kJob{77};
  static constexpr uint64_t kChunkBytes = 64;

  SessionTest() {
    options_.servers = {"tcp://ps0", "tcp://ps1"};
    options_.name = "w";
    options_.job_name = "test";
    options_.spec = {{{"w", {32}, DType::kFloat32, Role::kTrainable}}};
    options_.dataset_size = 100;
    options_.seed = 5;
    job_.name = "test";
    job_.chunk_bytes = kChunkBytes;
  }

  ShardMap Map(uint64_t ballot = 1) const {
    return {{ballot},
            options_.spec.hash(),
            kChunkBytes,
            {{{0}, {10}, "tcp://ps0-bulk"}, {{1}, {11}, "tcp://ps1-bulk"}},
            {{0}, {1}}};
  }
  static Digest DigestOf(uint64_t version) { return {1000 + version}; }
  static Lease LeaseOf(uint64_t id) { return {{id}, 0, {{10 * id, 10 * id + 10}}}; }
  static Buffer Bytes(uint64_t version, uint32_t chunk) {
    return Buffer::Copy(std::string(kChunkBytes, static_cast<char>(16 * version + chunk)));
  }

  void Begin() {
    session_.emplace(now_, options_);
    Tick();
  }
  void Collect() {
    mail_.Collect(*session_);
    for (const Session::Opening& opening : session_->TakeOpenings()) {
      openings_.push_back(opening);
      if (opening.control) {
        control_ = opening.peer;
      } else {
        bulk_[opening.address == "tcp://ps0-bulk" ? 0 : 1] = opening.peer;
      }
    }
    for (PeerId peer : session_->TakeClosings()) closings_.push_back(peer);
  }
  void Tick() {
    session_->OnTick(now_);
    Collect();
  }
  // Lets time pass tick by tick. `alive`: the coordinator answers heartbeats meanwhile.
  void Pass(Duration time, bool alive = true) {
    const Time end = now_ + time;
    while (now_ < end && !session_->failure() && !session_->left()) {
      now_ = std::min(end, std::max(session_->NextDeadline(), now_ + Duration(1)));
      Tick();
      if (alive && !mail_.Take<Heartbeat>(control_).empty()) Coordinator(HeartbeatAck{});
    }
  }
  void Coordinator(Body body, JobUid job = kJob) {
    session_->OnMessage(now_, control_, {job, {1}, std::move(body)}, {});
    Collect();
  }
  void FromServer(size_t server, Body body, Buffer payload = {}) {
    session_->OnMessage(now_, bulk_[server], {kJob, {1}, std::move(body)}, std::move(payload));
    Collect();
  }
  void SendChunk(uint32_t chunk, uint64_t version) {
    FromServer(chunk, ChunkData{{version}, DigestOf(version), {chunk}}, Bytes(version, chunk));
  }
  void SendVersion(uint64_t version) {
    SendChunk(0, version);
    SendChunk(1, version);
  }
  void Close(PeerId peer) {
    session_->OnClosed(now_, peer, {Code::kUnavailable, "connection refused"});
    Collect();
  }
  void Welcome(uint64_t version) { Coordinator(everstep::Welcome{job_, {}, {version}, Map()}); }
  void Grant(uint64_t number, uint64_t version, Lease lease) {
    Coordinator(everstep::Grant{session_->id(), number, {version}, std::move(lease)});
  }
  // A member of a running job that holds `version` and has nothing to do yet.
  void JoinAt(uint64_t version) {
    Begin();
    Welcome(version);
    SendVersion(version);
    ASSERT_EQ(session_->held(), Version{version});
    mail_.Clear();
  }
  // ... and has taken the work that it was given.
  Session::StepWork WorkAt(uint64_t version, uint64_t lease = 3) {
    JoinAt(version);
    Grant(1, version, LeaseOf(lease));
    auto work = session_->TakeStep(now_);
    EXPECT_TRUE(work);
    mail_.Clear();
    return work ? std::move(*work) : Session::StepWork{};
  }
  void PushAll(const Session::StepWork& work) {
    for (uint32_t chunk = 0; chunk < 2; ++chunk) session_->PushChunk(now_, work.serial, {chunk}, Bytes(0, chunk));
    Collect();
  }
  Status Commit(const Session::StepWork& work) {
    const Status status = session_->CommitStep(now_, work.serial, {{"loss", 0.5}});
    Collect();
    return status;
  }

  Session::Options options_;
  JobSpec job_;
  Time now_{1'000'000'000};
  std::optional<Session> session_;
  Mailbox mail_;
  std::vector<Session::Opening> openings_;
  std::vector<PeerId> closings_;
  PeerId control_;
  PeerId bulk_[2];
};

}  // namespace everstep::test
