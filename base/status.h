// Status and Result<T>: how every fallible call of Everstep answers. Standard library only.
//
// A Status is a code, which programs act on, and a message, which people read: it says what happened and what to do
// next. The function that first decides that something is an error writes the message; callers add context with
// Status::With and pass it on. Nothing from outside the process (a peer, a file, a flag) may end in CHECK.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/check.h"

namespace everstep {

// Codes travel on the wire (schema/wire.fbs): append, never renumber.
enum class Code : uint8_t {
  kOk = 0,
  kInvalidArgument = 1,    // a flag, file or call is wrong; retrying cannot help
  kNotFound = 2,           // a file, dataset or name does not exist
  kUnavailable = 3,        // the peer cannot be reached now
  kDeadlineExceeded = 4,   // waited as long as allowed; the message names who or what was missing
  kResourceExhausted = 5,  // a bound was reached (queue, slots, message size, members)
  kStale = 6,              // the sender speaks of a step or ballot that is over
  kFuture = 7,             // the sender speaks of a step that has not come
  kFenced = 8,             // this incarnation was excluded; a new one may join
  kWrongShard = 9,         // the chunk lives elsewhere; refresh the map
  kNonFinite = 10,         // NaN or Inf in a contribution; it was refused whole
  kLeaseVoid = 11,         // the samples of this contribution are consumed or lent elsewhere
  kCorrupt = 12,           // bytes that cannot be what they claim to be
  kWrongJob = 13,          // the peer runs another job
  kWrongVersion = 14,      // the peer speaks another protocol version
  kWrongSpec = 15,         // another model (parameter spec) or dataset than the job's
  kUnauthorized = 16,      // not allowed, e.g. an address beyond loopback without --insecure
  kFinished = 17,          // the job is complete; nothing is left to do
  kCancelled = 18,         // ended on request
  kFailed = 19,            // the job cannot go on (e.g. a server without replica is gone)
  kInternal = 20,          // a bug of ours
};

std::string_view Name(Code code);

// What a caller can do about a code.
enum class Recovery : uint8_t { kNone, kRetry, kRefreshMapThenRetry, kRejoin, kGiveUp };
Recovery RecoveryFor(Code code);

// The process exit code that the programs use for a code (docs/operations.md): 0 ok or finished, 2 usage,
// 3 not found, 4 unreachable or deadline, 5 refused by the job, 6 the job failed, 70 internal.
int ExitCode(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {
    EVERSTEP_CHECK(code != Code::kOk, "an error needs a code");
  }

  static Status Ok() { return {}; }

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

  // "deadline-exceeded: no answer from tcp://..." or "ok".
  std::string ToString() const;

  // The same error with "context: " in front of its message.
  Status With(std::string_view context) const;

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

// A value or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}        // NOLINT: implicit by design
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {  // NOLINT
    EVERSTEP_CHECK(!std::get<1>(state_).ok(), "a Result without a value needs an error");
  }

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  Status status() const { return ok() ? Status::Ok() : std::get<1>(state_); }

  // REQUIRES: ok(). Otherwise the process ends with the error's text, so that examples may be short.
  T& value() & {
    Require();
    return std::get<0>(state_);
  }
  const T& value() const& {
    Require();
    return std::get<0>(state_);
  }
  T&& value() && {
    Require();
    return std::get<0>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  void Require() const {
    if (!ok()) CheckFailed(__FILE__, __LINE__, "Result::value()", std::get<1>(state_).ToString());
  }

  std::variant<T, Status> state_;
};

#define EVERSTEP_CONCAT_INNER(a, b) a##b
#define EVERSTEP_CONCAT(a, b) EVERSTEP_CONCAT_INNER(a, b)

// Returns the error of a Status expression to the caller.
#define EVERSTEP_RETURN_IF_ERROR(expression)                                      \
  do {                                                                            \
    if (::everstep::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

// EVERSTEP_ASSIGN(auto x, SomeResult()): x is the value, or the error is returned to the caller.
#define EVERSTEP_ASSIGN(target, expression)                                                         \
  auto EVERSTEP_CONCAT(result_, __LINE__) = (expression);                                           \
  if (!EVERSTEP_CONCAT(result_, __LINE__).ok()) return EVERSTEP_CONCAT(result_, __LINE__).status(); \
  target = std::move(EVERSTEP_CONCAT(result_, __LINE__)).value()

}  // namespace everstep
