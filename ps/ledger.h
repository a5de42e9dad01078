// CORE. Which samples are consumed, lent and free (promise P4). Owned by the coordinator; pure, single-threaded.
//
// Only a committed seal consumes. Lending is soft: it keeps two workers from computing the same samples, but what makes
// a sample count once is Check() at seal time (rule R15), not the lending. An epoch ends only when every position of it
// is consumed; the next one starts then and not before.
//
// A seal that is out but not yet committed is seen through Preview(): lending goes on from the state after it, so that
// workers can prefetch. When that seal is dropped the preview is forgotten; leases taken from it may turn out void,
// which Check() finds.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/interval_set.h"
#include "base/status.h"
#include "schema/messages.h"

namespace everstep {

class Ledger {
 public:
  // `dataset_size` 0: the job has no dataset, leases are empty and never run out. `epochs` 0: no end.
  Ledger(uint64_t dataset_size, uint64_t epochs);

  // What is consumed for good.
  const LedgerState& committed() const { return committed_; }
  // Replaces everything by a committed state, e.g. after a recovery; lending is forgotten.
  void Restore(const LedgerState& state);

  // Lends up to `samples` of the lowest free positions. A lease without ranges means that none are free now.
  Lease Lend(LeaseId id, uint64_t samples);
  // Lends exactly this lease (a worker brought it back after a coordinator's death). kLeaseVoid when part of it is
  // consumed, lent or outside the epoch.
  Status Adopt(const Lease& lease);
  // The lease is not being worked on any more; what of it is not consumed is free again.
  void Return(const Lease& lease);

  // Positions that Lend could hand out now.
  uint64_t Free() const;
  // Every epoch is consumed, in the preview if there is one.
  bool Complete() const { return IsComplete(View()); }

  // kLeaseVoid unless all these leases belong to the committed epoch, lie inside it, and overlap neither what is
  // consumed nor each other.
  Status Check(const std::vector<const Lease*>& leases) const;
  // The committed state plus these leases. REQUIRES: Check(leases).ok().
  LedgerState After(const std::vector<const Lease*>& leases) const;

  void Preview(const LedgerState& after_seal) { preview_ = after_seal; }
  void DropPreview() { preview_.reset(); }
  // The seal whose ledger this is was committed.
  void Commit(const LedgerState& state);

  uint64_t dataset_size() const { return dataset_size_; }
  // Consumed positions over all epochs (committed).
  uint64_t consumed() const;

 private:
  const LedgerState& View() const { return preview_ ? *preview_ : committed_; }
  bool IsComplete(const LedgerState& state) const;
  IntervalSet FreeSet() const;
  IntervalSet& LentIn(uint64_t epoch) { return lent_[epoch]; }
  void ForgetLentBefore(uint64_t epoch);

  uint64_t dataset_size_;
  uint64_t epochs_;
  LedgerState committed_;
  std::optional<LedgerState> preview_;
  std::map<uint64_t, IntervalSet> lent_;  // by epoch
};

}  // namespace everstep
