// The inner loops of the kernels: plain passes over one run of elements, compiled twice from ps/kernels/loops.inc (for
// every x86-64 or other processor, and for AVX2) and chosen once at run time. Private to ps/kernels; stateless, any
// thread.
//
// Bit-equality: both versions, on both compilers, give the same bits. Every operation is one IEEE fp32 (or fp64)
// operation: no contraction to fused multiply-add, no reassociation, no reciprocal approximations; the flags are in
// ps/kernels/CMakeLists.txt. The lanes of the norm are part of its definition, not of the vector width.
//
// Pointers are to bytes: payloads of received frames may start at any address.
#pragma once

#include <cstddef>

namespace everstep::kernels {

// Elements of a block: 16 KiB of fp32, so that the sum of a block is still in the first-level cache when its norm is
// taken.
inline constexpr size_t kBlockElements = 4096;

// p' = p - rate * d, with g = scale * sum + decay * p; m' = keep * m + take * g; d = g, m' or g + look * m'.
struct SgdCoefficients {
  float scale = 1;
  float decay = 0;
  float keep = 0;  // momentum; 0 at the first update, which makes the buffer the gradient itself
  float take = 1;  // 1 - dampening; 1 at the first update
  float look = 0;  // Nesterov's momentum
  float minus_rate = 0;
};

// p' = shrink * p + minus_step * m' / (sqrt(v') / root_correction + epsilon), with g = scale * sum + decay * p,
// m' = beta1 * m + take1 * g and v' = beta2 * v + take2 * g * g.
struct AdamCoefficients {
  float scale = 1;
  float decay = 0;   // L2 (Adam)
  float shrink = 1;  // 1 - rate * weight decay (AdamW)
  float beta1 = 0;
  float take1 = 1;
  float beta2 = 0;
  float take2 = 1;
  float root_correction = 1;  // sqrt(1 - beta2^t)
  float epsilon = 0;
  float minus_step = 0;  // -rate / (1 - beta1^t)
};

enum class SgdMomentum { kNone, kPlain, kNesterov };

struct Loops {
  // out = 0 + w[0] * in[0] + w[1] * in[1] + ... over `elements` <= kBlockElements floats that start `offset` bytes into
  // each input. Returns the squared norm of `out`, which is finite exactly when every element of `out` is.
  double (*weighted_sum)(std::byte* out, const std::byte* const* in, size_t offset, const float* weights, size_t count,
                         size_t elements);
  // Whether any of `elements` floats is NaN or Inf.
  bool (*any_nonfinite)(const std::byte* in, size_t elements);
  // out = max(out, in), int64.
  void (*max_int64)(std::byte* out, const std::byte* in, size_t elements);
  // One optimizer update, out of place for the parameters. The state is written to `next`, which may be `state` itself
  // and overlaps nothing else (unused pointers are null).
  struct Adam {
    std::byte* exp_avg = nullptr;
    std::byte* exp_avg_sq = nullptr;
  };
  void (*sgd)(SgdMomentum kind, const SgdCoefficients& c, std::byte* out, std::byte* next_momentum,
              const std::byte* momentum, const std::byte* parameters, const std::byte* sum, size_t elements);
  void (*adam)(const AdamCoefficients& c, std::byte* out, Adam next, Adam state, const std::byte* parameters,
               const std::byte* sum, size_t elements);
  // weighted_sum and the update that it leads to, in one pass; the sum itself is not kept. With `stream`, what is
  // written goes past the caches (nothing is fetched that will be overwritten): for memory that nobody reads soon, and
  // that others may read after fence(). All pointers but `in` are to the run.
  struct Weighted {
    const std::byte* const* in = nullptr;
    size_t offset = 0;
    const float* weights = nullptr;
    size_t count = 0;
  };
  double (*sum_sgd)(SgdMomentum kind, const SgdCoefficients& c, const Weighted& sum, std::byte* out,
                    std::byte* next_momentum, const std::byte* momentum, const std::byte* parameters, size_t elements,
                    bool stream);
  double (*sum_adam)(const AdamCoefficients& c, const Weighted& sum, std::byte* out, Adam next, Adam state,
                     const std::byte* parameters, size_t elements, bool stream);
  void (*fence)();
};

const Loops& PortableLoops();
// Null where the build or the processor has no AVX2.
const Loops* Avx2Loops();
// The fastest that this processor runs.
const Loops& BestLoops();

}  // namespace everstep::kernels
