#include "base/interval_set.h"

#include <algorithm>
#include <iterator>

namespace everstep {

void IntervalSet::Add(uint64_t begin, uint64_t end) {
  if (begin >= end) return;
  auto it = ranges_.lower_bound(begin);
  if (it != ranges_.begin() && std::prev(it)->second >= begin) --it;
  while (it != ranges_.end() && it->first <= end) {
    begin = std::min(begin, it->first);
    end = std::max(end, it->second);
    size_ -= it->second - it->first;
    it = ranges_.erase(it);
  }
  ranges_.emplace(begin, end);
  size_ += end - begin;
}

void IntervalSet::Remove(uint64_t begin, uint64_t end) {
  if (begin >= end) return;
  auto it = ranges_.lower_bound(begin);
  if (it != ranges_.begin() && std::prev(it)->second > begin) --it;
  while (it != ranges_.end() && it->first < end) {
    const Range old = *it;
    size_ -= old.second - old.first;
    it = ranges_.erase(it);
    if (old.first < begin) {
      ranges_.emplace(old.first, begin);
      size_ += begin - old.first;
    }
    if (old.second > end) {
      ranges_.emplace(end, old.second);
      size_ += old.second - end;
    }
  }
}

bool IntervalSet::Overlaps(uint64_t begin, uint64_t end) const {
  if (begin >= end) return false;
  auto it = ranges_.lower_bound(begin);
  if (it != ranges_.end() && it->first < end) return true;
  return it != ranges_.begin() && std::prev(it)->second > begin;
}

bool IntervalSet::Contains(uint64_t begin, uint64_t end) const {
  if (begin >= end) return true;
  auto it = ranges_.upper_bound(begin);
  return it != ranges_.begin() && std::prev(it)->second >= end;
}

IntervalSet IntervalSet::ComplementBelow(uint64_t bound) const {
  IntervalSet result;
  uint64_t at = 0;
  for (const auto& [begin, end] : ranges_) {
    if (begin >= bound) break;
    result.Add(at, begin);
    at = end;
  }
  result.Add(at, bound);
  return result;
}

std::vector<IntervalSet::Range> IntervalSet::TakeLowest(uint64_t count, size_t max_ranges) {
  std::vector<Range> taken;
  while (count > 0 && !ranges_.empty() && taken.size() < max_ranges) {
    const auto [begin, end] = *ranges_.begin();
    const uint64_t take = std::min(count, end - begin);
    taken.emplace_back(begin, begin + take);
    Remove(begin, begin + take);
    count -= take;
  }
  return taken;
}

}  // namespace everstep
