#include "schema/messages.h"

#include <cstring>
#include <type_traits>

#include "base/checksum.h"

namespace everstep {
namespace {

// Appends values to a byte string in one fixed order, independent of the wire's own layout: a digest must not change
// when a field is added to a table.
class Bytes {
 public:
  void Add(uint64_t value) { text_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void Add(double value) {
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    Add(bits);
  }
  void Add(const std::vector<SampleRange>& ranges) {
    Add(uint64_t{ranges.size()});
    for (const SampleRange& range : ranges) {
      Add(range.begin);
      Add(range.end);
    }
  }
  void Add(const Contribution& c) {
    Add(c.worker.value);
    Add(c.base.value);
    Add(c.base_digest.value);
    Add(c.lease.id.value);
    Add(c.lease.epoch);
    Add(c.lease.ranges);
  }
  std::string_view text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace

uint64_t Lease::samples() const {
  uint64_t sum = 0;
  for (const SampleRange& range : ranges) sum += range.size();
  return sum;
}

Digest SealDigest(const Seal& seal) {
  Bytes bytes;
  bytes.Add(seal.id.ballot.value);
  bytes.Add(seal.id.step.value);
  bytes.Add(uint64_t{seal.contributors.size()});
  for (const Contribution& c : seal.contributors) bytes.Add(c);
  for (double weight : seal.weights) bytes.Add(weight);
  bytes.Add(seal.learning_rate);
  bytes.Add(seal.clip_norm);
  bytes.Add(seal.ledger_after.epoch);
  bytes.Add(seal.ledger_after.consumed);
  bytes.Add(seal.previous.value);
  return {Checksum64(bytes.text())};
}

std::string_view Name(const Body& body) {
  static constexpr std::string_view kNames[] = {
      "Hello",          "Welcome",        "Refused",       "MapUpdate",   "Ready",      "Grant",        "Heartbeat",
      "HeartbeatAck",   "Report",         "Fenced",        "Leave",       "LeaveAck",   "Finish",       "JobFailed",
      "Push",           "PushRefused",    "Pull",          "Missing",     "ChunkData",  "PullRefused",  "WrongShard",
      "Promise",        "Promised",       "Staged",        "SealStep",    "Prepared",   "NonFinite",    "Commit",
      "Applied",        "StaleBallot",    "StatusRequest", "StatusReply", "Snapshot",   "SnapshotDone", "ReplicateSum",
      "WantSums",       "ReceiveChunks",  "WantChunks",    "History",     "ChunkState", "Copied",       "Drained",
      "NotCoordinator", "ControlRequest", "ControlReply"};
  static_assert(std::size(kNames) == std::variant_size_v<Body>);
  return kNames[body.index()];
}

}  // namespace everstep
