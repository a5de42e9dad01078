// What goes through the socket of a shm:// connection: fixed records in the machine's own byte order (both ends are on
// one host), each followed by the bytes that it announces.
//
//   dialer  -> kHello{magic, version, window}
//   listener-> kWelcome{magic, version, window}          or kClose{why}
//   both    -> kInline{header bytes, payload bytes} header payload
//              kSegment{id, bytes} + descriptor           before the first frame that names the segment
//              kShared{header bytes, segment, offset, payload bytes} header
//              kRelease{8 * n} n numbers                  of kShared frames received, counted from 0 on each direction:
//                                                         their payloads are no longer read
//              kForget{segment}                           no frame will name it again
//              kCredit{bytes}                             may be sent again
//              kClose{code} text                          the last frame was before this; releases still follow
#pragma once

#include <cstddef>
#include <cstdint>

namespace everstep::transport::shm {

inline constexpr uint64_t kMagic = 0x6d68735f70657473ull;  // "step_shm"
inline constexpr uint64_t kVersion = 1;

enum class Kind : uint32_t {
  kHello = 1,
  kWelcome = 2,
  kInline = 3,
  kSegment = 4,
  kShared = 5,
  kRelease = 6,
  kForget = 7,
  kCredit = 8,
  kClose = 9,
};

struct Record {
  Kind kind = Kind::kClose;
  uint32_t text_bytes = 0;  // that follow: header, numbers or text
  uint64_t a = 0;           // payload bytes; magic; segment; credit; code
  uint64_t b = 0;           // version; segment's bytes; offset
  uint64_t c = 0;           // window; payload bytes of kShared
};
static_assert(sizeof(Record) == 32);

inline constexpr size_t kMaxReasonBytes = 1024;
// Payloads up to here go through the socket: naming and releasing them would cost more than the copy.
inline constexpr size_t kInlineBytes = 2048;

}  // namespace everstep::transport::shm
