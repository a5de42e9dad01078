// Buffers: what is under way cannot be written again (case 40).
#include "base/bytes.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "base/random.h"
#include "tests/support/seed.h"

namespace everstep {
namespace {

void Fill(MutableBuffer& buffer, uint64_t key) {
  for (size_t i = 0; i < buffer.size(); ++i) buffer.data()[i] = static_cast<std::byte>(Mix64(key + i));
}

bool Holds(const Buffer& buffer, uint64_t key) {
  for (size_t i = 0; i < buffer.size(); ++i) {
    if (buffer.data()[i] != static_cast<std::byte>(Mix64(key + i))) return false;
  }
  return true;
}

TEST(Buffer, CopyIsIndependentOfItsSource) {
  std::string text = "parameters";
  const Buffer copy = Buffer::Copy(text);
  text[0] = 'X';
  EXPECT_EQ(copy.text(), "parameters");
  EXPECT_TRUE(Buffer::Copy("").empty());
}

TEST(Buffer, ASliceKeepsTheOwnerAlive) {
  auto owner = std::make_shared<std::string>("0123456789");
  std::weak_ptr<std::string> watch = owner;
  const char* data = owner->data();
  Buffer slice = Buffer(std::move(owner), data, 10).Slice(3, 4).Slice(1, 2);
  EXPECT_EQ(slice.text(), "45");
  EXPECT_FALSE(watch.expired());
  slice = {};
  EXPECT_TRUE(watch.expired());
}

TEST(Buffer, SlicesReachTheEndAndNotBeyond) {
  const Buffer buffer = Buffer::Copy("abc");
  EXPECT_EQ(buffer.Slice(3, 0).size(), 0u);
  EXPECT_EQ(buffer.Slice(0, 3).text(), "abc");
}

TEST(BufferDeathTest, ASliceOutsideIsOurBug) {
  const Buffer buffer = Buffer::Copy("abc");
  EXPECT_DEATH(buffer.Slice(4, 0), "slice outside");
  EXPECT_DEATH(buffer.Slice(1, 3), "slice outside");
  EXPECT_DEATH(buffer.Slice(1, SIZE_MAX), "slice outside");
}

TEST(MutableBuffer, FreezingDoesNotMoveTheBytes) {
  MutableBuffer buffer(100);
  Fill(buffer, 1);
  const std::byte* data = buffer.data();
  const Buffer frozen = std::move(buffer).Freeze();
  EXPECT_EQ(frozen.data(), data);
  EXPECT_EQ(frozen.size(), 100u);
  EXPECT_TRUE(Holds(frozen, 1));
}

TEST(BufferPool, MemoryIsAlignedForAnySize) {
  BufferPool pool;
  for (const size_t size : {0, 1, 63, 64, 65, 1000, 1 << 20}) {
    MutableBuffer buffer = pool.Take(size);
    EXPECT_EQ(buffer.size(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    Fill(buffer, size);  // the sanitizer sees whether all of it is ours
  }
}

TEST(BufferPool, Case40_MemoryIsNotHandedOutWhileABufferLives) {
  BufferPool pool;
  MutableBuffer first = pool.Take(4096);
  Fill(first, 7);
  Buffer sent = std::move(first).Freeze();
  Buffer queued = sent.Slice(100, 8);
  const std::byte* memory = sent.data();
  sent = {};  // the last whole view goes; a transport's queue still holds a part
  for (int i = 0; i < 10; ++i) {
    MutableBuffer other = pool.Take(4096);
    EXPECT_NE(other.data(), memory);
    Fill(other, 8);
  }
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(queued.data()[i], static_cast<std::byte>(Mix64(7 + 100 + i)));
  queued = {};
  EXPECT_EQ(pool.idle_bytes(), 2u * 4096);  // the one that was under way, and the one that was reused ten times
}

TEST(BufferPool, MemoryIsReusedOnceItIsFree) {
  BufferPool pool;
  const std::byte* memory = nullptr;
  {
    const Buffer used = pool.Take(1000).Freeze();
    memory = used.data();
    EXPECT_EQ(pool.idle_bytes(), 0u);
  }
  EXPECT_EQ(pool.idle_bytes(), 1024u);
  EXPECT_EQ(pool.Take(1024).data(), memory);  // of the same class
  EXPECT_NE(pool.Take(2048).data(), memory);
}

TEST(BufferPool, IdleMemoryIsBounded) {
  BufferPool pool(256);
  {
    std::vector<Buffer> buffers;
    for (int i = 0; i < 10; ++i) buffers.push_back(pool.Take(128).Freeze());
  }
  EXPECT_EQ(pool.idle_bytes(), 256u);
}

TEST(BufferPool, BuffersOutliveThePool) {
  Buffer survivor;
  {
    BufferPool pool;
    MutableBuffer buffer = pool.Take(256);
    Fill(buffer, 3);
    survivor = std::move(buffer).Freeze();
  }
  EXPECT_TRUE(Holds(survivor, 3));
}

// Writers on several threads; readers on others drop the last reference. No reader may ever see another writer's bytes.
TEST(BufferPool, Case40_HoldsAcrossThreads) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  constexpr int kWriters = 3;
  constexpr int kBuffers = 2000;
  BufferPool pool(1 << 16);
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::pair<uint64_t, Buffer>> queue;
  int open_writers = kWriters;
  std::vector<std::thread> threads;
  for (int w = 0; w < kWriters; ++w) {
    threads.emplace_back([&, w] {
      Random random(seed + static_cast<uint64_t>(w));
      for (int i = 0; i < kBuffers; ++i) {
        const uint64_t key = random.Next();
        MutableBuffer buffer = pool.Take(64 * (1 + random.Below(4)));
        Fill(buffer, key);
        Buffer frozen = std::move(buffer).Freeze();
        std::lock_guard lock(mutex);
        queue.emplace_back(key, std::move(frozen));
        changed.notify_all();
      }
      std::lock_guard lock(mutex);
      --open_writers;
      changed.notify_all();
    });
  }
  std::atomic<int> wrong{0};
  std::atomic<int> read{0};
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&] {
      while (true) {
        std::pair<uint64_t, Buffer> item;
        {
          std::unique_lock lock(mutex);
          changed.wait(lock, [&] { return !queue.empty() || open_writers == 0; });
          if (queue.empty()) return;
          item = std::move(queue.front());
          queue.pop_front();
        }
        wrong += !Holds(item.second, item.first);
        ++read;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(read, kWriters * kBuffers);
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace everstep
