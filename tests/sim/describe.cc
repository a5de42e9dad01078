// Messages in one line, for traces.
#include "tests/sim/world.h"

namespace everstep::sim {
namespace {

std::string Text(const Lease& lease) {
  std::string text = "lease " + std::to_string(lease.id.value & 0xffffff);
  for (const SampleRange& r : lease.ranges) {
    text += " " + std::to_string(lease.epoch) + ":[" + std::to_string(r.begin) + "," + std::to_string(r.end) + ")";
  }
  return text;
}

std::string Text(const Contribution& c) {
  return Short(c.worker) + " of version " + ToString(c.base) + ", " + Text(c.lease);
}

std::string Text(const SealId& id) { return "step " + ToString(id.step) + " at ballot " + ToString(id.ballot); }

std::string Hex(Digest digest) {
  char text[20];
  std::snprintf(text, sizeof text, "%08llx", static_cast<unsigned long long>(digest.value >> 32));
  return text;
}

std::string Text(const Seal& seal) {
  std::string text = Text(seal.id) + " digest " + Hex(seal.digest) + " {";
  for (size_t i = 0; i < seal.contributors.size(); ++i) text += (i ? "; " : "") + Text(seal.contributors[i]);
  return text + "}";
}

struct Detail {
  std::string operator()(const Hello& m) const {
    std::string text = m.name + (m.role == PeerRole::kWorker ? " life " + Short(m.worker) : "");
    if (m.version.value > 0) text += " holds version " + ToString(m.version);
    if (m.lease) text += ", " + Text(*m.lease);
    return text;
  }
  std::string operator()(const Welcome& m) const {
    return "version " + ToString(m.version) + (m.map ? ", with a map" : "");
  }
  std::string operator()(const Refused& m) const { return m.message; }
  std::string operator()(const MapUpdate& m) const { return "ballot " + ToString(m.map.ballot); }
  std::string operator()(const Ready& m) const {
    return Short(m.worker) + " version " + ToString(m.version) +
           (m.void_lease.value ? " void lease " + std::to_string(m.void_lease.value & 0xffffff) : "");
  }
  std::string operator()(const Grant& m) const {
    return "number " + std::to_string(m.number & 0xffffffff) + " version " + ToString(m.version) + ", " + Text(m.lease);
  }
  std::string operator()(const Heartbeat& m) const { return m.worker.value ? Short(m.worker) : ""; }
  std::string operator()(const Report& m) const { return Short(m.worker) + (m.evaluation ? " evaluation" : ""); }
  std::string operator()(const Fenced& m) const { return Short(m.worker) + ": " + m.message; }
  std::string operator()(const Leave& m) const { return Short(m.worker); }
  std::string operator()(const Finish& m) const {
    return "version " + ToString(m.version) + (m.evaluate ? ", evaluate" : "");
  }
  std::string operator()(const JobFailed& m) const { return m.message; }
  std::string operator()(const Push& m) const { return "chunk " + ToString(m.chunk) + " " + Text(m.contribution); }
  std::string operator()(const PushRefused& m) const { return std::string(Name(m.code)) + " " + Text(m.contribution); }
  std::string operator()(const Pull& m) const {
    return std::string(m.exact ? "exactly " : "at least ") + ToString(m.at_least) +
           (m.pending ? ", pending " + Text(*m.pending) : "");
  }
  std::string operator()(const Missing& m) const {
    return std::to_string(m.chunks.size()) + " chunks of " + Text(m.contribution);
  }
  std::string operator()(const ChunkData& m) const {
    return "chunk " + ToString(m.chunk) + " version " + ToString(m.version) + " digest " + Hex(m.digest);
  }
  std::string operator()(const PullRefused& m) const { return m.message; }
  std::string operator()(const WrongShard& m) const { return "ballot " + ToString(m.map.ballot); }
  std::string operator()(const Promise& m) const { return "map of ballot " + ToString(m.map.ballot); }
  std::string operator()(const Promised& m) const {
    return "server " + ToString(m.server) + " version " + ToString(m.version) +
           (m.prepared ? ", prepared " + Text(*m.prepared) : "") + ", holds " + std::to_string(m.held.size());
  }
  std::string operator()(const Staged& m) const { return "server " + ToString(m.server) + " " + Text(m.contribution); }
  std::string operator()(const SealStep& m) const { return Text(m.seal) + (m.collapsed ? " collapsed" : ""); }
  std::string operator()(const Prepared& m) const { return "server " + ToString(m.server) + " " + Text(m.seal); }
  std::string operator()(const NonFinite& m) const { return "server " + ToString(m.server) + " " + Text(m.seal); }
  std::string operator()(const Commit& m) const { return Text(m.seal) + " digest " + Hex(m.digest); }
  std::string operator()(const Applied& m) const { return "server " + ToString(m.server) + " " + Text(m.seal); }
  std::string operator()(const StaleBallot& m) const {
    return "server " + ToString(m.server) + " promised " + ToString(m.promised) + " version " + ToString(m.version);
  }
  template <typename T>
  std::string operator()(const T&) const {
    return "";
  }
};

}  // namespace

std::string Describe(const Envelope& envelope) {
  return std::string(Name(envelope.body)) + "@" + ToString(envelope.ballot) + " " + std::visit(Detail(), envelope.body);
}

}  // namespace everstep::sim
