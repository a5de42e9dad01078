#include "discovery/etcd_client.h"

#include <httplib.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>

namespace everstep {
namespace {

using nlohmann::json;

// ---- Base64 (RFC 4648), in which the gateway speaks of bytes ----

constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::string ToBase64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t word = 0;
    for (size_t k = 0; k < 3; ++k) word = word << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0u);
    const size_t digits = std::min<size_t>(bytes.size() - i, 3) + 1;
    for (size_t k = 0; k < 4; ++k) text += k < digits ? kAlphabet[word >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

std::optional<std::string> FromBase64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::string bytes;
  for (size_t i = 0; i < text.size(); i += 4) {
    uint32_t word = 0;
    size_t digits = 0;
    for (size_t k = 0; k < 4; ++k) {
      const size_t digit = kAlphabet.find(text[i + k]);
      const bool padding = text[i + k] == '=' && k >= 2 && i + 4 == text.size();
      if (digit == std::string_view::npos && !padding) return std::nullopt;
      if (!padding && digits < k) return std::nullopt;  // a digit behind the padding
      if (!padding) ++digits;
      word = word << 6 | (padding ? 0u : static_cast<uint32_t>(digit));
    }
    for (size_t k = 0; k + 1 < digits; ++k) bytes += static_cast<char>(word >> (16 - 8 * k) & 255);
  }
  return bytes;
}

// ---- Answers ----

// 64-bit numbers come as text, and not at all when they are 0.
std::optional<uint64_t> NumberIn(const json& object, const char* name) {
  const auto it = object.find(name);
  if (it == object.end()) return 0;
  if (it->is_number_unsigned()) return it->get<uint64_t>();
  if (!it->is_string()) return std::nullopt;
  const auto& text = it->get_ref<const std::string&>();
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

Status Odd(const std::string& body) { return {Code::kCorrupt, "etcd's answer is not one: " + body.substr(0, 200)}; }

Result<json> ParseObject(const std::string& body) {
  json parsed = json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return Odd(body);
  return parsed;
}

Result<std::vector<EtcdClient::Entry>> EntriesIn(const std::string& body) {
  EVERSTEP_ASSIGN(const json answer, ParseObject(body));
  std::vector<EtcdClient::Entry> entries;
  const auto kvs = answer.find("kvs");
  if (kvs == answer.end()) return entries;
  if (!kvs->is_array()) return Odd(body);
  for (const json& kv : *kvs) {
    if (!kv.is_object()) return Odd(body);
    const auto text = [&](const char* name) -> std::optional<std::string> {
      const auto it = kv.find(name);
      if (it == kv.end()) return "";
      if (!it->is_string()) return std::nullopt;
      return FromBase64(it->get_ref<const std::string&>());
    };
    const auto key = text("key");
    const auto value = text("value");
    const auto revision = NumberIn(kv, "mod_revision");
    const auto lease = NumberIn(kv, "lease");
    if (!key || !value || !revision || *revision == 0 || !lease) return Odd(body);
    entries.push_back({*key, *value, *revision, {*lease}});
  }
  return entries;
}

}  // namespace

class EtcdClient::Endpoint {
 public:
  Endpoint(std::string url, Duration timeout) : url_(std::move(url)), http_(url_) {
    const auto us = std::chrono::duration_cast<std::chrono::microseconds>(timeout);
    http_.set_connection_timeout(us.count() / 1'000'000, us.count() % 1'000'000);
    http_.set_read_timeout(us.count() / 1'000'000, us.count() % 1'000'000);
    http_.set_write_timeout(us.count() / 1'000'000, us.count() % 1'000'000);
    http_.set_keep_alive(true);
    http_.set_tcp_nodelay(true);
  }

  struct Answer {
    Status status;
    std::string body;
    bool reached = true;  // it may have done what was asked, though the answer is lost
  };
  Answer Post(const std::string& path, const std::string& body) {
    const httplib::Result result = http_.Post(path, body, "application/json");
    if (!result) {
      const bool reached = result.error() != httplib::Error::Connection;
      return {{Code::kUnavailable, url_ + ": " + httplib::to_string(result.error())}, {}, reached};
    }
    if (result->status == 503 || result->status == 504)
      return {{Code::kUnavailable, url_ + ": " + result->body.substr(0, 200)}, {}, true};
    if (result->status != 200) {
      return {{Code::kFailed,
               "etcd at " + url_ + " answered " + std::to_string(result->status) + ": " + result->body.substr(0, 200)},
              {},
              true};
    }
    return {Status::Ok(), result->body, true};
  }

 private:
  const std::string url_;
  httplib::Client http_;
};

EtcdClient::EtcdClient(std::string urls, std::vector<std::unique_ptr<Endpoint>> endpoints)
    : urls_(std::move(urls)), endpoints_(std::move(endpoints)) {}
EtcdClient::~EtcdClient() = default;

Result<std::unique_ptr<EtcdClient>> EtcdClient::Make(const std::string& urls, Duration timeout) {
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  for (size_t begin = 0; begin <= urls.size();) {
    const size_t end = std::min(urls.find(',', begin), urls.size());
    const std::string url = urls.substr(begin, end - begin);
    begin = end + 1;
    const size_t scheme = url.starts_with("https://") ? 8 : 7;
    const std::string_view place = std::string_view(url).substr(std::min(scheme, url.size()));
    const size_t colon = place.rfind(':');
    const bool port = colon != std::string_view::npos && colon > 0 && colon + 1 < place.size() &&
                      place.find_first_not_of("0123456789", colon + 1) == std::string_view::npos;
    if ((scheme == 7 && !url.starts_with("http://")) || !port || place.find('/') != std::string_view::npos) {
      return Status(Code::kInvalidArgument,
                    "etcd's address must be http[s]://HOST:PORT, several separated by commas; got '" + url + "'");
    }
    endpoints.push_back(std::make_unique<Endpoint>(url, timeout));
  }
  return std::unique_ptr<EtcdClient>(new EtcdClient(urls, std::move(endpoints)));
}

Result<std::string> EtcdClient::Post(const std::string& path, const std::string& body) {
  std::lock_guard lock(mutex_);
  std::string errors;
  for (size_t i = 0; i < endpoints_.size(); ++i) {
    Endpoint::Answer answer = endpoints_[current_]->Post(path, body);
    if (answer.status.ok()) return std::move(answer.body);
    if (answer.status.code() != Code::kUnavailable) return answer.status;
    errors += (errors.empty() ? "" : "; ") + answer.status.message();
    current_ = (current_ + 1) % endpoints_.size();
    if (answer.reached) break;
  }
  return Status(Code::kUnavailable, "etcd does not answer (" + errors + ")");
}

Result<std::optional<EtcdClient::Entry>> EtcdClient::Get(const std::string& key) {
  EVERSTEP_ASSIGN(const std::string body, Post("/v3/kv/range", json{{"key", ToBase64(key)}}.dump()));
  EVERSTEP_ASSIGN(std::vector<Entry> entries, EntriesIn(body));
  if (entries.empty()) return std::optional<Entry>();
  return std::optional(std::move(entries[0]));
}

Result<std::vector<EtcdClient::Entry>> EtcdClient::List(const std::string& prefix) {
  EVERSTEP_CHECK(!prefix.empty(), "a prefix is wanted");
  std::string end = prefix;
  ++end.back();  // our keys are ASCII: the first key behind all that begin with the prefix
  const json request{{"key", ToBase64(prefix)}, {"range_end", ToBase64(end)}};
  EVERSTEP_ASSIGN(const std::string body, Post("/v3/kv/range", request.dump()));
  return EntriesIn(body);
}

Status EtcdClient::Put(const std::string& key, const std::string& value, LeaseId lease) {
  const json request{{"key", ToBase64(key)}, {"value", ToBase64(value)}, {"lease", std::to_string(lease.value)}};
  return Post("/v3/kv/put", request.dump()).status();
}

Result<bool> EtcdClient::PutIf(const std::string& key, const std::string& value, uint64_t revision, LeaseId lease) {
  const std::string name = ToBase64(key);
  const json unchanged{
      {"key", name}, {"target", "MOD"}, {"result", "EQUAL"}, {"mod_revision", std::to_string(revision)}};
  const json put{{"key", name}, {"value", ToBase64(value)}, {"lease", std::to_string(lease.value)}};
  const json request{{"compare", json::array({unchanged})}, {"success", json::array({json{{"requestPut", put}}})}};
  EVERSTEP_ASSIGN(const std::string body, Post("/v3/kv/txn", request.dump()));
  EVERSTEP_ASSIGN(const json answer, ParseObject(body));
  const auto succeeded = answer.find("succeeded");
  if (succeeded == answer.end()) return false;
  if (!succeeded->is_boolean()) return Odd(body);
  return succeeded->get<bool>();
}

Status EtcdClient::Delete(const std::string& key) {
  return Post("/v3/kv/deleterange", json{{"key", ToBase64(key)}}.dump()).status();
}

Result<EtcdClient::LeaseId> EtcdClient::Grant(Duration life) {
  const auto seconds = std::max<int64_t>(1, std::chrono::ceil<std::chrono::seconds>(life).count());
  EVERSTEP_ASSIGN(const std::string body, Post("/v3/lease/grant", json{{"TTL", std::to_string(seconds)}}.dump()));
  EVERSTEP_ASSIGN(const json answer, ParseObject(body));
  const auto id = NumberIn(answer, "ID");
  if (!id || *id == 0) return Odd(body);
  return LeaseId{*id};
}

Result<bool> EtcdClient::KeepAlive(LeaseId lease) {
  EVERSTEP_ASSIGN(const std::string body,
                  Post("/v3/lease/keepalive", json{{"ID", std::to_string(lease.value)}}.dump()));
  EVERSTEP_ASSIGN(const json answer, ParseObject(body));
  const auto result = answer.find("result");
  if (result == answer.end() || !result->is_object()) return Odd(body);
  const auto seconds = NumberIn(*result, "TTL");
  if (!seconds) return Odd(body);
  return *seconds > 0;
}

Status EtcdClient::Revoke(LeaseId lease) {
  return Post("/v3/lease/revoke", json{{"ID", std::to_string(lease.value)}}.dump()).status();
}

}  // namespace everstep
