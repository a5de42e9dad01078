// One line a fact, on standard error: time, level, who, message. Levels are defined by volume:
//   error    the process or its job cannot go on as asked; once per cause
//   warning  something was refused, lost or degraded; the job goes on
//   info     what an operator wants to have seen: a handful per minute, never per step
//   debug    per step or per message; off unless asked for
// The function that first decides that something is an error logs it, once; callers only pass the Status on.
// Any thread may call any of this.
#pragma once

#include <string>
#include <string_view>

namespace everstep::log {

enum class Level : int { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3, kOff = 4 };

void SetLevel(Level level);
Level GetLevel();
// "debug", "info", "warning", "error" or "off"; false when it is none of them.
bool SetLevel(std::string_view name);

// The name that every line of this process carries, e.g. "ps1".
void SetName(std::string_view name);

void Write(Level level, std::string_view message);

inline void Debug(std::string_view message) {
  if (GetLevel() <= Level::kDebug) Write(Level::kDebug, message);
}
inline void Info(std::string_view message) { Write(Level::kInfo, message); }
inline void Warning(std::string_view message) { Write(Level::kWarning, message); }
inline void Error(std::string_view message) { Write(Level::kError, message); }

}  // namespace everstep::log
