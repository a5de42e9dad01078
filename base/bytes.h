// Memory that travels: Buffer is an immutable, shared view of bytes whose owner is kept alive by whoever still needs
// it (a slot, a socket's queue, a reader). MutableBuffer is the one writer before that. A buffer that is under way can
// not be written again, because its pool gets it back only when the last Buffer that names it is gone.
//
//   MutableBuffer m = pool->Take(n);   // aligned to 64 bytes, contents unspecified
//   fill(m.data(), m.size());
//   Buffer b = std::move(m).Freeze();  // from here on nobody writes it
//
// Buffer may be copied and dropped on any thread. MutableBuffer belongs to one thread at a time. BufferPool is
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/check.h"

namespace everstep {

class Buffer {
 public:
  Buffer() = default;
  // Views `size` bytes at `data`, which live as long as `owner` does.
  Buffer(std::shared_ptr<const void> owner, const void* data, size_t size)
      : owner_(std::move(owner)), data_(static_cast<const std::byte*>(data)), size_(size) {}

  static Buffer Copy(const void* data, size_t size);
  static Buffer Copy(std::string_view text) { return Copy(text.data(), text.size()); }

  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::span<const std::byte> span() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

  // A part of this buffer, sharing its owner. REQUIRES: offset + size <= this->size().
  Buffer Slice(size_t offset, size_t size) const;

  // How many Buffers share the owner (0 for a buffer without one).
  long use_count() const { return owner_.use_count(); }

 private:
  std::shared_ptr<const void> owner_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

class MutableBuffer {
 public:
  MutableBuffer() = default;
  // Fresh memory, aligned to 64 bytes, contents unspecified.
  explicit MutableBuffer(size_t size);
  MutableBuffer(std::shared_ptr<void> owner, void* data, size_t size)
      : owner_(std::move(owner)), data_(static_cast<std::byte*>(data)), size_(size) {}

  MutableBuffer(MutableBuffer&&) = default;
  MutableBuffer& operator=(MutableBuffer&&) = default;
  MutableBuffer(const MutableBuffer&) = delete;
  MutableBuffer& operator=(const MutableBuffer&) = delete;

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }

  // Gives up the right to write. The bytes do not move.
  Buffer Freeze() && { return {std::shared_ptr<const void>(std::move(owner_)), data_, size_}; }

 private:
  std::shared_ptr<void> owner_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Recycles memory by size class, so that no steady state touches fresh pages (ten times the cost of a copy,
// docs/performance.md). Memory returns when the last Buffer on it is gone; buffers may outlive the pool.
class BufferPool {
 public:
  // Fresh memory of that many bytes, aligned to 64, which lives as long as the pointer. Any thread.
  using Allocator = std::function<std::shared_ptr<void>(size_t bytes)>;

  // Keeps at most `max_idle_bytes` for reuse; what is over goes back to where it came from. The default allocator is
  // the heap; transport/shared_memory.h has another.
  explicit BufferPool(size_t max_idle_bytes = size_t{1} << 40, Allocator allocator = {});

  MutableBuffer Take(size_t size);

  size_t idle_bytes() const;

 private:
  struct Shelf;
  std::shared_ptr<Shelf> shelf_;
};

}  // namespace everstep
