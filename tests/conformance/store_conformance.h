// What every checkpoint store must do, as a suite over its maker. A store instantiates it:
//
//   INSTANTIATE_TEST_SUITE_P(Directory, StoreConformance, testing::Values(StoreKind{"Directory", MakeIt}));
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "checkpoint/store.h"
#include "tests/support/temp_dir.h"

namespace everstep::test {

struct StoreKind {
  std::string name;
  // Another door to the same store, as another process would open it. `place` is an empty folder of the test's own.
  std::function<std::shared_ptr<Store>(const std::string& place)> open;
};

class StoreConformance : public testing::TestWithParam<StoreKind> {
 protected:
  std::shared_ptr<Store> Again() { return GetParam().open(place_.path()); }
  static std::span<const std::byte> Bytes(std::string_view text) {
    return std::as_bytes(std::span(text.data(), text.size()));
  }
  std::vector<std::string> Names() { return Again()->List().value(); }

  TempDir place_;
  std::shared_ptr<Store> store_ = GetParam().open(place_.path());
};

TEST_P(StoreConformance, IsEmptyAtFirst) {
  EXPECT_THAT(Names(), testing::IsEmpty());
  EXPECT_EQ(store_->Open("a").status().code(), Code::kNotFound);
  EXPECT_THAT(store_->Unfinished().value(), testing::IsEmpty());
}

TEST_P(StoreConformance, WhatWasCommittedIsReadThroughAnyDoor) {
  auto writer = store_->Create("a.bin").value();
  ASSERT_TRUE(writer->Append(Bytes("hello ")).ok());
  ASSERT_TRUE(writer->Append({}).ok());
  ASSERT_TRUE(writer->Append(Bytes("world")).ok());
  ASSERT_TRUE(writer->Commit().ok());
  EXPECT_THAT(Names(), testing::ElementsAre("a.bin"));
  auto reader = Again()->Open("a.bin").value();
  EXPECT_EQ(reader->size(), 11u);
  std::string part(5, '\0');
  ASSERT_TRUE(reader->Read(6, std::as_writable_bytes(std::span(part.data(), part.size()))).ok());
  EXPECT_EQ(part, "world");
  EXPECT_EQ(ReadFromStore(*store_, "a.bin", 100).value(), "hello world");
}

TEST_P(StoreConformance, ReadingBeyondTheEndIsSaid) {
  ASSERT_TRUE(WriteToStore(*store_, "a", "12345").ok());
  auto reader = store_->Open("a").value();
  std::byte out[4];
  EXPECT_EQ(reader->Read(3, out).code(), Code::kCorrupt);
  EXPECT_EQ(reader->Read(9, out).code(), Code::kCorrupt);
  EXPECT_TRUE(reader->Read(5, {}).ok());
  EXPECT_EQ(ReadFromStore(*store_, "a", 4).status().code(), Code::kCorrupt);
}

TEST_P(StoreConformance, NothingIsSeenBeforeTheCommitNorWithoutIt) {
  {
    auto writer = store_->Create("a").value();
    ASSERT_TRUE(writer->Append(Bytes("half")).ok());
    EXPECT_THAT(Names(), testing::IsEmpty());
    EXPECT_THAT(Again()->Unfinished().value(), testing::ElementsAre("a"));
    EXPECT_EQ(Again()->Open("a").status().code(), Code::kNotFound);
    // A writer at work is no leftover, whoever looks.
    EXPECT_EQ(Again()->RemoveLeftovers().value(), 0u);
  }
  EXPECT_THAT(Names(), testing::IsEmpty());
  EXPECT_THAT(store_->Unfinished().value(), testing::IsEmpty());
}

TEST_P(StoreConformance, AFileIsReplacedWhole) {
  ASSERT_TRUE(WriteToStore(*store_, "a", "old contents").ok());
  auto reader = store_->Open("a").value();
  auto writer = store_->Create("a").value();
  ASSERT_TRUE(writer->Append(Bytes("new")).ok());
  EXPECT_EQ(ReadFromStore(*store_, "a", 100).value(), "old contents");
  ASSERT_TRUE(writer->Commit().ok());
  EXPECT_EQ(ReadFromStore(*store_, "a", 100).value(), "new");
  EXPECT_THAT(Names(), testing::ElementsAre("a"));
}

TEST_P(StoreConformance, DeletedIsGoneAndDeletingTwiceIsFine) {
  ASSERT_TRUE(WriteToStore(*store_, "b", "1").ok());
  ASSERT_TRUE(WriteToStore(*store_, "a", "2").ok());
  EXPECT_THAT(Names(), testing::ElementsAre("a", "b"));
  EXPECT_TRUE(store_->Delete("a").ok());
  EXPECT_TRUE(store_->Delete("a").ok());
  EXPECT_THAT(Names(), testing::ElementsAre("b"));
}

TEST_P(StoreConformance, EmptyFilesAreFiles) {
  ASSERT_TRUE(WriteToStore(*store_, "a", "").ok());
  EXPECT_EQ(store_->Open("a").value()->size(), 0u);
}

TEST_P(StoreConformance, NamesThatLeadElsewhereAreRefused) {
  for (const std::string& name :
       {std::string(), std::string(".hidden"), std::string("../a"), std::string("a/b"), std::string("a b"),
        std::string("a\0b", 3), std::string("\xc3\xa4"), std::string(201, 'a')}) {
    EXPECT_EQ(store_->Create(name).status().code(), Code::kInvalidArgument) << name;
    EXPECT_EQ(store_->Open(name).status().code(), Code::kInvalidArgument) << name;
    EXPECT_EQ(store_->Delete(name).code(), Code::kInvalidArgument) << name;
  }
}

TEST_P(StoreConformance, ManyWritersAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        const std::string text = std::to_string(t) + "-" + std::to_string(i);
        EXPECT_TRUE(WriteToStore(*store_, "own" + std::to_string(t), text).ok());
        EXPECT_TRUE(WriteToStore(*store_, "shared", text).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(Names(), testing::ElementsAre("own0", "own1", "own2", "own3", "shared"));
  for (int t = 0; t < 4; ++t)
    EXPECT_EQ(ReadFromStore(*store_, "own" + std::to_string(t), 100).value(), std::to_string(t) + "-19");
  EXPECT_TRUE(ReadFromStore(*store_, "shared", 100).value().ends_with("-19"));
}

}  // namespace everstep::test
