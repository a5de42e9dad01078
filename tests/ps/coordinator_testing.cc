#include "tests/ps/coordinator_testing.h"

namespace everstep::test {

CoordinatorTest::CoordinatorTest() {
  job_.name = "test";
  job_.batch = 10;
  job_.epochs = 2;
  job_.chunk_bytes = 64;
  job_.optimizer.learning_rate = 0.25;
  job_.replication = 1;
}

Hello CoordinatorTest::HelloOf(const Worker& worker, uint64_t dataset) {
  Hello hello;
  hello.name = worker.name;
  hello.worker = worker.id;
  hello.spec = Spec();
  hello.dataset_size = dataset;
  return hello;
}

Hello CoordinatorTest::HelloOf(const Server& server, std::string address) {
  Hello hello;
  hello.role = PeerRole::kServer;
  hello.incarnation = server.life;
  hello.address = std::move(address);
  return hello;
}

void CoordinatorTest::Begin(std::optional<Configuration> found) {
  Coordinator::Options options{kJob, job_, {next_id_++}, "tcp://ps0", std::move(found)};
  options.lasting_record = lasting_record_;
  coordinator_.emplace(now_, std::move(options));
  Pump();
}

void CoordinatorTest::AddServer() {
  Server server;
  server.life = {next_id_++};
  server.peer = {next_id_++};
  server.promises = promises_at_first_;
  servers_.push_back(server);
  DeliverAt(server.peer, {}, HelloOf(server, "tcp://ps" + std::to_string(servers_.size() - 1)), {});
}

void CoordinatorTest::Reconnect(size_t i) {
  servers_[i].peer = {next_id_++};
  DeliverAt(servers_[i].peer, servers_[i].promised, HelloOf(servers_[i], "tcp://ps" + std::to_string(i)));
}

CoordinatorTest::Worker CoordinatorTest::AddWorker(const std::string& name) {
  const Worker worker{{next_id_}, {next_id_ + 1}, name};
  next_id_ += 2;
  DeliverAt(worker.peer, {}, HelloOf(worker, dataset_), {});
  return worker;
}

CoordinatorTest::Worker CoordinatorTest::Admit(const std::string& name) {
  const Worker worker = AddWorker(name);
  Deliver(worker.peer, Ready{worker.id, coordinator_->version(), {}});
  return worker;
}

void CoordinatorTest::Start(size_t servers, const std::vector<std::string>& names) {
  job_.servers = static_cast<uint32_t>(servers);
  Begin();
  for (size_t i = 0; i < servers; ++i) AddServer();
  std::vector<Worker> workers;
  for (const std::string& name : names) workers.push_back(Admit(name));
  const auto grant = TakeGrant(workers[0]);
  ASSERT_TRUE(grant && grant->version == Version{0}) << Name(state());
  StageAll(workers[0], *grant);
  ASSERT_EQ(version(), 1u);
  ASSERT_EQ(state(), Coordinator::State::kOpen);
  Commits();
  Events();
  for (Server& server : servers_) server.got.clear();
}

void CoordinatorTest::DeliverAt(PeerId from, Ballot ballot, Body body, JobUid job) {
  coordinator_->OnMessage(now_, from, {job, ballot, std::move(body)});
  Pump();
}

void CoordinatorTest::Close(PeerId peer) {
  for (Server& server : servers_) {
    if (server.peer == peer) server.peer = {};
  }
  coordinator_->OnClosed(now_, peer);
  Pump();
}

void CoordinatorTest::Tick() {
  coordinator_->OnTick(now_);
  Pump();
}

void CoordinatorTest::Pass(Duration time, const std::vector<Worker>& alive) {
  const Time end = now_ + time;
  while (now_ < end) {
    now_ = std::min(end, now_ + job_.heartbeat());
    for (const Worker& worker : alive) Deliver(worker.peer, Heartbeat{worker.id, Phase::kComputing, 1, UINT64_MAX});
    for (const Server& server : servers_) {
      if (server.peer != PeerId{}) Deliver(server.peer, Heartbeat{});
    }
    Tick();
  }
}

void CoordinatorTest::Pump() {
  while (true) {
    if (auto proposal = coordinator_->TakeProposal()) {
      if (!record_answers_) {
        proposal_ = std::move(proposal);
      } else {
        record_ = proposal->next;
        coordinator_->OnConfigured(now_, Status::Ok());
      }
      continue;
    }
    std::vector<Outgoing> out = coordinator_->TakeOutbox();
    if (out.empty()) return;
    for (Outgoing& message : out) {
      const auto server =
          std::find_if(servers_.begin(), servers_.end(), [&](const Server& s) { return s.peer == message.to; });
      if (server == servers_.end()) {
        mail_.Add(std::move(message));
      } else {
        ServerHandle(static_cast<size_t>(server - servers_.begin()), Decode(Encode(message.envelope)).value());
      }
    }
  }
}

void CoordinatorTest::Answer(const Server& server, Body body) {
  coordinator_->OnMessage(now_, server.peer, {kJob, server.promised, std::move(body)});
}

void CoordinatorTest::ServerHandle(size_t index, const Envelope& envelope) {
  Server& s = servers_[index];
  s.got.push_back(envelope);
  if (const auto* welcome = std::get_if<Welcome>(&envelope.body)) s.id = welcome->server;
  if (std::holds_alternative<Promise>(envelope.body) && s.promises) {
    s.promised = envelope.ballot;
    Promised answer{s.id, s.life, s.version, s.digest, s.applied, s.applied_scale, s.prepared, {}, s.held};
    if (s.prepared) answer.norms = {{{static_cast<uint32_t>(index)}, s.squared_norm}};
    Answer(s, std::move(answer));
  }
  const auto apply = [&](const Seal& seal, double scale) {
    s.applied = seal;
    s.applied_scale = scale;
    s.version = Next(seal.id.step);
    s.digest = seal.digest;
    s.prepared.reset();
    std::erase_if(s.held, [&](const Contribution& c) {
      return job_.mode == Mode::kSync || std::count(seal.contributors.begin(), seal.contributors.end(), c) > 0;
    });
    Answer(s, Applied{s.id, s.life, seal.id, seal.digest, scale, {}});
  };
  if (const auto* m = std::get_if<SealStep>(&envelope.body); m != nullptr && s.prepares) {
    if (m->seal.id.step != s.version) return;
    if (m->collapsed) return apply(m->seal, 1);
    s.prepared = m->seal;
    Answer(s, Prepared{s.id, s.life, m->seal.id, m->seal.digest, {{{static_cast<uint32_t>(index)}, s.squared_norm}}});
  }
  if (const auto* m = std::get_if<Commit>(&envelope.body); m != nullptr && s.applies) {
    if (s.applied && s.applied->digest == m->digest)
      return Answer(s, Applied{s.id, s.life, m->seal, m->digest, m->scale, {}});
    if (s.prepared && s.prepared->digest == m->digest) apply(Seal(*s.prepared), m->scale);
  }
}

std::optional<Grant> CoordinatorTest::TakeGrant(const Worker& worker) {
  std::vector<Grant> grants = mail_.Take<Grant>(worker.peer);
  if (grants.empty()) return std::nullopt;
  EXPECT_EQ(grants.back().worker, worker.id);
  return std::move(grants.back());
}

Contribution CoordinatorTest::ContributionOf(const Worker& worker, const Grant& grant) const {
  return {worker.id, coordinator_->version(), coordinator_->digest(), grant.lease};
}

void CoordinatorTest::Stage(size_t server, const Contribution& c) {
  servers_[server].held.push_back(c);
  Answer(servers_[server], Staged{servers_[server].id, c});
  Pump();
}

Contribution CoordinatorTest::StageAll(const Worker& worker, const Grant& grant) {
  const Contribution c = ContributionOf(worker, grant);
  // Held everywhere before the first announcement is read: the last one may seal the step at once.
  for (Server& server : servers_) server.held.push_back(c);
  for (size_t i = 0; i < servers_.size(); ++i) Answer(servers_[i], Staged{servers_[i].id, c});
  Pump();
  return c;
}

std::vector<CommitRecord> CoordinatorTest::Commits() { return coordinator_->TakeCommits(); }

std::vector<std::string> CoordinatorTest::Events() {
  std::vector<std::string> kinds;
  for (const Event& event : coordinator_->TakeEvents()) kinds.push_back(event.kind);
  return kinds;
}

uint64_t CoordinatorTest::ClosingsOf(PeerId peer) {
  const std::vector<PeerId> closings = coordinator_->TakeClosings();
  return static_cast<uint64_t>(std::count(closings.begin(), closings.end(), peer));
}

}  // namespace everstep::test
