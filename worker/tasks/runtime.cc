#include "worker/tasks/runtime.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>

#include "base/check.h"
#include "base/file.h"

namespace everstep {

void SetTorchThreads(int threads) {
  EVERSTEP_CHECK(threads >= 1, "libtorch needs a thread");
  at::set_num_threads(threads);
  if (void* symbol = dlsym(RTLD_DEFAULT, "openblas_set_num_threads")) {
    reinterpret_cast<void (*)(int)>(symbol)(threads);
  }
}

bool MapsFastBlas(std::string_view maps) {
  for (std::string_view name : {"openblas", "libmkl", "libblis", "/blis-", "atlas", "flexiblas"}) {
    if (maps.find(name) != std::string_view::npos) return true;
  }
  return false;
}

std::string SlowBlasWarning() {
  // PyTorch's own builds have MKL inside libtorch_cpu, where no file name tells of it.
  if (at::hasMKL()) return {};
  const Result<std::string> maps = ReadFile("/proc/self/maps");
  if (!maps.ok() || MapsFastBlas(*maps)) return {};
  return "libtorch runs on the reference BLAS, about 20 times slower than need be: apt-get install "
         "libopenblas0-pthread";
}

}  // namespace everstep
