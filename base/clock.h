// Time as the cores see it: nanoseconds on a steady clock whose zero means nothing. Cores are handed `now`; only
// drivers ask a clock.
#pragma once

#include <chrono>
#include <cstdint>

namespace everstep {

using Duration = std::chrono::nanoseconds;

// A point on the steady clock. An own type, so that a Time is never mixed with a Duration.
struct Time {
  int64_t ns = 0;

  static constexpr Time Never() { return {INT64_MAX}; }
  friend constexpr auto operator<=>(Time, Time) = default;
  friend constexpr Time operator+(Time t, Duration d) { return t == Never() ? t : Time{t.ns + d.count()}; }
  friend constexpr Time operator-(Time t, Duration d) { return {t.ns - d.count()}; }
  friend constexpr Duration operator-(Time a, Time b) { return Duration(a.ns - b.ns); }
};

inline Time SteadyNow() {
  return {std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch()).count()};
}

inline double Milliseconds(Duration d) { return std::chrono::duration<double, std::milli>(d).count(); }
inline double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace everstep
