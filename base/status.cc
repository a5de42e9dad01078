#include "base/status.h"

#include <cstdio>
#include <cstdlib>

namespace everstep {

void CheckFailed(const char* file, int line, const char* condition, std::string_view message) {
  std::fprintf(stderr, "everstep: CHECK failed at %s:%d: %s: %.*s\n", file, line, condition,
               static_cast<int>(message.size()), message.data());
  std::abort();
}

std::string_view Name(Code code) {
  switch (code) {
    case Code::kOk: return "ok";
    case Code::kInvalidArgument: return "invalid-argument";
    case Code::kNotFound: return "not-found";
    case Code::kUnavailable: return "unavailable";
    case Code::kDeadlineExceeded: return "deadline-exceeded";
    case Code::kResourceExhausted: return "resource-exhausted";
    case Code::kStale: return "stale";
    case Code::kFuture: return "future";
    case Code::kFenced: return "fenced";
    case Code::kWrongShard: return "wrong-shard";
    case Code::kNonFinite: return "non-finite";
    case Code::kLeaseVoid: return "lease-void";
    case Code::kCorrupt: return "corrupt";
    case Code::kWrongJob: return "wrong-job";
    case Code::kWrongVersion: return "wrong-version";
    case Code::kWrongSpec: return "wrong-spec";
    case Code::kUnauthorized: return "unauthorized";
    case Code::kFinished: return "finished";
    case Code::kCancelled: return "cancelled";
    case Code::kFailed: return "failed";
    case Code::kInternal: return "internal";
  }
  return "unknown";
}

Recovery RecoveryFor(Code code) {
  switch (code) {
    case Code::kOk:
    case Code::kFinished: return Recovery::kNone;
    case Code::kUnavailable:
    case Code::kFuture:
    case Code::kResourceExhausted: return Recovery::kRetry;
    case Code::kWrongShard: return Recovery::kRefreshMapThenRetry;
    case Code::kFenced:
    case Code::kStale:
    case Code::kLeaseVoid: return Recovery::kRejoin;
    default: return Recovery::kGiveUp;
  }
}

int ExitCode(Code code) {
  switch (code) {
    case Code::kOk:
    case Code::kFinished: return 0;
    case Code::kInvalidArgument: return 2;
    case Code::kNotFound: return 3;
    case Code::kUnavailable:
    case Code::kDeadlineExceeded: return 4;
    case Code::kWrongJob:
    case Code::kWrongVersion:
    case Code::kWrongSpec:
    case Code::kUnauthorized:
    case Code::kFenced:
    case Code::kResourceExhausted: return 5;
    case Code::kInternal: return 70;
    default: return 6;
  }
}

std::string Status::ToString() const {
  if (ok()) return "ok";
  return std::string(Name(code_)) + ": " + message_;
}

Status Status::With(std::string_view context) const {
  if (ok()) return *this;
  return {code_, std::string(context) + ": " + message_};
}

}  // namespace everstep
