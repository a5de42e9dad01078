#include "tests/sim/chain_checker.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/checksum.h"

namespace everstep::sim {
namespace {

bool SameBits(const Buffer& a, const Buffer& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

bool Near(double a, double b) { return std::abs(a - b) <= 1e-12 * std::max(1.0, std::abs(b)); }

uint64_t FirstPosition(const Contribution& c) { return c.lease.ranges.empty() ? 0 : c.lease.ranges[0].begin; }

}  // namespace

ChainChecker::ChainChecker(World& world, const Scenario& scenario)
    : world_(world),
      scenario_(scenario),
      layout_(ChunkLayout::Make(scenario.spec, scenario.job.chunk_bytes)),
      reference_(scenario.job.optimizer, layout_),
      chain_(1),
      consumed_(scenario.dataset_size, false) {}

bool ChainChecker::Check(bool condition, const char* promise, const std::string& what) {
  if (!condition) world_.Violate(promise, what);
  return condition;
}

void ChainChecker::Made(const Contribution& contribution, Chunks chunks, bool poisoned) {
  const Key key = KeyOf(contribution);
  const bool added = made_.emplace(key, MadeContribution{contribution, std::move(chunks), poisoned, {}}).second;
  Check(added, "P1", "the same work was given out twice to one life of a worker, as different grants");
  made_on_[contribution.base].push_back(key);
}

bool ChainChecker::poisoned(const Contribution& c) const {
  const auto it = made_.find(KeyOf(c));
  return it != made_.end() && it->second.poisoned;
}

uint64_t ChainChecker::LeftBy(const Seal& seal) const {
  auto left = static_cast<uint64_t>(std::count(consumed_.begin(), consumed_.end(), false));
  for (const Contribution& c : seal.contributors) left -= std::min(left, c.lease.samples());
  return left;
}

bool ChainChecker::PoisonExplains(Version version) const {
  size_t made = 0;
  for (const auto& [key, it] : made_) made += it.poisoned;
  if (made >= 3) return true;
  for (const auto& [digest, seal] : seals_) {
    if (seal.id.step != version) continue;
    if (std::all_of(seal.contributors.begin(), seal.contributors.end(),
                    [&](const Contribution& c) { return poisoned(c); }))
      return true;
  }
  return false;
}

// ---- One seal ----

bool ChainChecker::CheckContributor(const Seal& seal, const Contribution& c) {
  const std::string who = "the contribution of " + Short(c.worker) + " to step " + ToString(seal.id.step);
  const auto it = made_.find(KeyOf(c));
  if (!Check(it != made_.end() && it->second.contribution == c, "P1", who + " was never made by any worker"))
    return false;
  MadeContribution& made = it->second;
  if (!Check(!made.used_in, "P1", who + " is in step " + std::to_string(made.used_in.value_or(0)) + " already"))
    return false;
  if (!Check(!made.poisoned, "P9", who + " holds NaN or Inf")) return false;
  const uint64_t step = seal.id.step.value;
  const uint64_t allowed = scenario_.job.mode == Mode::kSync ? 0 : scenario_.job.staleness;
  if (!Check(c.base.value <= step && step - c.base.value <= allowed, "P6",
             who + " was computed on version " + ToString(c.base) + ", which is too old")) {
    return false;
  }
  if (!Check(chain_[c.base.value].digest == c.base_digest, "P6", who + " was computed on another history"))
    return false;
  if (!Check(!voided_.contains(KeyOf(c)), "P1", who + " was declared void before")) return false;
  made.used_in = step;
  return true;
}

bool ChainChecker::CheckOrder(const Seal& seal) {
  const auto& list = seal.contributors;
  std::set<WorkerId> workers;
  for (size_t i = 0; i < list.size(); ++i) {
    if (!Check(workers.insert(list[i].worker).second, "P1", "one life of a worker is twice in one step")) return false;
    if (i == 0) continue;
    const auto before = std::tuple(FirstPosition(list[i - 1]), list[i - 1].worker, list[i - 1].lease.id);
    const auto after = std::tuple(FirstPosition(list[i]), list[i].worker, list[i].lease.id);
    if (!Check(before < after, "P5", "step " + ToString(seal.id.step) + " is not summed in the order of positions"))
      return false;
  }
  return true;
}

bool ChainChecker::CheckWeights(const Seal& seal) {
  const std::string step = "step " + ToString(seal.id.step);
  if (!Check(seal.weights.size() == seal.contributors.size(), "P5", step + ": one weight a contributor")) return false;
  uint64_t total = 0;
  for (const Contribution& c : seal.contributors) total += c.lease.samples();
  double sum = 0;
  for (size_t i = 0; i < seal.weights.size(); ++i) {
    const Contribution& c = seal.contributors[i];
    double right = 1;
    if (seal.id.step.value == 0 || scenario_.job.mode == Mode::kSsp) {
      right = 1;
    } else if (scenario_.job.mode == Mode::kAsync) {
      right = std::pow(1.0 + static_cast<double>(seal.id.step.value - c.base.value), -scenario_.job.staleness_power);
    } else if (total > 0) {
      right = static_cast<double>(c.lease.samples()) / static_cast<double>(total);
    } else {
      right = 1.0 / static_cast<double>(seal.contributors.size());
    }
    sum += seal.weights[i];
    if (!Check(Near(seal.weights[i], right), "P5",
               step + ": weight " + std::to_string(seal.weights[i]) + ", not " + std::to_string(right))) {
      return false;
    }
  }
  return scenario_.job.mode != Mode::kSync || Check(Near(sum, 1), "P5", step + ": the weights do not sum to 1");
}

bool ChainChecker::CheckRate(const Seal& seal) {
  const uint64_t step = seal.id.step.value;
  if (step == 0) return true;
  const ScheduleOptions& s = scenario_.job.schedule;
  const double x = static_cast<double>(step - 1);
  const auto total = static_cast<double>(s.total_steps);
  const auto warmup = static_cast<double>(s.warmup_steps);
  const auto part = [](double value) { return std::clamp(value, 0.0, 1.0); };
  double shape = 1;
  if (s.kind == ScheduleKind::kStep) {
    shape = std::pow(s.gamma, std::floor(x / static_cast<double>(s.step_size)));
  } else if (s.kind == ScheduleKind::kCosine) {
    const double t = part((x - warmup) / (total - warmup));
    shape = s.final_scale + (1 - s.final_scale) * (1 + std::cos(M_PI * t)) / 2;
  } else if (s.kind == ScheduleKind::kWsd) {
    const auto decay = static_cast<double>(s.decay_steps);
    shape = 1 - (1 - s.final_scale) * part((x - (total - decay)) / decay);
  }
  const double ramp = s.warmup_steps > 0 ? part(static_cast<double>(step) / warmup) : 1;
  const double right = scenario_.job.optimizer.learning_rate * ramp * shape;
  return Check(std::abs(seal.learning_rate - right) <= 1e-12, "P5",
               "step " + std::to_string(step) + " has learning rate " + std::to_string(seal.learning_rate) + ", not " +
                   std::to_string(right)) &&
         Check(seal.clip_norm == scenario_.job.clip_norm, "P5", "another clip norm than the job's");
}

bool ChainChecker::CheckLedger(const Seal& seal) {
  if (seal.id.step.value == 0 || scenario_.dataset_size == 0) return true;
  const std::string step = "step " + ToString(seal.id.step);
  for (const Contribution& c : seal.contributors) {
    if (!Check(
            c.lease.epoch == epoch_, "P4",
            step + " uses samples of epoch " + std::to_string(c.lease.epoch) + " in epoch " + std::to_string(epoch_))) {
      return false;
    }
    for (const SampleRange& range : c.lease.ranges) {
      if (!Check(range.begin < range.end && range.end <= consumed_.size(), "P4",
                 step + " uses samples that do not exist"))
        return false;
      for (uint64_t i = range.begin; i < range.end; ++i) {
        if (!Check(!consumed_[i], "P4",
                   step + " uses sample position " + std::to_string(i) + " of epoch " + std::to_string(epoch_) +
                       " once more")) {
          return false;
        }
        consumed_[i] = true;
      }
    }
  }
  if (std::find(consumed_.begin(), consumed_.end(), false) == consumed_.end()) {
    ++epoch_;
    consumed_.assign(consumed_.size(), false);
  }
  std::vector<bool> said(consumed_.size(), false);
  for (const SampleRange& range : seal.ledger_after.consumed) {
    for (uint64_t i = range.begin; i < range.end && i < said.size(); ++i) said[i] = true;
  }
  return Check(seal.ledger_after.epoch == epoch_ && said == consumed_, "P4",
               step + ": its ledger is not what was consumed");
}

bool ChainChecker::CheckSeal(const std::string& who, Ballot ballot, const Seal& seal) {
  const std::string step = "step " + ToString(seal.id.step);
  if (!Check(SealDigest(seal) == seal.digest, "P1", step + ": the seal's digest is not of its content")) return false;
  if (!Check(seal.previous == chain_.back().digest, "P1", step + " follows another history than the committed one"))
    return false;
  if (!Check(!seal.contributors.empty(), "P1", step + " is made of nothing")) return false;
  for (const Floor& floor : floors_) {
    if (!Check(ballot >= floor.ballot || seal.id.step < floor.version, "P6",
               step + " was decided by " + who + " at ballot " + ToString(ballot) + ", although ballot " +
                   ToString(floor.ballot) + " had recovered at version " + ToString(floor.version))) {
      return false;
    }
  }
  if (!CheckOrder(seal)) return false;
  for (const Contribution& c : seal.contributors) {
    if (!CheckContributor(seal, c)) return false;
  }
  return CheckWeights(seal) && CheckRate(seal) && CheckLedger(seal);
}

// ---- The chain ----

bool ChainChecker::Extend(const std::string& who, Ballot ballot, const Seal& seal, std::optional<double> scale) {
  const uint64_t step = seal.id.step.value;
  const std::string name = "step " + std::to_string(step);
  if (step + 1 < chain_.size()) {
    return Check(chain_[step + 1].digest == seal.digest, "P1",
                 "two different seals of " + name + " are committed; the other one by " + who);
  }
  if (!Check(step + 1 == chain_.size(), "P2", name + " is committed by " + who + ", but the step before it never was"))
    return false;
  if (!CheckSeal(who, ballot, seal)) return false;
  Reference::Step replay{step, {}, seal.weights, seal.learning_rate, seal.clip_norm};
  for (const Contribution& c : seal.contributors) replay.contributions.push_back(&made_.at(KeyOf(c)).chunks);
  Reference::Outcome outcome = reference_.Run(replay, chain_.back().parameters);
  if (!Check(outcome.finite, "P9", name + " leads to NaN or Inf")) return false;
  if (scale && !Check(*scale == outcome.scale, "P1",
                      name + " was committed with clip scale " + std::to_string(*scale) + ", not " +
                          std::to_string(outcome.scale))) {
    return false;
  }
  chain_.push_back({seal.digest, seal.id, std::move(outcome.parameters), {}, {}, epoch_, {}});
  if (scenario_.story == Story::kPowerCuts) {
    chain_.back().reference = std::make_shared<Reference>(reference_);
    chain_.back().consumed = consumed_;
  }
  world_.Mix(seal.digest.value);
  world_.Trace(nullptr, [&] { return "==== version " + std::to_string(step + 1) + " is committed (" + who + ")"; });
  return true;
}

void ChainChecker::Decided(const std::string& who, Ballot ballot, const Seal& seal, double scale) {
  Extend(who, ballot, seal, scale);
}

void ChainChecker::Recovered(const std::string& who, Ballot ballot, Version version) {
  Check(version == this->version(), "P2",
        who + " recovered at version " + ToString(version) + ", but version " + ToString(this->version()) +
            " is committed");
  floors_.push_back({ballot, version});
}

void ChainChecker::GoBackTo(const std::string& who, Version version, const Seal& seal) {
  if (!Check(version.value > 0 && version <= this->version() && chain_[version.value].digest == seal.digest, "P2",
             who + " goes on from version " + ToString(version) + " of a history that never was"))
    return;
  world_.Trace(nullptr, [&] { return "==== the job goes back to version " + ToString(version); });
  ++history_;
  void_.insert(void_.end(), chain_.begin() + static_cast<long>(version.value) + 1, chain_.end());
  chain_.resize(version.value + 1);
  reference_.Restore(*chain_.back().reference);
  epoch_ = chain_.back().epoch;
  consumed_ = chain_.back().consumed;
  // Nobody who decided anything of what is lost is left; the versions are made anew.
  floors_.clear();
}

void ChainChecker::Configured(const ShardMap& map) {
  for (const ServerEntry& server : map.servers) maps_[map.ballot].insert(server.incarnation);
}

// Rule R10: the replicas of one map, not older than the seal, must all have prepared this very seal.
bool ChainChecker::PreparedEverywhere(const Seal& seal) const {
  const auto prepared = prepared_.find(seal.digest);
  for (auto it = maps_.lower_bound(seal.id.ballot); it != maps_.end(); ++it) {
    if (it->second.size() == 1) return true;  // one server: its flip is the decision
    if (prepared == prepared_.end()) continue;
    if (std::includes(prepared->second.begin(), prepared->second.end(), it->second.begin(), it->second.end()))
      return true;
  }
  return false;
}

void ChainChecker::Published(const std::string& who, Incarnation server, Version version, Digest digest,
                             const Chunks& chunks, size_t slots) {
  const bool fresh = !newest_.contains(server);
  Version& newest = newest_[server];
  // A server that was filled from another begins at that one's version.
  if (!Check(version.value == newest.value + 1 || (fresh && version <= this->version()), "P10",
             who + " jumps from version " + ToString(newest) + " to " + ToString(version)))
    return;
  newest = version;
  const auto seal = seals_.find(digest);
  if (!Check(seal != seals_.end() && Next(seal->second.id.step) == version, "P1",
             who + " publishes what no seal stands for"))
    return;
  Check(PreparedEverywhere(seal->second), "P1",
        who + " publishes version " + ToString(version) + " before every server has its part of the step prepared");
  if (!Extend(who, seal->second.id.ballot, seal->second, std::nullopt)) return;
  const Link& link = chain_[version.value];
  for (const auto& [id, bytes] : chunks) {
    if (!Check(SameBits(bytes, link.parameters.at(id)), "P1",
               who + ": chunk " + ToString(id) + " of version " + ToString(version) +
                   " is not what its contributions make")) {
      return;
    }
  }
  CheckSlots(who, version, slots);
}

// A server keeps no more contributions than can still count.
void ChainChecker::CheckSlots(const std::string& who, Version version, size_t slots) {
  const uint64_t allowed = scenario_.job.mode == Mode::kSync ? 0 : scenario_.job.staleness;
  size_t open = 0;
  for (auto it = made_on_.lower_bound({version.value > allowed ? version.value - allowed : 0}); it != made_on_.end();
       ++it) {
    for (const Key& key : it->second) {
      const auto& used = made_.at(key).used_in;
      open += !used || *used >= version.value;
    }
  }
  Check(slots <= open, "P7",
        who + " keeps " + std::to_string(slots) + " contributions; only " + std::to_string(open) + " can still count");
}

void ChainChecker::Read(const std::string& who, Version version, const Chunks& parameters, uint64_t history) {
  const auto is = [&](const Link& link) {
    return parameters.size() == link.parameters.size() &&
           std::all_of(parameters.begin(), parameters.end(),
                       [&](const auto& chunk) { return SameBits(chunk.second, link.parameters.at(chunk.first)); });
  };
  if (history < history_ && std::any_of(void_.begin(), void_.end(), is)) return;
  if (!Check(version <= this->version(), "P10",
             who + " reads version " + ToString(version) + ", which is not committed"))
    return;
  if (version.value == 0) return;
  const Link& link = chain_[version.value];
  if (!Check(parameters.size() == layout_->size(), "P10", who + " reads a part of the model")) return;
  for (const auto& [id, bytes] : parameters) {
    Check(SameBits(bytes, link.parameters.at(id)), "P10",
          who + ": chunk " + ToString(id) + " is not of version " + ToString(version));
  }
}

void ChainChecker::AtEnd(Version version) {
  const JobSpec& job = scenario_.job;
  if (!Check(version == this->version(), "P2", "the job ended at another version than the newest")) return;
  if (job.max_steps > 0 && training_steps() == job.max_steps) return;
  Check(scenario_.dataset_size > 0 && epoch_ == job.epochs, "P4",
        "the job ended in epoch " + std::to_string(epoch_) + " of " + std::to_string(job.epochs) +
            " with samples left over");
  for (const auto& [server, newest] : newest_) {
    if (maps_.empty() || !maps_.rbegin()->second.contains(server)) continue;
    Check(newest == version, "P1", "server " + ToString(server) + " ended at version " + ToString(newest));
  }
}

uint64_t ChainChecker::Fingerprint() const {
  uint64_t hash = chain_.back().digest.value;
  for (const auto& [id, bytes] : chain_.back().parameters) hash = Mix64(hash ^ Checksum64(bytes.span()));
  return hash;
}

}  // namespace everstep::sim
