#include "base/bytes.h"

#include <bit>
#include <cstdlib>
#include <map>
#include <mutex>

namespace everstep {
namespace {

constexpr size_t kAlignment = 64;

size_t RoundUp(size_t size) { return (std::max<size_t>(size, 1) + kAlignment - 1) / kAlignment * kAlignment; }

void* Allocate(size_t size) {
  void* memory = std::aligned_alloc(kAlignment, RoundUp(size));
  EVERSTEP_CHECK(memory != nullptr, "out of memory");
  return memory;
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
  owner_ = std::shared_ptr<void>(Allocate(size), std::free);
  data_ = static_cast<std::byte*>(owner_.get());
}

struct BufferPool::Shelf {
  std::mutex mutex;
  size_t max_idle_bytes = 0;
  size_t idle_bytes = 0;
  std::multimap<size_t, void*> idle;  // by exact rounded size: chunks come in few sizes

  ~Shelf() {
    for (auto& [size, memory] : idle) std::free(memory);
  }

  void Return(void* memory, size_t rounded) {
    {
      std::lock_guard lock(mutex);
      if (idle_bytes + rounded <= max_idle_bytes) {
        idle.emplace(rounded, memory);
        idle_bytes += rounded;
        return;
      }
    }
    std::free(memory);
  }
};

BufferPool::BufferPool(size_t max_idle_bytes) : shelf_(std::make_shared<Shelf>()) {
  shelf_->max_idle_bytes = max_idle_bytes;
}

MutableBuffer BufferPool::Take(size_t size) {
  const size_t rounded = RoundUp(size);
  void* memory = nullptr;
  {
    std::lock_guard lock(shelf_->mutex);
    if (auto it = shelf_->idle.find(rounded); it != shelf_->idle.end()) {
      memory = it->second;
      shelf_->idle.erase(it);
      shelf_->idle_bytes -= rounded;
    }
  }
  if (memory == nullptr) memory = Allocate(rounded);
  std::shared_ptr<void> owner(memory, [shelf = shelf_, rounded](void* p) { shelf->Return(p, rounded); });
  return {std::move(owner), memory, size};
}

size_t BufferPool::idle_bytes() const {
  std::lock_guard lock(shelf_->mutex);
  return shelf_->idle_bytes;
}

}  // namespace everstep
