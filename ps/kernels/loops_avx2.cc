// The loops compiled with -mavx2; called only where the processor has it.
#include "ps/kernels/loops.inc"

namespace everstep::kernels {

const Loops& CompiledAvx2Loops();
const Loops& CompiledAvx2Loops() { return kLoops; }

}  // namespace everstep::kernels
