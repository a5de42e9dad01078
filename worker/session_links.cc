// Session: its links, and the search for the coordinator.
#include <algorithm>

#include "worker/session.h"

namespace everstep {
namespace {

constexpr Duration kFirstRetry = std::chrono::milliseconds(20);
constexpr Duration kLongestRetry = std::chrono::seconds(1);
// A server that does not coordinate may do so in a moment.
constexpr Duration kAskAgain = std::chrono::milliseconds(30);
constexpr Duration kNextCandidate = std::chrono::milliseconds(2);

}  // namespace

// ---- Links ----

void Session::Open(Time now, Link& link, bool control) {
  link.peer = {next_peer_++};
  link.opened_at = link.heard_at = now;
  link.pulled_at = Time{};
  ++stats_.links;
  openings_.push_back({link.peer, link.address, control});
}

void Session::LinkDown(Time now, Link& link) {
  link.peer = {};
  // A link that said something, or lasted longer than any attempt to connect, did work until now.
  if (link.heard_at > link.opened_at || now - link.opened_at > Session::kConnectDeadline) link.down_since = now;
  link.backoff = std::min<Duration>(kLongestRetry, link.backoff == Duration{0} ? kFirstRetry : link.backoff * 2);
  // Spread the retries of many workers that lost the same peer at the same moment.
  link.retry_at =
      now + Duration(static_cast<int64_t>(static_cast<double>(link.backoff.count()) * (0.5 + random_.Uniform() / 2)));
}

void Session::OpenWhatIsDown(Time now) {
  if (coordinator_.peer == PeerId{}) {
    if (now - coordinator_.down_since > Timeout()) {
      std::string tried;
      for (const std::string& server : options_.servers) tried += (tried.empty() ? "" : ", ") + server;
      return Fail({Code::kUnavailable, "no coordinator answered at " + tried + " within " +
                                           std::to_string(static_cast<int>(Seconds(Timeout()))) + " s (" +
                                           last_problem_ +
                                           "); is everstep-ps running there, and does --servers name its address?"});
    }
    if (now >= coordinator_.retry_at) {
      coordinator_.address = NextCandidate();
      Open(now, coordinator_, true);
      welcomed_ = false;
      SendHello(now);
    } else {
      next_tick_ = std::min(next_tick_, coordinator_.retry_at);
    }
  }
  for (auto& [id, link] : servers_) {
    if (link.peer != PeerId{}) continue;
    if (now - link.down_since > Timeout()) {
      return Fail({Code::kUnavailable, "server " + ToString(id) + " at " + link.address + " could not be reached for " +
                                           std::to_string(static_cast<int>(Seconds(Timeout()))) + " s"});
    }
    if (now < link.retry_at) {
      next_tick_ = std::min(next_tick_, link.retry_at);
      continue;
    }
    Open(now, link, false);
    if (pulling_ > held_ || (flight_ && flight_->committed)) PullFrom(now, id, link);
  }
}

// Any server may be the coordinator by now: those of the map first, then those that were named at the start, of which
// many may be long gone. Where the last one was is asked when all others have been: it may come back.
std::string Session::NextCandidate() {
  if (!hint_.empty()) return std::exchange(hint_, {});
  std::vector<std::string> all;
  const auto add = [&](const std::string& address) {
    if (address != lost_ && std::find(all.begin(), all.end(), address) == all.end()) all.push_back(address);
  };
  if (map_) {
    for (const ServerEntry& server : map_->servers) add(server.address);
  }
  // Workers that lost it together do not ask the same one first.
  if (all.size() > 1) std::rotate(all.begin(), all.begin() + static_cast<long>(id_.value % all.size()), all.end());
  for (const std::string& address : options_.servers) add(address);
  if (!lost_.empty()) all.push_back(lost_);
  for (const std::string& address : all) {
    if (tried_.insert(address).second) return address;
  }
  tried_ = {all.front()};
  return all.front();
}

// Somebody is known who has not been asked in this round.
bool Session::OthersToTry() const {
  if (!hint_.empty()) return true;
  const auto fresh = [&](const std::string& address) { return !tried_.contains(address) && address != lost_; };
  if (map_ && std::any_of(map_->servers.begin(), map_->servers.end(),
                          [&](const ServerEntry& server) { return fresh(server.address); })) {
    return true;
  }
  return std::any_of(options_.servers.begin(), options_.servers.end(), fresh);
}

// Whom we asked does not coordinate, or does not any more; perhaps it knows who does.
void Session::Handle(Time now, const NotCoordinator& m) {
  last_problem_ = coordinator_.address + " does not coordinate";
  closings_.push_back(coordinator_.peer);
  const bool was_welcomed = welcomed_;
  const Time down_since = coordinator_.down_since;
  LinkDown(now, coordinator_);
  // An answer like this is no sign of a coordinator: the search goes on since when it began.
  if (!was_welcomed) coordinator_.down_since = down_since;
  welcomed_ = false;
  coordinator_.backoff = Duration{0};
  const bool known = !m.address.empty() && m.address != lost_ && m.address != coordinator_.address;
  if (known) hint_ = m.address;
  coordinator_.retry_at = known ? now : now + kAskAgain;
  next_tick_ = std::min(next_tick_, coordinator_.retry_at);
}

void Session::OnClosed(Time now, PeerId peer, const Status& why) {
  if (peer == coordinator_.peer) {
    last_problem_ = why.ok() ? "it closed the connection" : why.message();
    const Duration backoff = coordinator_.backoff;
    LinkDown(now, coordinator_);
    if (welcomed_) {
      lost_ = coordinator_.address;
      tried_.clear();
    } else if (OthersToTry()) {
      // One that is not there says nothing about the next one; only a whole round in vain is a reason to wait.
      coordinator_.backoff = backoff;
      coordinator_.retry_at = now + kNextCandidate;
    }
    welcomed_ = false;
    if (leave_sent_) left_ = true;  // it saw us go, or it is gone itself
  }
  for (auto& [id, link] : servers_) {
    if (link.peer == peer) LinkDown(now, link);
  }
  Advance(now);
}

Session::Link* Session::LinkOf(ServerId server) {
  const auto it = servers_.find(server);
  return it == servers_.end() ? nullptr : &it->second;
}

}  // namespace everstep
