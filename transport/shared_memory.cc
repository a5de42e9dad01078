#include "transport/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "base/log.h"

namespace everstep::transport {
namespace {

constexpr size_t kSlabBytes = size_t{32} << 20;
constexpr size_t kAlignment = 64;
constexpr int kWantedSeals = F_SEAL_SHRINK | F_SEAL_GROW;

// Own segments by their first address. Never destroyed: buffers may outlive main().
struct Directory {
  std::shared_mutex mutex;
  std::map<const std::byte*, std::weak_ptr<const SharedSegment>> segments;
};
Directory& TheDirectory() {
  static Directory& directory = *new Directory();
  return directory;
}

Status Failed(const char* what) {
  return {Code::kResourceExhausted, std::string("no shared memory: ") + what + ": " + std::strerror(errno)};
}

// Cuts pieces off the front of a slab; a slab lives as long as any of its pieces.
class Cutter {
 public:
  std::shared_ptr<void> Cut(size_t bytes) {
    if (bytes > kSlabBytes / 4) {
      Result<std::shared_ptr<SharedSegment>> own = SharedSegment::Create(bytes);
      return own.ok() ? Piece(*own, 0) : Ordinary(own.status(), bytes);
    }
    std::lock_guard lock(mutex_);
    if (slab_ == nullptr || slab_->size() - used_ < bytes) {
      Result<std::shared_ptr<SharedSegment>> slab = SharedSegment::Create(kSlabBytes);
      if (!slab.ok()) return Ordinary(slab.status(), bytes);
      slab_ = std::move(*slab);
      used_ = 0;
    }
    const size_t offset = used_;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return Piece(slab_, offset);
  }

 private:
  static std::shared_ptr<void> Piece(const std::shared_ptr<SharedSegment>& segment, size_t offset) {
    return {segment, segment->data() + offset};
  }
  static std::shared_ptr<void> Ordinary(const Status& why, size_t bytes) {
    static std::atomic<bool> said{false};
    if (!said.exchange(true)) log::Warning(why.message() + "; bytes to processes of this host are copied instead");
    auto memory = std::make_shared<MutableBuffer>(bytes);
    std::byte* const data = memory->data();
    return {std::move(memory), data};
  }

  std::mutex mutex_;
  std::shared_ptr<SharedSegment> slab_;
  size_t used_ = 0;
};

}  // namespace

Result<std::shared_ptr<SharedSegment>> SharedSegment::Create(size_t bytes) {
  static std::atomic<uint64_t> next_id{1};
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t size = (std::max<size_t>(bytes, 1) + page - 1) / page * page;
  const int fd = memfd_create("everstep", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return Failed("memfd_create");
  if (ftruncate(fd, static_cast<off_t>(size)) != 0 || fcntl(fd, F_ADD_SEALS, kWantedSeals) != 0) {
    const Status why = Failed("sizing a memfd");
    close(fd);
    return why;
  }
  void* const data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    const Status why = Failed("mmap");
    close(fd);
    return why;
  }
  (void)madvise(data, size, MADV_HUGEPAGE);  // a help where the system allows it
  std::shared_ptr<SharedSegment> segment(new SharedSegment(static_cast<std::byte*>(data), size, fd, next_id++));
  Directory& directory = TheDirectory();
  std::lock_guard lock(directory.mutex);
  directory.segments[segment->data()] = segment;
  return segment;
}

Result<std::shared_ptr<const SharedSegment>> SharedSegment::Open(int fd, uint64_t bytes) {
  const auto refuse = [fd](const std::string& why) {
    close(fd);
    return Status(Code::kCorrupt, "a shared segment " + why);
  };
  struct stat info = {};
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return refuse("that could shrink under its reader");
  if (fstat(fd, &info) != 0 || static_cast<uint64_t>(info.st_size) < bytes || bytes == 0)
    return refuse("that is smaller than was said");
  void* const data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return refuse(std::string("that cannot be mapped: ") + std::strerror(errno));
  close(fd);
  return std::shared_ptr<const SharedSegment>(new SharedSegment(static_cast<std::byte*>(data), bytes, -1, 0));
}

SharedSegment::~SharedSegment() {
  if (id_ != 0) {
    Directory& directory = TheDirectory();
    std::lock_guard lock(directory.mutex);
    directory.segments.erase(data_);
  }
  munmap(data_, size_);
  if (fd_ >= 0) close(fd_);
}

BufferPool::Allocator SharedAllocator() {
  return [cutter = std::make_shared<Cutter>()](size_t bytes) { return cutter->Cut(bytes); };
}

std::optional<SharedPlace> FindShared(std::span<const std::byte> bytes) {
  std::shared_ptr<const SharedSegment> segment;  // outlives the lock: its end takes the lock itself
  Directory& directory = TheDirectory();
  {
    std::shared_lock lock(directory.mutex);
    auto it = directory.segments.upper_bound(bytes.data());
    if (it == directory.segments.begin()) return std::nullopt;
    segment = std::prev(it)->second.lock();
  }
  if (segment == nullptr) return std::nullopt;
  const auto offset = static_cast<uint64_t>(bytes.data() - segment->data());
  if (offset > segment->size() || bytes.size() > segment->size() - offset) return std::nullopt;
  return SharedPlace{std::move(segment), offset};
}

}  // namespace everstep::transport
