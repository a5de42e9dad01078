// A connected Unix stream socket that carries bytes and descriptors: what is queued goes out in order as the peer takes
// it, what comes in is cut by the reader. The only place of the backend that speaks to the socket. Belongs to one
// thread.
#pragma once

#include <sys/types.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "transport/shared_memory.h"
#include "transport/shm/shm_wire.h"

namespace everstep::transport::shm {

class Socket {
 public:
  // Takes over `fd`, non-blocking.
  explicit Socket(int fd);
  ~Socket();
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  int fd() const { return fd_; }
  // The process at the other end; 0 when it cannot be named from here.
  pid_t peer() const { return peer_; }

  // ---- Out ----

  // Queues a record, the bytes that follow it, and a descriptor with it.
  void Put(const Record& record, std::string_view text, Buffer payload = {},
           std::shared_ptr<const SharedSegment> with = nullptr);
  // Sends what the peer takes now. False when the connection is broken.
  bool Flush();
  bool flushed() const { return out_.empty(); }

  // ---- In ----

  enum class Read { kSome, kNothing, kEnd };
  // Takes in what is there, up to a bound.
  Read Fill();
  // The next whole record is at the front, with its text; its payload (kInline) is in `payload`.
  struct Inbound {
    Record record;
    Buffer text;
    Buffer payload;
    int fd = -1;  // of kSegment; the reader owns it
  };
  // True when there is one. kCorrupt for bytes that make no sense.
  Result<bool> Next(Inbound& inbound);

 private:
  struct Piece {
    std::string small;  // records and short texts, as many as came one after the other
    Buffer large;       // or one long run of bytes
    std::shared_ptr<const SharedSegment> with;
    const void* data() const { return large.empty() ? static_cast<const void*>(small.data()) : large.data(); }
    size_t size() const { return large.empty() ? small.size() : large.size(); }
  };
  // A run of bytes that follows a record, as far as it has come.
  struct Body {
    MutableBuffer bytes;
    size_t have = 0;
    bool whole() const { return have == bytes.size(); }
  };

  Status Check(const Record& record) const;
  void TakeInto(Body& body);
  ssize_t Receive(void* data, size_t size);

  const int fd_;
  pid_t peer_ = 0;
  std::deque<Piece> out_;
  size_t out_done_ = 0;  // bytes of the first piece that are out

  std::vector<std::byte> in_;
  size_t in_begin_ = 0;
  size_t in_end_ = 0;
  std::deque<int> fds_;
  std::optional<Record> record_;  // whose bodies are still coming
  Body text_;
  Body payload_;
};

}  // namespace everstep::transport::shm
