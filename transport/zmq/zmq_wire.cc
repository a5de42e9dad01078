#include "transport/zmq/zmq_wire.h"

#include <algorithm>
#include <cstring>

namespace everstep::transport::zeromq {
namespace {

constexpr std::array<std::byte, 3> kMagic = {std::byte{'E'}, std::byte{'V'}, std::byte{'T'}};

}  // namespace

std::array<std::byte, kPreludeBytes> EncodePrelude(const Prelude& prelude) {
  std::array<std::byte, kPreludeBytes> bytes{};
  std::copy(kMagic.begin(), kMagic.end(), bytes.begin());
  bytes[3] = std::byte{kWireVersion};
  bytes[4] = static_cast<std::byte>(prelude.kind);
  for (size_t i = 0; i < 8; ++i) bytes[8 + i] = static_cast<std::byte>(prelude.value >> (8 * i));
  return bytes;
}

Result<Prelude> DecodePrelude(std::span<const std::byte> head) {
  if (head.size() < kPreludeBytes || !std::equal(kMagic.begin(), kMagic.end(), head.begin())) {
    return Status(Code::kCorrupt, "bytes that are no message of this transport");
  }
  if (head[3] != std::byte{kWireVersion}) {
    return Status(Code::kWrongVersion, "a message of transport version " +
                                           std::to_string(std::to_integer<int>(head[3])) + " where version " +
                                           std::to_string(kWireVersion) +
                                           " is spoken; use the same release on both sides");
  }
  const auto kind = std::to_integer<uint8_t>(head[4]);
  if (kind < static_cast<uint8_t>(Kind::kHello) || kind > static_cast<uint8_t>(Kind::kClose) ||
      head[5] != std::byte{0} || head[6] != std::byte{0} || head[7] != std::byte{0}) {
    return Status(Code::kCorrupt, "a message of unknown kind");
  }
  Prelude prelude{static_cast<Kind>(kind), 0};
  for (size_t i = 0; i < 8; ++i) prelude.value |= std::to_integer<uint64_t>(head[8 + i]) << (8 * i);
  return prelude;
}

Status DecodeReason(uint64_t code, std::span<const std::byte> text, const std::string& peer) {
  if (code == 0) return Status::Ok();
  Code reason = Code::kCorrupt;
  for (const Code known : {Code::kUnavailable, Code::kWrongVersion}) {
    if (code == static_cast<uint64_t>(known)) reason = known;
  }
  std::string said;
  for (const std::byte byte : text.first(std::min(text.size(), kMaxReasonBytes))) {
    const char c = std::to_integer<char>(byte);
    said += c >= 0x20 && c < 0x7f ? c : '?';  // it ends up in logs and terminals
  }
  return {reason, peer + " closed the connection: " + (said.empty() ? "no reason given" : said)};
}

}  // namespace everstep::transport::zeromq
