#include "ps/kernels/shard_math.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "base/limits.h"
#include "ps/kernels/loops.h"
#include "ps/kernels/update.h"

namespace everstep::kernels {
namespace {

// Arrays that one pass walks side by side must not start at the same low address bits, which large allocations do by
// themselves: the pass would be 2.6 to 8 times slower (docs/performance.md). Each kind of array therefore starts at its
// own distance from the start of its allocation; received payloads are at distance 0. No two distances are closer than
// 7 cache lines modulo 4096. Parameters alternate, so that an update never writes at the low bits it reads from.
enum class Place : size_t { kSum = 1, kParametersEven = 2, kParametersOdd = 3, kFirstState = 4, kSecondState = 5 };
constexpr size_t kPlaceBytes = 2048 + 5 * 64;
constexpr size_t kPlacesSpan = 5 * kPlaceBytes;
// Smaller chunks sit in the cache, where the distance does not pay for its memory.
constexpr size_t kPlaceFromBytes = 32 << 10;

// Models from here on do not stay in the caches from step to step.
constexpr size_t kStreamFromBytes = size_t{32} << 20;

size_t SpanOf(size_t chunk_bytes) { return chunk_bytes < kPlaceFromBytes ? 0 : kPlacesSpan; }

// A part of `whole` as a buffer of its own that keeps `whole` alive.
MutableBuffer PlaceIn(MutableBuffer whole, Place place, size_t bytes) {
  const size_t distance = whole.size() == bytes ? 0 : static_cast<size_t>(place) * kPlaceBytes;
  auto owner = std::make_shared<MutableBuffer>(std::move(whole));
  std::byte* const data = owner->data() + distance;
  return {std::move(owner), data, bytes};
}

void Zero(std::byte* data, size_t bytes) {
  if (bytes > 0) std::memset(data, 0, bytes);
}

// One array of a chunk's optimizer state. A reader that shares it (ShareState) says when it is done with it; until then
// the memory is not written. An explicit flag and not a count of owners: it orders the reader's last read before the
// writer's first write.
struct StateArray {
  std::shared_ptr<MutableBuffer> memory;
  std::shared_ptr<std::atomic<bool>> reader_done;  // null: nobody ever shared this memory

  const std::byte* data() const { return memory->data(); }
  bool shared() const { return reader_done && !reader_done->load(std::memory_order_acquire); }
};

// What a reader holds: the memory, and the word that it is done.
class StateReader {
 public:
  StateReader(std::shared_ptr<MutableBuffer> memory, std::shared_ptr<std::atomic<bool>> done)
      : memory_(std::move(memory)), done_(std::move(done)) {}
  StateReader(const StateReader&) = delete;
  StateReader& operator=(const StateReader&) = delete;
  ~StateReader() { done_->store(true, std::memory_order_release); }

 private:
  const std::shared_ptr<MutableBuffer> memory_;
  const std::shared_ptr<std::atomic<bool>> done_;
};

// Calls block(segment, offset, elements) for runs of at most kBlockElements, and zeroes `out` between the segments.
template <typename Block>
void ForEachBlock(const Chunk& chunk, std::byte* out, const Block& block) {
  size_t end = 0;
  for (const Segment& segment : chunk.segments) {
    Zero(out + end, segment.chunk_offset - end);
    const size_t width = ElementBytes(segment.dtype);
    const size_t elements = segment.bytes / width;
    for (size_t done = 0; done < elements; done += kBlockElements) {
      block(segment, segment.chunk_offset + done * width, std::min(kBlockElements, elements - done));
    }
    end = segment.chunk_offset + segment.bytes;
  }
  Zero(out + end, chunk.bytes - end);
}

std::vector<float> ToFloats(std::span<const double> weights) {
  std::vector<float> out;
  out.reserve(weights.size());
  for (double weight : weights) out.push_back(static_cast<float>(weight));
  return out;
}

std::vector<float> MeanWeights(std::span<const double> weights) {
  double total = 0;
  for (double weight : weights) total += weight;
  const bool usable = std::isfinite(total) && total > 0;
  std::vector<float> out;
  out.reserve(weights.size());
  for (double weight : weights) {
    out.push_back(static_cast<float>(usable ? weight / total : 1.0 / static_cast<double>(weights.size())));
  }
  return out;
}

// Positions of the contributions that have a NaN or Inf, found while summing: only blocks whose sum is not finite are
// looked at, and only contributions that are not yet known.
class Culprits {
 public:
  Culprits(const Loops& loops, const std::vector<const std::byte*>& contributions)
      : loops_(loops), contributions_(contributions) {}

  void SearchBlock(size_t offset, size_t elements) {
    overflow_ = true;  // unless a culprit is found, the inputs were finite
    known_.resize(contributions_.size());
    for (size_t i = 0; i < contributions_.size(); ++i) {
      if (!known_[i]) known_[i] = loops_.any_nonfinite(contributions_[i] + offset, elements);
    }
  }

  std::vector<uint32_t> Positions() const {
    const bool any = std::find(known_.begin(), known_.end(), true) != known_.end();
    std::vector<uint32_t> positions;
    for (size_t i = 0; i < known_.size(); ++i) {
      if (known_[i] || (overflow_ && !any)) positions.push_back(static_cast<uint32_t>(i));
    }
    return positions;
  }

 private:
  const Loops& loops_;
  const std::vector<const std::byte*>& contributions_;
  std::vector<bool> known_;
  bool overflow_ = false;
};

// What a chunk's sum is made of.
struct Inputs {
  Inputs(const Chunk& chunk, std::span<const Buffer> contributions, std::span<const double> weights)
      : gradient_weights(ToFloats(weights)), mean_weights(MeanWeights(weights)) {
    EVERSTEP_CHECK(!contributions.empty() && contributions.size() == weights.size(), "one weight a contribution");
    data.reserve(contributions.size());
    for (const Buffer& contribution : contributions) {
      EVERSTEP_CHECK(contribution.size() == chunk.bytes, "a contribution has the size of its chunk");
      data.push_back(contribution.data());
    }
  }

  std::vector<const std::byte*> data;
  const std::vector<float> gradient_weights;
  const std::vector<float> mean_weights;
};

// Sums one block into `out`. Returns what it adds to the squared norm.
double SumBlock(const Loops& loops, const Inputs& inputs, const Segment& segment, size_t offset, size_t elements,
                std::byte* out, Culprits& culprits) {
  const std::vector<const std::byte*>& data = inputs.data;
  if (segment.dtype == DType::kInt64) {
    std::memcpy(out, data[0] + offset, elements * ElementBytes(DType::kInt64));
    for (size_t i = 1; i < data.size(); ++i) loops.max_int64(out, data[i] + offset, elements);
    return 0;
  }
  const bool trainable = segment.role == Role::kTrainable;
  const float* const w = trainable ? inputs.gradient_weights.data() : inputs.mean_weights.data();
  const double squared_norm = loops.weighted_sum(out, data.data(), offset, w, data.size(), elements);
  if (!std::isfinite(squared_norm)) culprits.SearchBlock(offset, elements);
  return trainable ? squared_norm : 0;
}

}  // namespace

struct ShardMath::Impl {
  Impl(const OptimizerOptions& optimizer_options, std::shared_ptr<const ChunkLayout> chunk_layout,
       BufferPool::Allocator allocator)
      : optimizer(optimizer_options),
        layout(std::move(chunk_layout)),
        // A sum and two versions of each chunk are under way at once; what a slow reader keeps longer comes on top.
        pool(4 * (layout->total_bytes() + layout->size() * kPlacesSpan), std::move(allocator)),
        loops(BestLoops()),
        state_names(StateNames(optimizer)),
        states(layout->size()),
        ahead(layout->size()),
        streams(layout->total_bytes() >= kStreamFromBytes) {
    size_t begin = 0;
    for (const Chunk& chunk : layout->chunks()) {
      begins.push_back(begin);
      begin += (chunk.bytes + limits::kChunkAlignment - 1) / limits::kChunkAlignment * limits::kChunkAlignment;
    }
    version_bytes = begin;
  }

  const Chunk& ChunkAt(ChunkId id) const {
    EVERSTEP_CHECK(id.value < layout->size(), "chunk outside the layout");
    return layout->chunk(id);
  }

  MutableBuffer TakeOutput(size_t bytes, Place place) {
    return PlaceIn(pool.Take(bytes + SpanOf(bytes)), place, bytes);
  }
  MutableBuffer TakeState(size_t bytes, size_t i) {
    return PlaceIn(state_pool.Take(bytes + SpanOf(bytes)), StatePlace(i), bytes);
  }

  // A server holds some of the chunks, so state comes into being with a chunk's first update, on the thread that makes
  // it; from then on it stays where it is.
  std::vector<StateArray>& StateOf(ChunkId id) {
    std::vector<StateArray>& state = states[id.value];
    if (!state.empty()) return state;
    const size_t bytes = ChunkAt(id).bytes;
    for (size_t i = 0; i < state_names.size(); ++i) {
      auto memory = std::make_shared<MutableBuffer>(TakeState(bytes, i));
      Zero(memory->data(), bytes);
      state.push_back({std::move(memory), nullptr});
    }
    return state;
  }

  // The i-th array for writing. What a checkpoint still reads is left to it, and the update goes on in a copy; the
  // chunk fits the cache, so that the copy costs one more stream of memory traffic and not two.
  std::byte* Writable(std::vector<StateArray>& state, size_t i, size_t bytes) {
    if (i >= state.size()) return nullptr;
    StateArray& array = state[i];
    if (array.shared()) {
      auto copy = std::make_shared<MutableBuffer>(TakeState(bytes, i));
      if (bytes > 0) std::memcpy(copy->data(), array.data(), bytes);
      array.memory = std::move(copy);
    }
    array.reader_done.reset();
    return array.memory->data();
  }

  std::byte* PlaceOf(ChunkId id, MutableBuffer& memory, ptrdiff_t begin) const {
    return memory.data() + begin + static_cast<ptrdiff_t>(begins[id.value]);
  }
  static Place ParametersPlace(uint64_t update) {
    return update % 2 == 0 ? Place::kParametersEven : Place::kParametersOdd;
  }
  static Place StatePlace(size_t i) { return i == 0 ? Place::kFirstState : Place::kSecondState; }

  const OptimizerOptions optimizer;
  const std::shared_ptr<const ChunkLayout> layout;
  BufferPool pool;        // what others read: sums and parameters
  BufferPool state_pool;  // what nobody else does
  const Loops& loops;
  const std::vector<std::string> state_names;
  std::vector<std::vector<StateArray>> states;    // by chunk, then as state_names; empty before the first update
  std::vector<std::vector<MutableBuffer>> ahead;  // the same after a SumAndApply that was not adopted yet
  const bool streams;                             // whether a version is too large for the caches
  std::vector<size_t> begins;                     // of the chunks, in a version's memory
  size_t version_bytes = 0;
};

ShardMath::ShardMath(const OptimizerOptions& optimizer, std::shared_ptr<const ChunkLayout> layout,
                     BufferPool::Allocator allocator)
    : impl_(std::make_unique<Impl>(optimizer, std::move(layout), std::move(allocator))) {}

ShardMath::~ShardMath() = default;

ShardMath::Version ShardMath::NewVersion(uint64_t update) {
  MutableBuffer memory = impl_->TakeOutput(impl_->version_bytes, Impl::ParametersPlace(update));
  return {std::make_shared<MutableBuffer>(std::move(memory)), 0};
}

ChunkSum ShardMath::Sum(ChunkId id, std::span<const Buffer> contributions, std::span<const double> weights) {
  const Chunk& chunk = impl_->ChunkAt(id);
  const Inputs inputs(chunk, contributions, weights);
  MutableBuffer sum = impl_->TakeOutput(chunk.bytes, Place::kSum);
  Culprits culprits(impl_->loops, inputs.data);
  ChunkSum result;
  ForEachBlock(chunk, sum.data(), [&](const Segment& segment, size_t offset, size_t elements) {
    result.squared_norm += SumBlock(impl_->loops, inputs, segment, offset, elements, sum.data() + offset, culprits);
  });
  result.sum = std::move(sum).Freeze();
  result.nonfinite = culprits.Positions();
  return result;
}

Buffer ShardMath::Apply(ChunkId id, const Version& into, const Buffer& parameters, const Buffer& sum,
                        const ApplyOptions& options) {
  const Chunk& chunk = impl_->ChunkAt(id);
  EVERSTEP_CHECK(parameters.size() == chunk.bytes && sum.size() == chunk.bytes,
                 "parameters and sum have the size of their chunk");
  const Update update(impl_->loops, impl_->optimizer, options);
  impl_->ahead[id.value].clear();
  std::vector<StateArray>& arrays = impl_->StateOf(id);
  const Loops::Adam state{impl_->Writable(arrays, 0, chunk.bytes), impl_->Writable(arrays, 1, chunk.bytes)};
  std::byte* const next = impl_->PlaceOf(id, *into.memory_, into.begin_);
  ForEachBlock(chunk, next, [&](const Segment& segment, size_t offset, size_t elements) {
    if (segment.role == Role::kBuffer) {
      std::memcpy(next + offset, sum.data() + offset, elements * ElementBytes(segment.dtype));
    } else {
      update.Run(next + offset, At(state, offset), At(state, offset), parameters.data() + offset, sum.data() + offset,
                 elements);
    }
  });
  return {into.memory_, next, chunk.bytes};
}

Buffer ShardMath::Apply(ChunkId id, const Buffer& parameters, const Buffer& sum, const ApplyOptions& options) {
  MutableBuffer memory = impl_->TakeOutput(impl_->ChunkAt(id).bytes, Impl::ParametersPlace(options.update));
  const Version alone(std::make_shared<MutableBuffer>(std::move(memory)),
                      -static_cast<ptrdiff_t>(impl_->begins[id.value]));
  return Apply(id, alone, parameters, sum, options);
}

ChunkUpdate ShardMath::SumAndApply(ChunkId id, const Version& into, const Buffer& parameters,
                                   std::span<const Buffer> contributions, std::span<const double> weights,
                                   const ApplyOptions& options) {
  const Chunk& chunk = impl_->ChunkAt(id);
  EVERSTEP_CHECK(parameters.size() == chunk.bytes, "parameters have the size of their chunk");
  const Inputs inputs(chunk, contributions, weights);
  const Loops& loops = impl_->loops;
  const Update update(loops, impl_->optimizer, options);
  Culprits culprits(loops, inputs.data);
  const std::vector<StateArray>& arrays = impl_->StateOf(id);
  const auto array = [&](size_t i) { return i < arrays.size() ? arrays[i].memory->data() : nullptr; };
  const Loops::Adam state{array(0), array(1)};
  std::vector<MutableBuffer>& ahead = impl_->ahead[id.value];
  ahead.clear();
  for (size_t i = 0; i < arrays.size(); ++i) {
    ahead.push_back(impl_->TakeState(chunk.bytes, i));
    ForEachBlock(chunk, ahead[i].data(), [](const Segment&, size_t, size_t) {});  // padding
  }
  const auto next_array = [&](size_t i) { return i < ahead.size() ? ahead[i].data() : nullptr; };
  const Loops::Adam next{next_array(0), next_array(1)};
  std::byte* const out = impl_->PlaceOf(id, *into.memory_, into.begin_);
  ChunkUpdate result;
  ForEachBlock(chunk, out, [&](const Segment& segment, size_t offset, size_t elements) {
    const size_t bytes = elements * ElementBytes(segment.dtype);
    if (segment.role == Role::kBuffer) {
      (void)SumBlock(loops, inputs, segment, offset, elements, out + offset, culprits);
      for (MutableBuffer& unused : ahead) Zero(unused.data() + offset, bytes);
      return;
    }
    const Loops::Weighted sum{inputs.data.data(), offset, inputs.gradient_weights.data(), inputs.data.size()};
    const double squared_norm = update.SumAndRun(sum, out + offset, At(next, offset), At(state, offset),
                                                 parameters.data() + offset, elements, impl_->streams);
    if (!std::isfinite(squared_norm)) culprits.SearchBlock(offset, elements);
    result.squared_norm += squared_norm;
  });
  if (impl_->streams) loops.fence();
  result.parameters = Buffer(into.memory_, out, chunk.bytes);
  result.nonfinite = culprits.Positions();
  return result;
}

void ShardMath::Adopt(ChunkId id) {
  std::vector<MutableBuffer>& ahead = impl_->ahead[id.value];
  std::vector<StateArray>& state = impl_->states[id.value];
  EVERSTEP_CHECK(ahead.size() == state.size(), "nothing was worked out ahead");
  for (size_t i = 0; i < ahead.size(); ++i) state[i] = {std::make_shared<MutableBuffer>(std::move(ahead[i])), nullptr};
  ahead.clear();
}

std::map<std::string, Buffer> ShardMath::ExportState(ChunkId id) const {
  const size_t bytes = impl_->ChunkAt(id).bytes;
  const std::vector<StateArray>& state = impl_->states[id.value];
  std::map<std::string, Buffer> out;
  for (size_t i = 0; i < impl_->state_names.size(); ++i) {
    MutableBuffer copy(bytes);
    if (state.empty()) {
      Zero(copy.data(), bytes);
    } else {
      std::memcpy(copy.data(), state[i].data(), bytes);
    }
    out.emplace(impl_->state_names[i], std::move(copy).Freeze());
  }
  return out;
}

std::map<std::string, Buffer> ShardMath::ShareState(ChunkId id) {
  const size_t bytes = impl_->ChunkAt(id).bytes;
  std::vector<StateArray>& state = impl_->StateOf(id);
  std::map<std::string, Buffer> out;
  for (size_t i = 0; i < state.size(); ++i) {
    // Two readers of one memory: the second waits for nobody, it takes a copy.
    const std::byte* const data = impl_->Writable(state, i, bytes);
    state[i].reader_done = std::make_shared<std::atomic<bool>>(false);
    auto reader = std::make_shared<StateReader>(state[i].memory, state[i].reader_done);
    out.emplace(impl_->state_names[i], Buffer(std::move(reader), data, bytes));
  }
  return out;
}

Status ShardMath::ImportState(ChunkId id, const std::map<std::string, Buffer>& state) {
  const size_t bytes = impl_->ChunkAt(id).bytes;
  const std::vector<std::string>& names = impl_->state_names;
  const std::string where = "optimizer state of chunk " + std::to_string(id.value) + ": ";
  for (const auto& [name, array] : state) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      return {Code::kInvalidArgument, where + "\"" + name + "\" does not belong to " +
                                          std::string(Name(impl_->optimizer.kind)) +
                                          "; use the optimizer settings that the state was saved with"};
    }
    if (array.size() != bytes) {
      return {Code::kInvalidArgument, where + "\"" + name + "\" has " + std::to_string(array.size()) +
                                          " bytes, the chunk " + std::to_string(bytes) +
                                          "; use the model that the state was saved with"};
    }
  }
  for (const std::string& name : names) {
    if (!state.contains(name)) {
      return {Code::kInvalidArgument,
              where + "\"" + name + "\" is missing; use the optimizer settings that the state was saved with"};
    }
  }
  std::vector<StateArray>& arrays = impl_->StateOf(id);
  impl_->ahead[id.value].clear();
  for (size_t i = 0; i < names.size(); ++i)
    std::memcpy(impl_->Writable(arrays, i, bytes), state.at(names[i]).data(), bytes);
  return Status::Ok();
}

}  // namespace everstep::kernels
