// Memory that other processes of this host read without a copy. It lies in anonymous files (memfd): nothing has a name
// that could be left behind, and what a killed process held goes with the last process that maps it. A file is sealed
// against shrinking before anybody else sees it, so that no reader can be struck by a SIGBUS; readers map it read-only.
//
//   BufferPool pool(bytes, transport::SharedAllocator());
//   MutableBuffer m = pool.Take(n);        // like any other buffer
//   connection.Send({header, std::move(m).Freeze()});   // over shm:// its bytes stay where they are
//
// Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "base/status.h"

namespace everstep::transport {

// One anonymous file, mapped into this process.
class SharedSegment {
 public:
  // Fresh memory, zero, writable here; kResourceExhausted when the system gives none.
  static Result<std::shared_ptr<SharedSegment>> Create(size_t bytes);
  // Another process's segment, for reading; takes `fd` over. kCorrupt when it is smaller than `bytes`, or could still
  // become so.
  static Result<std::shared_ptr<const SharedSegment>> Open(int fd, uint64_t bytes);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  // To be handed to others; -1 for another process's segment.
  int fd() const { return fd_; }
  // Unique within the process, never reused; 0 for another process's segment.
  uint64_t id() const { return id_; }

 private:
  SharedSegment(std::byte* data, size_t size, int fd, uint64_t id) : data_(data), size_(size), fd_(fd), id_(id) {}

  std::byte* const data_;
  const size_t size_;
  const int fd_;
  const uint64_t id_;
};

// For BufferPool: cuts small pieces out of common segments, large ones get their own. Where the system gives no shared
// memory the pieces are ordinary memory (with one warning), and the transport copies them.
BufferPool::Allocator SharedAllocator();

// Where in this process's shared memory `bytes` lie; nothing when they are elsewhere.
struct SharedPlace {
  std::shared_ptr<const SharedSegment> segment;
  uint64_t offset = 0;
};
std::optional<SharedPlace> FindShared(std::span<const std::byte> bytes);

}  // namespace everstep::transport
