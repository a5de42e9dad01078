#include "ps/ledger.h"

#include "base/limits.h"
#include "base/plant.h"

namespace everstep {
namespace {

IntervalSet ToSet(const std::vector<SampleRange>& ranges) {
  IntervalSet set;
  for (const SampleRange& range : ranges) set.Add(range.begin, range.end);
  return set;
}

std::vector<SampleRange> ToRanges(const std::vector<IntervalSet::Range>& ranges) {
  std::vector<SampleRange> out;
  out.reserve(ranges.size());
  for (const auto& [begin, end] : ranges) out.push_back({begin, end});
  return out;
}

Status Void(const std::string& why) { return {Code::kLeaseVoid, "lease refused: " + why}; }

}  // namespace

Ledger::Ledger(uint64_t dataset_size, uint64_t epochs) : dataset_size_(dataset_size), epochs_(epochs) {}

void Ledger::Restore(const LedgerState& state) {
  committed_ = state;
  preview_.reset();
  lent_.clear();
}

bool Ledger::IsComplete(const LedgerState& state) const {
  return dataset_size_ > 0 && epochs_ > 0 && state.epoch >= epochs_;
}

IntervalSet Ledger::FreeSet() const {
  const LedgerState& view = View();
  if (IsComplete(view)) return {};
  IntervalSet taken = ToSet(view.consumed);
  if (auto it = lent_.find(view.epoch); it != lent_.end() && !EVERSTEP_PLANTED("lease-check")) {
    for (const auto& [begin, end] : it->second.ranges()) taken.Add(begin, end);
  }
  return taken.ComplementBelow(dataset_size_);
}

uint64_t Ledger::Free() const { return dataset_size_ == 0 ? UINT64_MAX : FreeSet().size(); }

Lease Ledger::Lend(LeaseId id, uint64_t samples) {
  Lease lease{id, View().epoch, {}};
  if (dataset_size_ == 0) return lease;
  IntervalSet free = FreeSet();
  lease.ranges = ToRanges(free.TakeLowest(samples, limits::kMaxLeaseRanges));
  for (const SampleRange& range : lease.ranges) LentIn(lease.epoch).Add(range.begin, range.end);
  return lease;
}

Status Ledger::Adopt(const Lease& lease) {
  if (dataset_size_ == 0) return Status::Ok();
  const LedgerState& view = View();
  if (lease.epoch != view.epoch)
    return Void("it is of epoch " + std::to_string(lease.epoch) + ", now is " + std::to_string(view.epoch));
  const IntervalSet free = FreeSet();
  for (const SampleRange& range : lease.ranges) {
    if (!free.Contains(range.begin, range.end)) return Void("part of it is consumed or lent");
  }
  for (const SampleRange& range : lease.ranges) LentIn(lease.epoch).Add(range.begin, range.end);
  return Status::Ok();
}

void Ledger::Return(const Lease& lease) {
  auto it = lent_.find(lease.epoch);
  if (it == lent_.end()) return;
  for (const SampleRange& range : lease.ranges) it->second.Remove(range.begin, range.end);
}

Status Ledger::Check(const std::vector<const Lease*>& leases) const {
  if (dataset_size_ == 0 || EVERSTEP_PLANTED("lease-check")) return Status::Ok();
  IntervalSet taken = ToSet(committed_.consumed);
  for (const Lease* lease : leases) {
    if (lease->epoch != committed_.epoch) return Void("it is of another epoch");
    for (const SampleRange& range : lease->ranges) {
      if (range.end > dataset_size_) return Void("it reaches beyond the dataset");
      if (taken.Overlaps(range.begin, range.end)) return Void("part of it is consumed already");
      taken.Add(range.begin, range.end);
    }
  }
  return Status::Ok();
}

LedgerState Ledger::After(const std::vector<const Lease*>& leases) const {
  if (dataset_size_ == 0) return committed_;
  IntervalSet consumed = ToSet(committed_.consumed);
  for (const Lease* lease : leases) {
    for (const SampleRange& range : lease->ranges) consumed.Add(range.begin, range.end);
  }
  LedgerState after{committed_.epoch, ToRanges(consumed.ranges())};
  if (consumed.Contains(0, dataset_size_) && consumed.size() == dataset_size_) after = {committed_.epoch + 1, {}};
  return after;
}

void Ledger::ForgetLentBefore(uint64_t epoch) { lent_.erase(lent_.begin(), lent_.lower_bound(epoch)); }

void Ledger::Commit(const LedgerState& state) {
  committed_ = state;
  preview_.reset();
  ForgetLentBefore(state.epoch);
  // What is consumed is not lent any more.
  if (auto it = lent_.find(state.epoch); it != lent_.end()) {
    for (const SampleRange& range : state.consumed) it->second.Remove(range.begin, range.end);
  }
}

uint64_t Ledger::consumed() const {
  uint64_t sum = committed_.epoch * dataset_size_;
  for (const SampleRange& range : committed_.consumed) sum += range.size();
  return sum;
}

}  // namespace everstep
