// Saving by any number of servers, loading by any other, and every way in which a checkpoint can be broken.
#include "checkpoint/loader.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "checkpoint/export.h"
#include "tests/checkpoint/checkpoint_testing.h"
#include "tests/support/faulty_store.h"
#include "tests/support/seed.h"
#include "tests/support/temp_dir.h"

namespace everstep::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class LoaderTest : public testing::Test {
 protected:
  FoundCheckpoint Find() { return FindNewestCheckpoint(store_).value(); }
  std::string MustSave(uint64_t version, uint32_t servers = 2) { return Save(*store_, version, servers).value(); }
  std::vector<std::string> FilesOf(const std::string& label) {
    std::vector<std::string> files;
    const std::vector<std::string> all = store_->List().value();
    for (const std::string& name : all) {
      if (name.starts_with(label)) files.push_back(name);
    }
    return files;
  }

  TempDir dir_;
  std::shared_ptr<Store> store_ = MakeDirectoryStore(dir_.path(), true).value();
};

TEST_F(LoaderTest, AnEmptyFolderHasNothing) {
  const FoundCheckpoint found = Find();
  EXPECT_FALSE(found.newest);
  EXPECT_THAT(found.broken, IsEmpty());
}

TEST_F(LoaderTest, SavedBySomeServersLoadedInAnyPieces) {
  for (const uint32_t servers : {1u, 2u, 3u, 5u, 40u}) {
    MustSave(10 + servers, servers);
    FoundCheckpoint found = Find();
    ASSERT_TRUE(found.newest) << Describe(found.broken);
    EXPECT_EQ(found.newest->manifest().version.value, 10 + servers);
    for (const uint64_t chunk_bytes : {64u, 192u, 256u, 1024u, 65536u}) ExpectContents(*found.newest, chunk_bytes);
  }
}

TEST_F(LoaderTest, TheNewestCompleteOneIsTaken) {
  for (const uint64_t version : {7, 30, 12}) MustSave(version);
  FoundCheckpoint found = Find();
  EXPECT_EQ(found.newest->manifest().version.value, 30u);
  EXPECT_THAT(found.broken, IsEmpty());
}

TEST_F(LoaderTest, AMissingShardAndAMissingManifestAreNamedAndSkipped) {
  MustSave(1);
  const std::string no_manifest = MustSave(2);
  const std::string no_shard = MustSave(3);
  ASSERT_TRUE(store_->Delete(ManifestName(no_manifest)).ok());
  ASSERT_TRUE(store_->Delete(ShardFileName(no_shard, {1})).ok());
  FoundCheckpoint found = Find();
  ASSERT_TRUE(found.newest);
  EXPECT_EQ(found.newest->manifest().version.value, 1u);
  ASSERT_EQ(found.broken.size(), 2u);
  EXPECT_EQ(found.broken[0].label, no_shard);
  EXPECT_THAT(found.broken[0].why.message(), HasSubstr(ShardFileName(no_shard, {1}) + " is missing"));
  EXPECT_EQ(found.broken[1].label, no_manifest);
  EXPECT_THAT(found.broken[1].why.message(), HasSubstr("never completed"));
}

TEST_F(LoaderTest, AShardOfAnotherCheckpointIsNotTaken) {
  MustSave(4);
  const std::string newer = MustSave(5);
  std::filesystem::copy_file(dir_ / ShardFileName(MakeManifest({4}).label, {0}), dir_ / ShardFileName(newer, {0}),
                             std::filesystem::copy_options::overwrite_existing);
  FoundCheckpoint found = Find();
  EXPECT_EQ(found.newest->manifest().version.value, 4u) << "never a mix of steps";
  EXPECT_THAT(Describe(found.broken), HasSubstr("checksum"));
}

// The property: whatever byte is flipped, wherever a file is cut, the checkpoint is named as broken and the one before
// it is taken.
TEST_F(LoaderTest, AnyFlipOrCutAnywhereIsFoundAndNamed) {
  const uint64_t seed = Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  MustSave(1);
  const std::string label = MustSave(2, 3);
  const std::vector<std::string> files = FilesOf(label);
  ASSERT_EQ(files.size(), 4u);
  for (int i = 0; i < 300; ++i) {
    const std::string& file = files[random.Below(files.size())];
    const std::string good = ReadFile(dir_ / file).value();
    std::string bad = good;
    const size_t at = random.Below(good.size());
    const bool cut = random.Chance(0.3);
    if (cut) {
      bad.resize(at);
    } else {
      bad[at] = static_cast<char>(bad[at] ^ (1 << random.Below(8)));
    }
    std::ofstream(dir_ / file, std::ios::binary | std::ios::trunc) << bad;
    FoundCheckpoint found = Find();
    const std::string what = file + (cut ? " cut at " : " flipped at ") + std::to_string(at);
    ASSERT_TRUE(found.newest) << what;
    ASSERT_EQ(found.newest->manifest().version.value, 1u) << what;
    ASSERT_EQ(found.broken.size(), 1u) << what;
    ASSERT_EQ(found.broken[0].label, label) << what;
    ASSERT_THAT(found.broken[0].why.message(), HasSubstr(file)) << what;
    std::ofstream(dir_ / file, std::ios::binary | std::ios::trunc) << good;
  }
  EXPECT_EQ(Find().newest->manifest().version.value, 2u);
}

// A store that loses, tears or refuses what it is given: no such save becomes the newest complete checkpoint.
TEST_F(LoaderTest, DiskFaultsNeverMakeABrokenCheckpointTheNewest) {
  using Fault = FaultyStore::Fault;
  MustSave(1);
  uint64_t version = 2;
  FaultyStore faulty(store_);
  const auto check = [&](const std::string& what) {
    FoundCheckpoint found = Find();
    ASSERT_TRUE(found.newest) << what;
    EXPECT_EQ(found.newest->manifest().version.value, 1u) << what;
  };
  for (const Fault fault : {Fault::kTornWrite, Fault::kNoSpace}) {
    for (uint64_t after = 0; after < 9000; after += 701) {
      faulty.Set(fault, after);
      const auto saved = Save(faulty, version++);
      if (fault == Fault::kNoSpace) {
        EXPECT_EQ(saved.status().code(), Code::kResourceExhausted);
      }
      check("fault " + std::to_string(static_cast<int>(fault)) + " after " + std::to_string(after));
    }
  }
  for (const Fault fault : {Fault::kLostRename, Fault::kFailCommit, Fault::kLateWrite}) {
    faulty.Set(fault);
    (void)Save(faulty, version++);
    check("fault " + std::to_string(static_cast<int>(fault)));
  }
}

TEST_F(LoaderTest, PruningKeepsTheNewestCompleteOnesAndWhatIsUnderWay) {
  for (uint64_t version = 1; version <= 5; ++version) MustSave(version);
  const std::string torn = MustSave(4 + 2);
  ASSERT_TRUE(store_->Delete(ManifestName(torn)).ok());
  ASSERT_TRUE(store_->Delete(ShardFileName(MakeManifest({4}).label, {0})).ok());  // 4 is broken
  ASSERT_TRUE(WriteToStore(*store_, "notes.txt", "not ours").ok());
  auto under_way = store_->Create(ShardFileName(MakeManifest({9}).label, {0})).value();
  ASSERT_TRUE(PruneCheckpoints(store_, 2).ok());
  std::set<uint64_t> left;
  const auto entries = ListCheckpoints(*store_).value();
  for (const CheckpointEntry& e : entries) left.insert(e.version.value);
  EXPECT_THAT(left, ElementsAre(3, 5, 6, 9));
  EXPECT_TRUE(store_->Open("notes.txt").ok());
  ASSERT_TRUE(PruneCheckpoints(store_, 0).ok());
  EXPECT_EQ(Find().newest->manifest().version.value, 5u) << "the last complete one stays";
}

// In a crash loop every life leaves what it could not complete; the first save that succeeds clears it away.
TEST_F(LoaderTest, PruningClearsWhatOtherLivesAbandoned) {
  const std::string saved = MustSave(3);
  const std::string abandoned = CheckpointLabel({8}, {0x99}, {1});
  ASSERT_TRUE(WriteToStore(*store_, ShardFileName(abandoned, {0}), "half").ok());
  const std::string under_way = MakeManifest({9}).label;  // of the same life
  ASSERT_TRUE(WriteToStore(*store_, ShardFileName(under_way, {0}), "half").ok());
  ASSERT_TRUE(PruneCheckpoints(store_, 2, saved).ok());
  EXPECT_THAT(FilesOf(abandoned), IsEmpty());
  EXPECT_EQ(FilesOf(under_way).size(), 1u);
  EXPECT_EQ(FilesOf(saved).size(), 3u);
}

TEST_F(LoaderTest, PruningWithoutACompleteOneDeletesNothing) {
  const std::string label = MustSave(3);
  ASSERT_TRUE(store_->Delete(ManifestName(label)).ok());
  ASSERT_TRUE(PruneCheckpoints(store_, 1).ok());
  EXPECT_EQ(FilesOf(label).size(), 2u);
}

TEST_F(LoaderTest, TheExportedModelHasItsTensorsInTheirShapes) {
  MustSave(8, 3);
  FoundCheckpoint found = Find();
  ASSERT_TRUE(ExportModel(*found.newest, dir_ / "model.safetensors").ok());
  const SafetensorsReader model = SafetensorsReader::OpenPath(dir_ / "model.safetensors").value();
  const ParameterSpec spec = OddSpec();
  EXPECT_EQ(model.header().tensors.size(), spec.tensors.size());
  const auto layout = ChunkLayout::Make(spec, 256);
  for (uint32_t i = 0; i < spec.tensors.size(); ++i) {
    const StoredTensor* stored = model.header().Find(spec.tensors[i].name);
    ASSERT_NE(stored, nullptr) << spec.tensors[i].name;
    EXPECT_EQ(stored->shape, std::vector<uint64_t>(spec.tensors[i].shape.begin(), spec.tensors[i].shape.end()));
    ASSERT_EQ(stored->bytes(), spec.tensors[i].bytes());
    std::vector<std::byte> bytes(stored->bytes());
    ASSERT_TRUE(model.Read(*stored, 0, bytes).ok());
    for (const ChunkId chunk : layout->chunks_of(i)) {
      for (const Segment& s : layout->chunk(chunk).segments) {
        for (uint64_t b = 0; s.tensor == i && b < s.bytes; ++b) {
          ASSERT_EQ(bytes[s.tensor_offset + b], ByteAt({8}, kParametersArray, chunk.value * 256 + s.chunk_offset + b));
        }
      }
    }
  }
  EXPECT_EQ(ExportModel(*found.newest, dir_ / "no/model.safetensors").code(), Code::kNotFound);
}

TEST(Throttle, LetsThroughNoMoreThanTheRate) {
  Throttle throttle(1000, Time{});
  Time now{};
  uint64_t bytes = 0;
  for (int i = 0; i < 100; ++i) {
    bytes += 50;
    now = std::max(now, throttle.After(50, now));
    if (i == 40) now = now + std::chrono::seconds(10);  // the disk hung: no burst afterwards
  }
  EXPECT_NEAR(Seconds(now - Time{}), static_cast<double>(bytes) / 1000 + 10, 0.06);
  EXPECT_EQ(Throttle(0, Time{}).After(1 << 30, now), now);
}

TEST(ShardWriter, ACancelledWritingLeavesNothing) {
  TempDir dir;
  const auto store = MakeDirectoryStore(dir.path(), true).value();
  const std::atomic<bool> cancelled{true};
  auto shards = MakeShards(MakeManifest({3}), 1);
  EXPECT_EQ(WriteShard(*store, std::move(shards[0]), {0, &cancelled}).status().code(), Code::kCancelled);
  EXPECT_THAT(store->List().value(), IsEmpty());
  EXPECT_THAT(store->Unfinished().value(), IsEmpty());
}

}  // namespace
}  // namespace everstep::test
