// Ids that cannot be mixed up: StrongId<struct Tag, Rep> compares, hashes and prints, and does nothing else.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace everstep {

template <typename Tag, typename Rep>
struct StrongId {
  Rep value{};

  friend constexpr auto operator<=>(const StrongId&, const StrongId&) = default;
};

template <typename Tag, typename Rep>
std::string ToString(StrongId<Tag, Rep> id) {
  return std::to_string(id.value);
}

}  // namespace everstep

template <typename Tag, typename Rep>
struct std::hash<everstep::StrongId<Tag, Rep>> {
  size_t operator()(const everstep::StrongId<Tag, Rep>& id) const { return std::hash<Rep>()(id.value); }
};
