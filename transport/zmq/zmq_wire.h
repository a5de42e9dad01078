// The bytes of the ZeroMQ backend: what stands in front of every message, and the order of kinds on a connection.
//
// A message is one or two ZeroMQ parts (behind the routing id that ROUTER and DEALER handle): the head, 16 bytes of
// prelude followed by the frame's header, and, when the payload is not empty, the payload.
//
//   offset  bytes  field
//   0       3      'E' 'V' 'T'
//   3       1      version of this page, 1
//   4       1      kind
//   5       3      zero
//   8       8      value, little-endian; its meaning depends on the kind
//
//   kind       from      value                                    header / payload
//   1 hello    dialer    bytes of the sender's receive window     -
//   2 welcome  listener  bytes of the sender's receive window     -
//   3 ready    dialer    0                                        -
//   4 data     both      size of the payload                      the frame
//   5 credit   both      payload bytes that were consumed         -
//   6 close    both      the Code of the reason, 0 when in order  text of the reason, may be empty
//
// A dialer says hello, waits for welcome, says ready, and from there on both sides send data and credit in any order
// until one says close, after which it sends nothing. The third step of the handshake proves that the dialer was alive
// after the listener had bound its routing id to a descriptor, so that a hello that outlived its sender never becomes a
// connection. Anything else is a violation: the connection is closed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"

namespace everstep::transport::zeromq {

inline constexpr size_t kPreludeBytes = 16;
inline constexpr uint8_t kWireVersion = 1;
inline constexpr size_t kMaxReasonBytes = 1024;

enum class Kind : uint8_t { kHello = 1, kWelcome = 2, kReady = 3, kData = 4, kCredit = 5, kClose = 6 };

struct Prelude {
  Kind kind = Kind::kHello;
  uint64_t value = 0;
};

std::array<std::byte, kPreludeBytes> EncodePrelude(const Prelude& prelude);

// Of the head of a message from outside; the error says what was sent instead. kCorrupt for what is no prelude,
// kWrongVersion for another version's.
Result<Prelude> DecodePrelude(std::span<const std::byte> head);

// The reason that a peer gave for closing. Codes that no peer of ours gives become kCorrupt.
Status DecodeReason(uint64_t code, std::span<const std::byte> text, const std::string& peer);

}  // namespace everstep::transport::zeromq
