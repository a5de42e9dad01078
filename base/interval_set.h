// A set of uint64 positions kept as sorted, disjoint, non-touching ranges [begin, end). Small when what it holds is
// mostly contiguous, as consumed samples are.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace everstep {

class IntervalSet {
 public:
  using Range = std::pair<uint64_t, uint64_t>;

  // Adds [begin, end); parts already present stay. Empty ranges are nothing.
  void Add(uint64_t begin, uint64_t end);
  void Remove(uint64_t begin, uint64_t end);

  bool Overlaps(uint64_t begin, uint64_t end) const;
  bool Contains(uint64_t begin, uint64_t end) const;

  uint64_t size() const { return size_; }  // positions, not ranges
  bool empty() const { return size_ == 0; }
  size_t range_count() const { return ranges_.size(); }
  std::vector<Range> ranges() const { return {ranges_.begin(), ranges_.end()}; }

  // The positions of [0, bound) that are not in the set.
  IntervalSet ComplementBelow(uint64_t bound) const;
  // Removes the lowest `count` positions (or all there are) and returns them, at most `max_ranges` ranges.
  std::vector<Range> TakeLowest(uint64_t count, size_t max_ranges);

  friend bool operator==(const IntervalSet& a, const IntervalSet& b) { return a.ranges_ == b.ranges_; }

 private:
  std::map<uint64_t, uint64_t> ranges_;  // begin -> end
  uint64_t size_ = 0;
};

}  // namespace everstep
