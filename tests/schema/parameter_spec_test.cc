#include "schema/parameter_spec.h"

#include <gtest/gtest.h>

#include <set>

#include "base/limits.h"
#include "base/random.h"
#include "tests/schema/random_messages.h"
#include "tests/support/seed.h"

namespace everstep {
namespace {

TensorSpec Weight(std::string name, std::vector<int64_t> shape) { return {std::move(name), std::move(shape), {}, {}}; }

void ExpectRefused(const ParameterSpec& spec, const char* reason) {
  const Status status = Validate(spec);
  EXPECT_EQ(status.code(), Code::kInvalidArgument) << reason;
  EXPECT_NE(status.message().find(reason), std::string::npos) << status.message();
}

TEST(ParameterSpec, Case26_OddShapesAreFine) {
  EXPECT_TRUE(Validate(ParameterSpec{{Weight("scalar", {})}}).ok());
  EXPECT_TRUE(Validate(ParameterSpec{{Weight("empty", {0, 5}), Weight("w", {1})}}).ok());
  EXPECT_TRUE(Validate(ParameterSpec{{Weight("w", {1}), {"steps", {}, DType::kInt64, Role::kBuffer}}}).ok());
  EXPECT_EQ(Weight("scalar", {}).elements(), 1u);
  EXPECT_EQ(Weight("empty", {1 << 30, 1 << 20, 0}).elements(), 0u);
  EXPECT_EQ((TensorSpec{"n", {3}, DType::kInt64, Role::kBuffer}).bytes(), 24u);
}

TEST(ParameterSpec, ImpossibleModelsAreRefusedByName) {
  ExpectRefused({}, "no tensors");
  ExpectRefused({{Weight("", {1})}}, "name is empty");
  ExpectRefused({{Weight(std::string(257, 'n'), {1})}}, "longer than 256");
  ExpectRefused({{Weight("a [1]\nb", {1})}}, "control character");
  ExpectRefused({{Weight("w", {1}), Weight("w", {2})}}, "two tensors are named w");
  ExpectRefused({{{"steps", {}, DType::kInt64, Role::kTrainable}}}, "steps is trainable and not float32");
  ExpectRefused({{{"odd", {}, static_cast<DType>(9), Role::kBuffer}}}, "odd: unknown type");
  ExpectRefused({{{"odd", {}, DType::kFloat32, static_cast<Role>(9)}}}, "odd: unknown role");
  ExpectRefused({{Weight("minus", {2, -1})}}, "minus: impossible shape");
  ExpectRefused({{Weight("huge", {INT64_MAX, INT64_MAX, INT64_MAX})}}, "huge: impossible shape");
  ExpectRefused({{Weight("a", {int64_t{1} << 56}), Weight("b", {int64_t{1} << 56})}}, "too large");
  ExpectRefused({{Weight("empty", {0})}}, "nothing to train");
}

// A model of so many chunks that their very list would fill the memory (case 39).
TEST(ParameterSpec, Case39_AModelOfTooManyChunksIsRefused) {
  const ParameterSpec spec{{Weight("w", {int64_t{1} << 50})}};
  ASSERT_TRUE(Validate(spec).ok());
  const Status status = Validate(spec, limits::kMaxChunkBytes);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("larger chunk-bytes"), std::string::npos) << status.message();
  EXPECT_TRUE(Validate({{Weight("w", {1000})}}, 64).ok());
  EXPECT_FALSE(Validate(ParameterSpec{}, 64).ok());
}

TEST(ParameterSpec, TheHashCoversEverything) {
  const ParameterSpec base{{Weight("a", {2, 3}), {"b", {4}, DType::kFloat32, Role::kBuffer}}};
  std::set<uint64_t> hashes = {base.hash()};
  const auto differs = [&](ParameterSpec spec) { EXPECT_TRUE(hashes.insert(spec.hash()).second); };
  differs({{Weight("a2", {2, 3}), base.tensors[1]}});
  differs({{Weight("a", {3, 2}), base.tensors[1]}});
  differs({{Weight("a", {6}), base.tensors[1]}});
  differs({{Weight("a", {2, 3}), {"b", {4}, DType::kInt64, Role::kBuffer}}});
  differs({{Weight("a", {2, 3}), {"b", {4}, DType::kFloat32, Role::kTrainable}}});
  differs({{base.tensors[1], base.tensors[0]}});
  differs({{base.tensors[0]}});
  EXPECT_EQ(ParameterSpec(base).hash(), base.hash());
}

TEST(ParameterSpec, Case13_TheFirstDifferenceIsNamed) {
  const ParameterSpec here{{Weight("w", {256, 784}), Weight("b", {256})}};
  ParameterSpec there = here;
  EXPECT_EQ(FirstDifference(here, there), "no difference");
  there.tensors[1].shape = {128};
  EXPECT_EQ(FirstDifference(here, there), "tensor 1: b [256] here, b [128] there");
  there.tensors.pop_back();
  EXPECT_EQ(FirstDifference(here, there), "2 tensors here, 1 there");
}

// ---- Cutting into chunks ----

// Every byte of every tensor lies in exactly one segment, in order; segments are aligned, apart and inside their chunk.
void ExpectGoodLayout(const ChunkLayout& layout, uint64_t chunk_bytes) {
  std::vector<uint64_t> done(layout.spec().tensors.size());
  std::vector<std::vector<ChunkId>> chunks_of(done.size());
  uint64_t total = 0;
  for (uint32_t i = 0; i < layout.size(); ++i) {
    const Chunk& chunk = layout.chunk({i});
    uint64_t end = 0;
    ASSERT_FALSE(chunk.segments.empty()) << "chunk " << i << " holds nothing";
    for (const Segment& s : chunk.segments) {
      const TensorSpec& tensor = layout.spec().tensors[s.tensor];
      ASSERT_EQ(s.tensor_offset, done[s.tensor]);
      ASSERT_GT(s.bytes, 0u);
      ASSERT_EQ(s.bytes % ElementBytes(s.dtype), 0u) << "an element is cut in two";
      ASSERT_EQ(s.chunk_offset % limits::kChunkAlignment, 0u);
      ASSERT_GE(s.chunk_offset, end);
      ASSERT_LT(s.chunk_offset, end + limits::kChunkAlignment);
      ASSERT_EQ(s.dtype, tensor.dtype);
      ASSERT_EQ(s.role, tensor.role);
      end = s.chunk_offset + s.bytes;
      done[s.tensor] += s.bytes;
      chunks_of[s.tensor].push_back({i});
    }
    ASSERT_EQ(chunk.bytes, end);
    ASSERT_LE(chunk.bytes, chunk_bytes);
    ASSERT_TRUE(i + 1 == layout.size() || chunk.bytes + limits::kChunkAlignment > chunk_bytes)
        << "a gap before the end";
    total += chunk.bytes;
  }
  for (size_t t = 0; t < done.size(); ++t) {
    ASSERT_EQ(done[t], layout.spec().tensors[t].bytes()) << "tensor " << t;
    ASSERT_EQ(layout.chunks_of(t), chunks_of[t]);
  }
  ASSERT_EQ(layout.total_bytes(), total);
}

TEST(ChunkLayout, HoldsEveryByteOnce) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  for (int i = 0; i < 500; ++i) {
    const uint64_t chunk_bytes = 64 * (1 + random.Below(20));
    const auto layout = ChunkLayout::Make(test::RandomSpec(random, 12), chunk_bytes);
    ASSERT_NO_FATAL_FAILURE(ExpectGoodLayout(*layout, chunk_bytes));
  }
}

TEST(ChunkLayout, SmallTensorsShareAChunkAndLargeOnesSpanSeveral) {
  const auto layout =
      ChunkLayout::Make({{Weight("a", {1}), Weight("none", {0}), Weight("b", {3}), Weight("c", {100})}}, 256);
  ASSERT_NO_FATAL_FAILURE(ExpectGoodLayout(*layout, 256));
  ASSERT_EQ(layout->size(), 3u);
  EXPECT_EQ(layout->chunks_of(0), (std::vector<ChunkId>{{0}}));
  EXPECT_TRUE(layout->chunks_of(1).empty());
  EXPECT_EQ(layout->chunks_of(2), (std::vector<ChunkId>{{0}}));
  EXPECT_EQ(layout->chunks_of(3), (std::vector<ChunkId>{{0}, {1}, {2}}));
  EXPECT_EQ(layout->chunk({0}).segments[1].chunk_offset, 64u);
  EXPECT_EQ(layout->chunk({2}).bytes, 16u);
}

TEST(ChunkLayout, Case26_MoreThan2To31Elements) {
  const int64_t elements = (int64_t{1} << 31) + 5;
  const auto layout =
      ChunkLayout::Make({{Weight("w", {elements}), {"n", {elements}, DType::kInt64, Role::kBuffer}}}, 16 << 20);
  ASSERT_NO_FATAL_FAILURE(ExpectGoodLayout(*layout, 16 << 20));
  const Segment& last = layout->chunk(layout->chunks_of(1).back()).segments.back();
  EXPECT_EQ(last.tensor_offset + last.bytes, static_cast<uint64_t>(elements) * 8);
  EXPECT_GT(last.tensor_offset, uint64_t{1} << 33);
}

TEST(ChunkLayout, IsTheSameEverywhere) {
  Random random(3);
  const ParameterSpec spec = test::RandomSpec(random, 10);
  const auto a = ChunkLayout::Make(spec, 128);
  const auto b = ChunkLayout::Make(spec, 128);
  ASSERT_EQ(a->size(), b->size());
  for (uint32_t i = 0; i < a->size(); ++i) {
    EXPECT_EQ(a->chunk({i}).bytes, b->chunk({i}).bytes);
    EXPECT_EQ(a->chunk({i}).segments.size(), b->chunk({i}).segments.size());
  }
}

}  // namespace
}  // namespace everstep
