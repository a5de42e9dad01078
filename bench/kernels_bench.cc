// How close ps/kernels comes to the memory's speed. Each case runs the kernel and, in turns with it, a plain loop that
// moves the same bytes of the same arrays on the same threads and computes next to nothing; `ratio` is the loop's
// median time over the kernel's (1 = as fast as memory allows). Single runs on shared machines vary up to twofold, so
// the ratio is what counts.
//
//   ./dev bench kernels [--benchmark_filter=...]      the second argument of a case is the number of threads
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "ps/kernels/shard_math.h"

namespace everstep::kernels {
namespace {

constexpr int64_t kElements = 25'000'000;  // 100 MB of parameters
constexpr size_t kMaxContributions = 8;
constexpr int kTurns = 15;

using Chunks = std::vector<Buffer>;

// Parameters and the version before, which a server keeps for its readers.
struct Versions {
  Chunks now, before;
  std::vector<uint64_t> updates;  // applied to each chunk

  explicit Versions(Chunks initial) : now(std::move(initial)), before(now.size()), updates(now.size()) {}
  ApplyOptions Options(size_t chunk) const { return {1e-3, 1, updates[chunk] + 1}; }
  void Push(size_t chunk, Buffer next) {
    before[chunk] = std::exchange(now[chunk], std::move(next));
    ++updates[chunk];
  }
};

const float* Floats(const Buffer& buffer) { return reinterpret_cast<const float*>(buffer.data()); }

Chunks RandomChunks(const ChunkLayout& layout, uint64_t seed) {
  Random random(seed);
  Chunks chunks;
  for (const Chunk& chunk : layout.chunks()) {
    MutableBuffer buffer(chunk.bytes + 4096);  // starts at other low bits than its neighbours, like received frames
    const size_t shift = seed * 320 % 4096;
    float* const values = reinterpret_cast<float*>(buffer.data() + shift);
    for (size_t i = 0; i < chunk.bytes / 4; ++i) values[i] = static_cast<float>(random.Uniform()) - 0.5f;
    chunks.push_back(std::move(buffer).Freeze().Slice(shift, chunk.bytes));
  }
  return chunks;
}

struct World {
  std::shared_ptr<const ChunkLayout> layout =
      ChunkLayout::Make({{{"w", {kElements}, DType::kFloat32, Role::kTrainable}}}, 1 << 20);
  std::vector<Chunks> contributions;
  std::vector<double> weights = std::vector<double>(kMaxContributions, 1.0 / kMaxContributions);
  std::vector<MutableBuffer> out, first, second;  // of the plain loops

  World() {
    for (size_t i = 0; i < kMaxContributions; ++i) contributions.push_back(RandomChunks(*layout, i + 1));
    for (auto* arrays : {&out, &first, &second}) {
      for (const Chunk& chunk : layout->chunks()) {
        arrays->emplace_back(chunk.bytes + 64 * (1 + arrays->size() % 7));
        std::memset(arrays->back().data(), 0, chunk.bytes);
      }
    }
  }

  size_t elements(size_t chunk) const { return layout->chunks()[chunk].bytes / 4; }
  std::vector<Buffer> Of(size_t chunk, size_t count) const {
    std::vector<Buffer> buffers;
    for (size_t i = 0; i < count; ++i) buffers.push_back(contributions[i][chunk]);
    return buffers;
  }
};

World& TheWorld() {
  static World world;
  return world;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double Run(const std::function<void(size_t)>& body) {
  const Time begin = SteadyNow();
  ForEachChunk(TheWorld().layout->size(), body);
  return Seconds(SteadyNow() - begin);
}

// Runs both over all chunks in turns and reports GB/s of each, counting `bytes` an element.
void Compare(
    benchmark::State& state, unsigned threads, double bytes, const std::function<void(size_t)>& kernel,
    const std::function<void(size_t)>& loop, const std::function<void()>& before_kernel = [] {}) {
  SetThreads(threads);
  for (int i = 0; i < 4; ++i) before_kernel(), Run(kernel);  // first touch of all memory that is recycled
  Run(loop);
  std::vector<double> kernel_times, loop_times;
  for (auto _ : state) {
    before_kernel();
    kernel_times.push_back(Run(kernel));
    loop_times.push_back(Run(loop));
    state.SetIterationTime(kernel_times.back());
  }
  const double gigabytes = bytes * static_cast<double>(kElements) / 1e9;
  state.counters["GB/s"] = gigabytes / Median(kernel_times);
  state.counters["loop_GB/s"] = gigabytes / Median(loop_times);
  state.counters["ratio"] = Median(loop_times) / Median(kernel_times);
}

// Plain loops. Their inputs and outputs never overlap.

template <size_t... I>
void AddAll(float* __restrict out, const std::vector<Buffer>& in, size_t n, std::index_sequence<I...>) {
  const float* const p[] = {Floats(in[I])...};
  for (size_t i = 0; i < n; ++i) out[i] = (p[I][i] + ...);
}

void AddAll(float* out, const std::vector<Buffer>& in, size_t n) {
  switch (in.size()) {
    case 1: return AddAll(out, in, n, std::make_index_sequence<1>());
    case 2: return AddAll(out, in, n, std::make_index_sequence<2>());
    case 4: return AddAll(out, in, n, std::make_index_sequence<4>());
    default: return AddAll(out, in, n, std::make_index_sequence<8>());
  }
}

void ReadThreeWriteTwo(float* __restrict out, float* __restrict m, const float* p, const float* g, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const float value = m[i] + g[i];
    m[i] = value;
    out[i] = p[i] + value;
  }
}

void ReadFourWriteThree(float* __restrict out, float* __restrict m, float* __restrict v, const float* p, const float* g,
                        size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const float a = m[i] + g[i], b = v[i] + g[i];
    m[i] = a;
    v[i] = b;
    out[i] = p[i] + a + b;
  }
}

void BM_Memcpy(benchmark::State& state) {
  World& w = TheWorld();
  const auto copy = [&](size_t c) { std::memcpy(w.out[c].data(), w.contributions[0][c].data(), w.elements(c) * 4); };
  Compare(state, static_cast<unsigned>(state.range(1)), 8, copy, copy);
}

void BM_AddInPlace(benchmark::State& state) {
  World& w = TheWorld();
  const auto add = [&](size_t c) {
    float* const __restrict a = w.out[c].as<float>();
    const float* const b = Floats(w.contributions[0][c]);
    for (size_t i = 0; i < w.elements(c); ++i) a[i] += b[i];
  };
  Compare(state, static_cast<unsigned>(state.range(1)), 12, add, add);
}

void BM_Sum(benchmark::State& state) {
  World& w = TheWorld();
  const size_t count = static_cast<size_t>(state.range(0));
  ShardMath math({}, w.layout);
  std::vector<ChunkSum> sums(w.layout->size());  // kept, or the pool would hand out the same cached memory again
  const std::span<const double> weights(w.weights.data(), count);
  Compare(
      state, static_cast<unsigned>(state.range(1)), 4.0 * static_cast<double>(count + 1),
      [&](size_t c) { sums[c] = math.Sum({static_cast<uint32_t>(c)}, w.Of(c, count), weights); },
      [&](size_t c) { AddAll(w.out[c].as<float>(), w.Of(c, count), w.elements(c)); });
}

OptimizerOptions Momentum() {
  OptimizerOptions options;
  options.momentum = 0.9;
  options.weight_decay = 1e-4;
  return options;
}

void BM_SgdMomentum(benchmark::State& state) {
  World& w = TheWorld();
  ShardMath math(Momentum(), w.layout);
  Versions parameters(w.contributions[1]);
  Compare(
      state, static_cast<unsigned>(state.range(1)), 20,
      [&](size_t c) {
        const ChunkId id{static_cast<uint32_t>(c)};
        parameters.Push(c, math.Apply(id, parameters.now[c], w.contributions[0][c], parameters.Options(c)));
      },
      [&](size_t c) {
        ReadThreeWriteTwo(w.out[c].as<float>(), w.first[c].as<float>(), Floats(w.contributions[1][c]),
                          Floats(w.contributions[0][c]), w.elements(c));
      });
}

void BM_AdamW(benchmark::State& state) {
  World& w = TheWorld();
  OptimizerOptions options;
  options.kind = OptimizerKind::kAdamW;
  options.weight_decay = 0.01;
  ShardMath math(options, w.layout);
  Versions parameters(w.contributions[1]);
  Compare(
      state, static_cast<unsigned>(state.range(1)), 28,
      [&](size_t c) {
        const ChunkId id{static_cast<uint32_t>(c)};
        parameters.Push(c, math.Apply(id, parameters.now[c], w.contributions[0][c], parameters.Options(c)));
      },
      [&](size_t c) {
        ReadFourWriteThree(w.out[c].as<float>(), w.first[c].as<float>(), w.second[c].as<float>(),
                           Floats(w.contributions[1][c]), Floats(w.contributions[0][c]), w.elements(c));
      });
}

// What one step costs a server that is alone: sum and update in one pass. The loop reads and writes the same arrays,
// the state in place; the kernel writes it beside the old one, past the caches.
template <size_t... I>
void AddAllAndUpdate(float* __restrict out, float* __restrict m, float* __restrict v, const float* p,
                     const std::vector<Buffer>& in, size_t n, std::index_sequence<I...>) {
  const float* const g[] = {Floats(in[I])...};
  for (size_t i = 0; i < n; ++i) {
    const float sum = (g[I][i] + ...);
    const float a = m[i] + sum;
    m[i] = a;
    if (v == nullptr) {
      out[i] = p[i] + a;
    } else {
      const float b = v[i] + sum;
      v[i] = b;
      out[i] = p[i] + a + b;
    }
  }
}

void AddAllAndUpdate(float* out, float* m, float* v, const float* p, const std::vector<Buffer>& in, size_t n) {
  switch (in.size()) {
    case 1: return AddAllAndUpdate(out, m, v, p, in, n, std::make_index_sequence<1>());
    case 2: return AddAllAndUpdate(out, m, v, p, in, n, std::make_index_sequence<2>());
    case 4: return AddAllAndUpdate(out, m, v, p, in, n, std::make_index_sequence<4>());
    default: return AddAllAndUpdate(out, m, v, p, in, n, std::make_index_sequence<8>());
  }
}

void Fused(benchmark::State& state, const OptimizerOptions& options, size_t arrays) {
  World& w = TheWorld();
  const size_t count = static_cast<size_t>(state.range(0));
  ShardMath math(options, w.layout);
  Versions parameters(w.contributions[1]);
  const std::span<const double> weights(w.weights.data(), count);
  std::optional<ShardMath::Version> next;
  Compare(
      state, static_cast<unsigned>(state.range(1)), 4.0 * static_cast<double>(count + 2 + 2 * arrays),
      [&](size_t c) {
        const ChunkId id{static_cast<uint32_t>(c)};
        const ApplyOptions apply = parameters.Options(c);
        parameters.Push(c, math.SumAndApply(id, *next, parameters.now[c], w.Of(c, count), weights, apply).parameters);
        math.Adopt(id);
      },
      [&](size_t c) {
        AddAllAndUpdate(w.out[c].as<float>(), w.first[c].as<float>(), arrays == 2 ? w.second[c].as<float>() : nullptr,
                        Floats(w.contributions[1][c]), w.Of(c, count), w.elements(c));
      },
      [&] { next.emplace(math.NewVersion(parameters.updates[0] + 1)); });
}

void BM_FusedSgd(benchmark::State& state) { Fused(state, Momentum(), 1); }

void BM_FusedAdamW(benchmark::State& state) {
  OptimizerOptions options;
  options.kind = OptimizerKind::kAdamW;
  options.weight_decay = 0.01;
  Fused(state, options, 2);
}

void Register() {
  const auto add = [](const char* name, void (*run)(benchmark::State&), const std::vector<int64_t>& counts) {
    benchmark::RegisterBenchmark(name, run)
        ->ArgsProduct({counts, {1, 2}})
        ->ArgNames({"inputs", "threads"})
        ->UseManualTime()
        ->Iterations(kTurns)
        ->Unit(benchmark::kMillisecond);
  };
  add("Memcpy", BM_Memcpy, {1});
  add("AddInPlace", BM_AddInPlace, {1});
  add("Sum", BM_Sum, {1, 2, 4, 8});
  add("SgdMomentum", BM_SgdMomentum, {1});
  add("AdamW", BM_AdamW, {1});
  add("FusedSgd", BM_FusedSgd, {1, 2, 4, 8});
  add("FusedAdamW", BM_FusedAdamW, {1, 2, 4, 8});
}

}  // namespace
}  // namespace everstep::kernels

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  everstep::kernels::Register();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
