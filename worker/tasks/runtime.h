// Settings of libtorch for the whole process, for programs that do not include it.
#pragma once

#include <string>
#include <string_view>

namespace everstep {

// Threads for one operation, of libtorch's own and of OpenBLAS's pool, which libtorch's setting does not reach.
// REQUIRES: threads >= 1. Called once, before the first tensor.
void SetTorchThreads(int threads);

// What to tell the user when this process multiplies matrices with the reference BLAS, some twenty times slower than
// need be; empty when it does not.
std::string SlowBlasWarning();

// Whether a fast BLAS is among the files mapped into a process, given the text of its /proc/PID/maps.
bool MapsFastBlas(std::string_view maps);

}  // namespace everstep
