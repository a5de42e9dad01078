// Server: where the coordinator is. A server that lost it looks at all addresses it knows, and when nobody coordinates
// it takes office itself through the configuration record; one that was outrun stands down and serves on.
#include <algorithm>

#include "base/log.h"
#include "base/random.h"
#include "ps/server.h"

namespace everstep {
namespace {

constexpr Duration kFirstBackoff = std::chrono::milliseconds(20);
constexpr Duration kLongestBackoff = std::chrono::seconds(1);
// So long a worker's question for the coordinator waits for an answer that is worth something, and so many.
constexpr Duration kHoldQuestion = std::chrono::milliseconds(300);
constexpr size_t kMaxHeldQuestions = 1024;
// A server that does not coordinate may do so in a moment.
constexpr Duration kAskAgain = std::chrono::milliseconds(30);
// Who tries first: one server after the other, so that normally one takes office without a race.
constexpr Duration kOfficeDelay = std::chrono::milliseconds(50);
constexpr Duration kOfficeStagger = std::chrono::milliseconds(300);

}  // namespace

// ---- Looking for it ----

void Server::LoseCoordinator(Time now, const std::string& why) {
  coordinator_link_ = {};
  unreachable_.insert(coordinator_address_);
  if (coordinator_lost_ == Time::Never()) {
    coordinator_lost_ = now;
    office_at_ = now;
    log::Warning("the coordinator's link was lost: " + why);
  }
  backoff_ = std::min<Duration>(kLongestBackoff, backoff_ == Duration{0} ? kFirstBackoff : backoff_ * 2);
  if (!replica_->core().finished()) Seek(now, backoff_);
}

void Server::Seek(Time now, Duration in) {
  if (seek_) loop_.Cancel(*seek_);
  seek_ = loop_.At(now + in, [this] {
    seek_.reset();
    ConnectToCoordinator();
  });
}

std::string Server::NextCandidate() {
  if (!hint_.empty()) return std::exchange(hint_, {});
  std::vector<std::string> all;
  const auto add = [&](const std::string& address) {
    if (!address.empty() && address != address_ && std::find(all.begin(), all.end(), address) == all.end())
      all.push_back(address);
  };
  add(options_.join);
  add(first_);
  if (const auto& map = replica_->core().map()) {
    for (const ServerEntry& server : map->servers) add(server.address);
  }
  if (found_) {
    for (const ServerEntry& server : found_->map.servers) add(server.address);
  }
  if (all.empty()) return {};
  // Whoever has just turned out to be dead is asked only when there is nobody else.
  std::vector<std::string> alive;
  for (const std::string& address : all) {
    if (!unreachable_.contains(address)) alive.push_back(address);
  }
  const std::vector<std::string>& list = alive.empty() ? all : alive;
  return list[next_candidate_++ % list.size()];
}

void Server::ConnectToCoordinator() {
  if (ended_ || coordinator_ || coordinator_link_ != PeerId{}) return;
  const std::string address = NextCandidate();
  if (address.empty()) return Seek(SteadyNow(), kLongestBackoff / 4);
  const PeerId id{next_peer_++};
  if (Status opened = OpenPeer(id, address); !opened.ok()) return End(std::move(opened));
  coordinator_link_ = id;
  coordinator_address_ = address;
  replica_->core().OnCoordinatorLink(SteadyNow(), id);
  Pump();
}

// Whom we asked does not coordinate; perhaps it knows who does.
void Server::Follow(Time now, const NotCoordinator& m) {
  const PeerId id = coordinator_link_;
  coordinator_link_ = {};
  DropPeer(now, id);
  if (coordinator_lost_ == Time::Never()) {
    coordinator_lost_ = now;
    office_at_ = now;
    unreachable_.insert(coordinator_address_);
  }
  const bool known = !m.address.empty() && m.address != address_ && !unreachable_.contains(m.address);
  if (known) hint_ = m.address;
  Seek(now, known ? Duration{0} : kAskAgain);
  Pump();
}

// Silence on the link is as good as its end: heartbeats are answered.
void Server::WatchCoordinator(Time now) {
  if (coordinator_ || ended_) return;
  AnswerHeld(now);
  const Replica& core = replica_->core();
  if (coordinator_link_ != PeerId{} && core.job_spec() && !core.finished()) {
    const Duration patience = core.job_spec()->lease();
    if (now - core.heard_at() > patience) {
      DropPeer(now, coordinator_link_);
      LoseCoordinator(now, "it fell silent");
    }
  }
  MaybeTakeOffice(now);
}

// ---- Taking office ----

// How long this server leaves it to others, by its place in the map; nothing when it may not at all.
std::optional<Duration> Server::OfficeDelay() const {
  if (!KeepsRecord() || stopping_) return std::nullopt;
  if (found_) return kOfficeDelay;
  const Replica& core = replica_->core();
  if (!core.map() || core.version().value == 0 || core.finished()) return std::nullopt;
  int before = 0;
  for (const ServerEntry& server : core.map()->servers) {
    if (server.address == address_) return kOfficeDelay + before * kOfficeStagger;
    before += !unreachable_.contains(server.address);
  }
  return std::nullopt;
}

void Server::MaybeTakeOffice(Time now) {
  if (coordinator_ || coordinator_lost_ == Time::Never() || reading_record_ || now < office_at_) return;
  const std::optional<Duration> delay = OfficeDelay();
  if (!delay || now < coordinator_lost_ + *delay) return;
  reading_record_ = true;
  if (!disk_) disk_ = std::make_unique<LoopThread>();
  disk_->loop().Post([this, alive = alive_, name = JobName()] {
    auto record = std::make_shared<Result<std::optional<Configuration>>>(std::optional<Configuration>());
    if (auto store = OpenRecord(name); store.ok()) {
      *record = (*store)->Read();
    } else {
      *record = store.status();
    }
    loop_.Post([this, alive, record] {
      if (!*alive || ended_) return;
      reading_record_ = false;
      const Time later = SteadyNow();
      Consider(later, *record);
      Pump();
    });
  });
}

void Server::Consider(Time now, const Result<std::optional<Configuration>>& record) {
  if (coordinator_ || coordinator_lost_ == Time::Never()) return;  // found meanwhile
  office_at_ = now + kOfficeStagger;
  if (!record.ok()) return log::Warning(record.status().ToString());
  if (!*record) return;
  const Configuration& c = **record;
  const Replica& core = replica_->core();
  if (!found_ && c.job != core.job()) return;
  if (c.holder_address != address_ && !unreachable_.contains(c.holder_address)) {
    // Somebody else holds office, or did; it has the time of another round to be found.
    hint_ = c.holder_address;
    if (coordinator_link_ == PeerId{}) Seek(now, Duration{0});
    return;
  }
  const bool member = std::any_of(c.map.servers.begin(), c.map.servers.end(),
                                  [&](const ServerEntry& s) { return s.incarnation == core.incarnation(); });
  if (!member && !found_) return;
  if (const Status taken = TakeOffice(now, c); !taken.ok()) log::Warning(taken.message());
}

// Through the record: if somebody else is first, this one stands down again.
Status Server::TakeOffice(Time now, Configuration found) {
  std::set<ServerId> gone;
  for (const ServerEntry& server : found.map.servers) {
    const bool own = server.address == address_;
    const bool former = server.address == found.holder_address;
    if (own ? server.incarnation != replica_->core().incarnation() : former) gone.insert(server.id);
  }
  const std::optional<ShardMap> rest = gone.empty() ? found.map : WithoutServers(found.map, gone);
  if (!rest) {
    return {Code::kFailed, "the coordinator at " + found.holder_address +
                               " is gone, and no other server has a copy of its chunks; nobody can take over"};
  }
  EVERSTEP_ASSIGN(std::unique_ptr<ConfigRecord> record, OpenRecord(JobName()));
  const JobUid job = found.job;
  const JobSpec spec = replica_->core().job_spec() ? *replica_->core().job_spec() : *options_.job;
  log::Info("nobody coordinates; this server takes office");
  found.map = *rest;
  EVERSTEP_ASSIGN(CoordinatorHost::Options host, HostOptions({job, spec, {EntropyU64()}, address_, std::move(found)}));
  host.continue_records = kept_records_ || found_ || options_.job;
  coordinator_ = std::make_unique<CoordinatorHost>(loop_, std::move(host), std::move(record), [this] { Pump(); });
  kept_records_ = true;
  found_.reset();
  if (coordinator_link_ != PeerId{}) DropPeer(now, std::exchange(coordinator_link_, PeerId{}));
  coordinator_lost_ = Time::Never();
  Register();
  replica_->core().OnCoordinatorLink(now, kLocalPeer);
  AnswerHeld(now);
  return coordinator_->status();
}

// Another coordinator holds the record. Whoever is linked here must find it, and so must this server's own replica.
void Server::StandDown(Time now) {
  standing_down_ = false;
  if (!coordinator_ || ended_) return;
  coordinator_.reset();
  Unregister();
  DropAllPeers(now);
  replica_->core().OnClosed(now, kLocalPeer);
  local_.clear();
  coordinator_lost_ = now;
  office_at_ = now;
  unreachable_.clear();
  log::Info("serving on under the new coordinator");
  Seek(now, Duration{0});
  MaybeTakeOffice(now);  // reads the record: it says where the new one is
  Pump();
}

// This server is empty and in no map any more. Whoever can takes office as after a death, and this process ends.
void Server::HandOver(Time now) {
  standing_down_ = false;
  if (!coordinator_ || ended_) return;
  log::Info("this server holds nothing any more; it leaves its office to another one");
  coordinator_.reset();
  local_.clear();
  DropAllPeers(now);
  End(Status::Ok());
}

// ---- Workers that look for it as well ----

// While the coordinator is being looked for, "not me" would only send a worker round: it is answered once somebody has
// taken office.
bool Server::HoldsQuestion(Time now, PeerId from, const Envelope& envelope) {
  const auto* hello = std::get_if<Hello>(&envelope.body);
  if (hello == nullptr || hello->role != PeerRole::kWorker || ended_ || coordinator_lost_ == Time::Never())
    return false;
  if (!replica_->core().map() || (held_.size() >= kMaxHeldQuestions && !held_.contains(from))) return false;
  held_[from] = {envelope, now};
  return true;
}

void Server::AnswerHeld(Time now) {
  const bool known = coordinator_link_ != PeerId{} && replica_->core().welcomed();
  for (auto it = held_.begin(); it != held_.end();) {
    if (!coordinator_ && !known && now - it->second.since < kHoldQuestion) {
      ++it;
      continue;
    }
    const PeerId from = it->first;
    const Envelope hello = std::move(it->second.hello);
    it = held_.erase(it);
    if (coordinator_) {
      coordinator_->core().OnMessage(now, from, hello);
    } else {
      SendTo(from, {hello.job, {}, NotCoordinator{known ? coordinator_address_ : ""}});
    }
  }
}

}  // namespace everstep
