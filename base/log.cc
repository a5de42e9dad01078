#include "base/log.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <mutex>

namespace everstep::log {
namespace {

std::atomic<int> g_level{static_cast<int>(Level::kInfo)};
std::mutex g_mutex;

std::string& ProcessName() {
  static std::string name;
  return name;
}

constexpr const char* kNames[] = {"debug", "info", "warning", "error", "off"};

}  // namespace

void SetLevel(Level level) { g_level = static_cast<int>(level); }

Level GetLevel() { return static_cast<Level>(g_level.load(std::memory_order_relaxed)); }

bool SetLevel(std::string_view name) {
  for (int i = 0; i < 5; ++i) {
    if (name == kNames[i]) {
      g_level = i;
      return true;
    }
  }
  return false;
}

void SetName(std::string_view name) {
  std::lock_guard lock(g_mutex);
  ProcessName() = name;
}

void Write(Level level, std::string_view message) {
  if (level < GetLevel()) return;
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm local{};
  localtime_r(&seconds, &local);
  char stamp[16];
  std::strftime(stamp, sizeof stamp, "%H:%M:%S", &local);
  std::lock_guard lock(g_mutex);
  std::fprintf(stderr, "%s.%03d %-7s %s%s%.*s\n", stamp, static_cast<int>(ms), kNames[static_cast<int>(level)],
               ProcessName().c_str(), ProcessName().empty() ? "" : ": ", static_cast<int>(message.size()),
               message.data());
}

}  // namespace everstep::log
