// Checks what the committed steps are made of. An independent model of the job: one chain of seals, each contribution
// and each sample at most once, parameters replayed from the very contributions that the workers made
// (promises P1, P2, P4, P5, P6, P9, P10). Knows nothing of how the cores came to their decisions.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "schema/messages.h"
#include "tests/sim/reference.h"
#include "tests/sim/scenarios.h"
#include "tests/sim/world.h"

namespace everstep::sim {

class ChainChecker {
 public:
  using Key = std::tuple<WorkerId, Version, LeaseId>;
  static Key KeyOf(const Contribution& c) { return {c.worker, c.base, c.lease.id}; }

  ChainChecker(World& world, const Scenario& scenario);

  // ---- What happens ----
  void Made(const Contribution& contribution, Chunks chunks, bool poisoned);
  // Its worker was told that it is in no step.
  void Voided(const Contribution& c) { voided_.insert(KeyOf(c)); }
  void SawSeal(const Seal& seal) { seals_.emplace(seal.digest, seal); }
  void SawPrepared(Incarnation server, Digest digest) { prepared_[digest].insert(server); }
  // This map is in the record from now on.
  void Configured(const ShardMap& map);
  // A coordinator says, at this ballot, that the step is committed. The seal may be of an older one: rolled forward.
  void Decided(const std::string& who, Ballot ballot, const Seal& seal, double scale);
  // A coordinator finished its recovery: from now on no older ballot may decide anything from this version on.
  void Recovered(const std::string& who, Ballot ballot, Version version);
  void Published(const std::string& who, Incarnation server, Version version, Digest digest, const Chunks& chunks,
                 size_t slots);
  // All servers lost their memory at once; the job goes on from this version, made by this seal.
  void GoBackTo(const std::string& who, Version version, const Seal& seal);
  // A worker computes on, or ends with, these parameters.
  // `history` is the one in which its life began: until it is told, it may work on what power cuts have made void.
  void Read(const std::string& who, Version version, const Chunks& parameters, uint64_t history);
  uint64_t history() const { return history_; }  // so often the job has gone back
  void AtEnd(Version version);

  // ---- What is known ----
  const std::shared_ptr<const ChunkLayout>& layout() const { return layout_; }
  uint64_t training_steps() const { return chain_.size() < 2 ? 0 : chain_.size() - 2; }
  Version version() const { return {chain_.size() - 1}; }
  Digest DigestOf(Version version) const {
    return version < Version{chain_.size()} ? chain_[version.value].digest : Digest{};
  }
  // Whether NaNs that workers really made explain that the job was given up at this version.
  bool PoisonExplains(Version version) const;
  bool poisoned(const Contribution& c) const;
  // Samples of the epoch that are neither consumed nor in the seal.
  uint64_t LeftBy(const Seal& seal) const;
  // All bits of the newest version, for comparing runs.
  uint64_t Fingerprint() const;

 private:
  bool PreparedEverywhere(const Seal& seal) const;
  struct MadeContribution {
    Contribution contribution;
    Chunks chunks;
    bool poisoned = false;
    std::optional<uint64_t> used_in;  // step
  };
  struct Link {
    Digest digest;
    SealId made_by;
    Chunks parameters;
    std::set<ServerId> published;
    // As they are after this version, where the job may have to go back to it.
    std::shared_ptr<const Reference> reference;
    uint64_t epoch = 0;
    std::vector<bool> consumed;
  };
  struct Floor {
    Ballot ballot;
    Version version;
  };

  bool Check(bool condition, const char* promise, const std::string& what);
  bool CheckSeal(const std::string& who, Ballot ballot, const Seal& seal);
  bool CheckContributor(const Seal& seal, const Contribution& c);
  bool CheckWeights(const Seal& seal);
  bool CheckOrder(const Seal& seal);
  bool CheckLedger(const Seal& seal);
  bool CheckRate(const Seal& seal);
  // The seal is the next link of the chain, or the one that is there already.
  bool Extend(const std::string& who, Ballot ballot, const Seal& seal, std::optional<double> scale);
  void CheckSlots(const std::string& who, Version version, size_t slots);

  World& world_;
  const Scenario& scenario_;
  const std::shared_ptr<const ChunkLayout> layout_;
  Reference reference_;
  std::map<Key, MadeContribution> made_;
  std::map<Version, std::vector<Key>> made_on_;
  std::set<Key> voided_;
  std::map<Digest, Seal> seals_;
  std::map<Digest, std::set<Incarnation>> prepared_;
  std::map<Ballot, std::set<Incarnation>> maps_;
  std::vector<Link> chain_;  // by version
  std::vector<Link> void_;   // were committed and lost with the servers' memory
  uint64_t history_ = 0;
  std::vector<Floor> floors_;
  std::map<Incarnation, Version> newest_;
  uint64_t epoch_ = 0;
  std::vector<bool> consumed_;  // of epoch_
};

}  // namespace everstep::sim
