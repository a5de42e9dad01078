#include "checkpoint/manifest.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>

#include "base/checksum.h"
#include "base/limits.h"
#include "checkpoint/manifest_fields.h"
#include "checkpoint/store.h"

namespace everstep {
namespace {

constexpr std::string_view kHead = "{\"checksum\":\"";
constexpr std::string_view kMiddle = "\",\"manifest\":";
constexpr std::string_view kTail = "}\n";
constexpr size_t kHexDigits = 16;

Status Corrupt(const std::string& what) { return {Code::kCorrupt, "the manifest " + what}; }

}  // namespace

uint64_t Manifest::bytes() const {
  uint64_t sum = 0;
  for (const ManifestFile& file : files) sum += file.bytes;
  return sum;
}

std::string CheckpointLabel(Version version, Incarnation holder, Ballot ballot) {
  char text[80];
  std::snprintf(text, sizeof text, "v%012" PRIu64 "-%08" PRIx64 "-%" PRIu64, version.value, holder.value & 0xffffffff,
                ballot.value);
  return text;
}

// v<12 or more digits>-<8 hex>-<digits> and then "-psN..." or ".manifest...".
bool ParseCheckpointName(std::string_view name, std::string* label, Version* version) {
  const auto run = [&](size_t from, std::string_view allowed) {
    const size_t end = name.find_first_not_of(allowed, from);
    return (end == std::string_view::npos ? name.size() : end) - from;
  };
  constexpr std::string_view kDigits = "0123456789";
  if (name.empty() || name[0] != 'v') return false;
  const size_t digits = run(1, kDigits);
  if (digits < 12 || digits > 19) return false;
  size_t at = 1 + digits;
  if (at >= name.size() || name[at] != '-' || run(at + 1, "0123456789abcdef") != 8) return false;
  at += 9;
  if (at >= name.size() || name[at] != '-') return false;
  const size_t ballot = run(at + 1, kDigits);
  if (ballot == 0) return false;
  at += 1 + ballot;
  const std::string_view rest = name.substr(at);
  if (rest != kManifestSuffix && !(rest.starts_with("-ps") && rest.ends_with(kShardSuffix))) return false;
  *label = std::string(name.substr(0, at));
  version->value = 0;
  for (size_t i = 1; i <= digits; ++i) version->value = version->value * 10 + static_cast<uint64_t>(name[i] - '0');
  return true;
}

std::string ManifestName(std::string_view label) { return std::string(label) + std::string(kManifestSuffix); }

std::string ShardFileName(std::string_view label, ServerId server) {
  return std::string(label) + "-ps" + std::to_string(server.value) + std::string(kShardSuffix);
}

std::string ChunkTensorName(ChunkId chunk, std::string_view array) {
  return "chunk." + std::to_string(chunk.value) + "." + std::string(array);
}

Status Validate(const Manifest& m) {
  EVERSTEP_RETURN_IF_ERROR(Validate(m.spec));
  EVERSTEP_RETURN_IF_ERROR(Validate(m.parameters, m.spec.chunk_bytes));
  if (m.version.value == 0 || Next(m.seal.id.step) != m.version) return Corrupt("holds a seal of another version");
  if (SealDigest(m.seal) != m.seal.digest) return Corrupt("holds a seal whose digest does not match it");
  if (m.seal.weights.size() != m.seal.contributors.size()) return Corrupt("holds a seal without its weights");
  if (!std::isfinite(m.scale)) return Corrupt("holds an update scale that is no number");
  if (m.arrays.empty() || m.arrays.front() != kParametersArray) return Corrupt("names no parameters");
  for (const std::string& array : m.arrays) {
    if (!IsStoreName(array) || std::count(m.arrays.begin(), m.arrays.end(), array) != 1)
      return Corrupt("names an impossible array");
  }
  const auto layout = ChunkLayout::Make(m.parameters, m.spec.chunk_bytes);
  std::vector<bool> seen(layout->size(), false);
  for (const ManifestFile& file : m.files) {
    std::string label;
    Version version;
    if (!IsStoreName(file.name) || !ParseCheckpointName(file.name, &label, &version) || label != m.label ||
        version != m.version || !file.name.ends_with(kShardSuffix)) {
      return Corrupt("names the file \"" + file.name + "\", which is not of label " + m.label);
    }
    for (ChunkId chunk : file.chunks) {
      if (chunk.value >= seen.size()) return Corrupt("names a chunk that the model does not have");
      if (seen[chunk.value]) return Corrupt("has chunk " + ToString(chunk) + " in two files");
      seen[chunk.value] = true;
    }
  }
  const auto missing = std::find(seen.begin(), seen.end(), false);
  if (missing != seen.end())
    return Corrupt("has chunk " + std::to_string(missing - seen.begin()) + " in none of its files");
  return Status::Ok();
}

std::string FormatManifest(const Manifest& manifest) {
  const std::string inner = manifest_fields::ToJson(manifest);
  std::string text(kHead);
  text += manifest_fields::Hex(Checksum64(inner));
  text += kMiddle;
  text += inner;
  text += kTail;
  return text;
}

Result<Manifest> ParseManifest(std::string_view text) {
  const size_t around = kHead.size() + kHexDigits + kMiddle.size() + kTail.size();
  if (text.size() <= around) return Corrupt("is cut off");
  const std::string_view inner = text.substr(kHead.size() + kHexDigits + kMiddle.size(), text.size() - around);
  if (!text.starts_with(kHead) || text.substr(kHead.size() + kHexDigits, kMiddle.size()) != kMiddle ||
      !text.ends_with(kTail)) {
    return Corrupt("does not begin or end like one");
  }
  if (text.substr(kHead.size(), kHexDigits) != manifest_fields::Hex(Checksum64(inner)))
    return Corrupt("does not match its checksum");
  EVERSTEP_ASSIGN(Manifest manifest, manifest_fields::FromJson(inner));
  if (Status valid = Validate(manifest); !valid.ok()) return Status(Code::kCorrupt, valid.message());
  return manifest;
}

}  // namespace everstep
