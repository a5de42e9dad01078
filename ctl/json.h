// Reading JSON that came from outside: nothing here throws, and what is absent or of another type is the fallback.
#pragma once

#include <cctype>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace everstep::ctl {

using nlohmann::json;

// A discarded value (is_discarded()) when `text` is no JSON.
inline json ParseJson(std::string_view text) { return json::parse(text, nullptr, false); }

// The member of an object; a null value when there is none.
inline const json& At(const json& object, const char* key) {
  static const json kNull;
  if (!object.is_object()) return kNull;
  const auto it = object.find(key);
  return it == object.end() ? kNull : *it;
}

inline double Number(const json& object, const char* key, double fallback = 0) {
  const json& value = At(object, key);
  return value.is_number() ? value.get<double>() : fallback;
}

inline uint64_t Count(const json& object, const char* key, uint64_t fallback = 0) {
  const json& value = At(object, key);
  const bool whole = value.is_number_unsigned() || (value.is_number_integer() && value.get<int64_t>() >= 0);
  return whole ? value.get<uint64_t>() : fallback;
}

inline std::string Text(const json& object, const char* key, std::string fallback = {}) {
  const json& value = At(object, key);
  return value.is_string() ? value.get<std::string>() : fallback;
}

inline bool Truth(const json& object, const char* key) {
  const json& value = At(object, key);
  return value.is_boolean() && value.get<bool>();
}

// For a terminal: names and messages come from other processes and may hold control characters.
inline std::string Printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text;
}

}  // namespace everstep::ctl
