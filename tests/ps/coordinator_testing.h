// One Coordinator, driven by hand: its record store and its servers answer by themselves unless told not to, its
// workers do what the test says. The model has 32 floats in 2 chunks, so that two servers hold one each.
#pragma once

#include <gtest/gtest.h>

#include "ps/coordinator.h"
#include "tests/support/mailbox.h"

namespace everstep::test {

class CoordinatorTest : public testing::Test {
 protected:
  static constexpr JobUid kJob{77};

  // What a server holds, and whether it still does its part.
  struct Server {
    Incarnation life;
    PeerId peer;
    ServerId id;
    Ballot promised;
    Version version;
    Digest digest;
    std::optional<Seal> applied;
    double applied_scale = 1;
    std::optional<Seal> prepared;
    std::vector<Contribution> held;
    bool promises = true;  // answers Promise
    bool prepares = true;  // answers SealStep
    bool applies = true;   // answers Commit
    double squared_norm = 1;
    std::vector<Envelope> got;  // all that came, for the tests to look at
  };
  struct Worker {
    WorkerId id;
    PeerId peer;
    std::string name;
  };

  CoordinatorTest();

  static ParameterSpec Spec() { return {{{"w", {32}, DType::kFloat32, Role::kTrainable}}}; }
  static Hello HelloOf(const Worker& worker, uint64_t dataset);
  static Hello HelloOf(const Server& server, std::string address);

  // A new coordinator; `found` as read from the record.
  void Begin(std::optional<Configuration> found = {});
  void AddServer();
  void Reconnect(size_t server);              // on another link
  Worker AddWorker(const std::string& name);  // joined, not ready
  Worker Admit(const std::string& name);      // joined and ready
  // Servers and workers in, version 1 committed, work for step 1 given out.
  void Start(size_t servers, const std::vector<std::string>& names);

  void Deliver(PeerId from, Body body) { DeliverAt(from, coordinator_->ballot(), std::move(body)); }
  void DeliverAt(PeerId from, Ballot ballot, Body body, JobUid job = kJob);
  void Close(PeerId peer);
  void Tick();
  // Lets time pass in heartbeats, during which these workers and all connected servers say that they live.
  void Pass(Duration time, const std::vector<Worker>& alive);
  // Carries out what the coordinator wants until it wants nothing more.
  void Pump();

  // The newest work given to the worker since the last call.
  std::optional<Grant> TakeGrant(const Worker& worker);
  Contribution ContributionOf(const Worker& worker, const Grant& grant) const;
  // Stages the contribution on one server, or on all of them.
  void Stage(size_t server, const Contribution& c);
  Contribution StageAll(const Worker& worker, const Grant& grant);
  template <typename T>
  std::vector<T> ServerGot(size_t server) {
    std::vector<T> got;
    std::erase_if(servers_[server].got, [&](Envelope& e) {
      T* message = std::get_if<T>(&e.body);
      if (message == nullptr) return false;
      got.push_back(std::move(*message));
      return true;
    });
    return got;
  }

  std::vector<CommitRecord> Commits();  // since the last call
  std::vector<std::string> Events();    // their kinds, since the last call
  uint64_t ClosingsOf(PeerId peer);
  Coordinator::State state() const { return coordinator_->state(); }
  uint64_t version() const { return coordinator_->version().value; }

  JobSpec job_;
  uint64_t dataset_ = 100;
  Time now_{1'000'000'000};
  std::optional<Coordinator> coordinator_;
  Mailbox mail_;  // to workers and strangers
  std::vector<Server> servers_;
  bool lasting_record_ = false;
  bool record_answers_ = true;                     // the record store grants every change at once
  std::optional<Coordinator::Proposal> proposal_;  // not answered yet
  std::optional<Configuration> record_;
  bool promises_at_first_ = true;  // new servers answer Promise
  uint64_t next_id_ = 1000;

 private:
  void ServerHandle(size_t index, const Envelope& envelope);
  void Answer(const Server& server, Body body);
};

}  // namespace everstep::test
