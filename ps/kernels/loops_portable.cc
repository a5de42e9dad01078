// The loops for the processor that the rest of the program is compiled for, and the choice between the versions.
#include "ps/kernels/loops.inc"

namespace everstep::kernels {

#if defined(EVERSTEP_KERNELS_AVX2)
const Loops& CompiledAvx2Loops();  // loops_avx2.cc

const Loops* Avx2Loops() {
  static const bool avx2 = __builtin_cpu_supports("avx2");
  return avx2 ? &CompiledAvx2Loops() : nullptr;
}
#else
const Loops* Avx2Loops() { return nullptr; }
#endif

const Loops& PortableLoops() { return kLoops; }

const Loops& BestLoops() {
  const Loops* const avx2 = Avx2Loops();
  return avx2 != nullptr ? *avx2 : kLoops;
}

}  // namespace everstep::kernels
