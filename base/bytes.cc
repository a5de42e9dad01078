#include "base/bytes.h"

#include <bit>
#include <cstdlib>
#include <map>
#include <mutex>

namespace everstep {
namespace {

constexpr size_t kAlignment = 64;

size_t RoundUp(size_t size) { return (std::max<size_t>(size, 1) + kAlignment - 1) / kAlignment * kAlignment; }

std::shared_ptr<void> Allocate(size_t size) {
  void* memory = std::aligned_alloc(kAlignment, RoundUp(size));
  EVERSTEP_CHECK(memory != nullptr, "out of memory");
  return {memory, std::free};
}

}  // namespace

Buffer Buffer::Copy(const void* data, size_t size) {
  MutableBuffer copy(size);
  if (size > 0) std::memcpy(copy.data(), data, size);
  return std::move(copy).Freeze();
}

Buffer Buffer::Slice(size_t offset, size_t size) const {
  EVERSTEP_CHECK(offset <= size_ && size <= size_ - offset, "slice outside the buffer");
  return {owner_, data_ + offset, size};
}

MutableBuffer::MutableBuffer(size_t size) : size_(size) {
  owner_ = Allocate(size);
  data_ = static_cast<std::byte*>(owner_.get());
}

struct BufferPool::Shelf {
  std::mutex mutex;
  Allocator allocator;
  size_t max_idle_bytes = 0;
  size_t idle_bytes = 0;
  std::multimap<size_t, std::shared_ptr<void>> idle;  // by exact rounded size: chunks come in few sizes

  void Return(std::shared_ptr<void> memory, size_t rounded) {
    std::lock_guard lock(mutex);
    if (idle_bytes + rounded > max_idle_bytes) return;
    idle.emplace(rounded, std::move(memory));
    idle_bytes += rounded;
  }
};

BufferPool::BufferPool(size_t max_idle_bytes, Allocator allocator) : shelf_(std::make_shared<Shelf>()) {
  shelf_->max_idle_bytes = max_idle_bytes;
  shelf_->allocator = allocator ? std::move(allocator) : Allocate;
}

MutableBuffer BufferPool::Take(size_t size) {
  const size_t rounded = RoundUp(size);
  std::shared_ptr<void> memory;
  {
    std::lock_guard lock(shelf_->mutex);
    if (auto it = shelf_->idle.find(rounded); it != shelf_->idle.end()) {
      memory = std::move(it->second);
      shelf_->idle.erase(it);
      shelf_->idle_bytes -= rounded;
    }
  }
  if (memory == nullptr) memory = shelf_->allocator(rounded);
  void* const data = memory.get();
  std::shared_ptr<void> owner(data, [shelf = shelf_, memory = std::move(memory), rounded](void*) mutable {
    shelf->Return(std::move(memory), rounded);
  });
  return {std::move(owner), data, size};
}

size_t BufferPool::idle_bytes() const {
  std::lock_guard lock(shelf_->mutex);
  return shelf_->idle_bytes;
}

}  // namespace everstep
