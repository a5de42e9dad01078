# The libtorch door for the build: defines the imported target `everstep_torch_deps` (include folders, definitions, libraries).
#
# TorchConfig.cmake is deliberately not used. Debian's asks for glog, gflags and protobuf at link time, which nothing here
# calls; the one in PyTorch's wheels insists on a CUDA toolkit, and looks for libraries in the system's folders as well, so
# that two versions can be mixed. Headers, libtorch_cpu and libc10 are all that a CPU program needs, and the shared
# libraries name their own dependencies. torch_cuda is not linked: a worker computes on CPUs with either version.
#
# Another libtorch than the system's: -DCMAKE_PREFIX_PATH=PREFIX/share/cmake (what torch.utils.cmake_prefix_path prints), or
# PREFIX itself. The file is installed beside everstepConfig.cmake and serves the users of the package in the same way.

if(TARGET everstep_torch_deps)
  return()
endif()

set(_torch_hints "")
foreach(_prefix IN LISTS CMAKE_PREFIX_PATH)
  list(APPEND _torch_hints ${_prefix} ${_prefix}/../..)
endforeach()
find_path(EVERSTEP_TORCH_API_INCLUDE torch/torch.h
  HINTS ${_torch_hints} PATH_SUFFIXES include/torch/csrc/api/include torch/csrc/api/include)
mark_as_advanced(EVERSTEP_TORCH_API_INCLUDE)
if(NOT EVERSTEP_TORCH_API_INCLUDE)
  message(FATAL_ERROR "libtorch was not found. Install libtorch-dev (./dev setup), or pass "
    "-DCMAKE_PREFIX_PATH=PREFIX/share/cmake for a libtorch elsewhere, or -DEVERSTEP_TORCH=OFF to build without it.")
endif()

# .../include/torch/csrc/api/include -> ...; the libraries must come from the same prefix as the headers.
get_filename_component(_torch_include "${EVERSTEP_TORCH_API_INCLUDE}/../../../.." ABSOLUTE)
get_filename_component(_torch_prefix "${_torch_include}/.." ABSOLUTE)
foreach(_library torch_cpu c10)
  find_library(EVERSTEP_LIB_${_library} ${_library}
    HINTS ${_torch_prefix}/lib ${_torch_prefix}/lib/${CMAKE_LIBRARY_ARCHITECTURE} NO_DEFAULT_PATH)
  mark_as_advanced(EVERSTEP_LIB_${_library})
  if(NOT EVERSTEP_LIB_${_library})
    message(FATAL_ERROR "lib${_library} was not found under ${_torch_prefix}/lib, although torch/torch.h is in "
      "${EVERSTEP_TORCH_API_INCLUDE}. Reinstall that libtorch, or name another one by CMAKE_PREFIX_PATH.")
  endif()
endforeach()

file(STRINGS "${EVERSTEP_TORCH_API_INCLUDE}/torch/version.h" _torch_version_lines
  REGEX "define TORCH_VERSION_(MAJOR|MINOR) +[0-9]+")
if(NOT _torch_version_lines)
  # Since 2.9 the numbers live in a header that torch/version.h includes.
  file(STRINGS "${_torch_include}/torch/headeronly/version.h" _torch_version_lines
    REGEX "define TORCH_VERSION_(MAJOR|MINOR) +[0-9]+")
endif()
string(REGEX REPLACE ".*MAJOR +([0-9]+).*MINOR +([0-9]+).*" "\\1.\\2" EVERSTEP_TORCH_VERSION "${_torch_version_lines}")
if(NOT EVERSTEP_TORCH_VERSION MATCHES "^[0-9]+\\.[0-9]+$")
  message(FATAL_ERROR "The version of the libtorch in ${_torch_prefix} could not be read from torch/version.h.")
endif()
message(STATUS "libtorch ${EVERSTEP_TORCH_VERSION} in ${_torch_prefix}")

add_library(everstep_torch_deps INTERFACE IMPORTED GLOBAL)
target_include_directories(everstep_torch_deps SYSTEM INTERFACE ${_torch_include} ${EVERSTEP_TORCH_API_INCLUDE})
target_compile_definitions(everstep_torch_deps INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
target_link_libraries(everstep_torch_deps INTERFACE ${EVERSTEP_LIB_torch_cpu} ${EVERSTEP_LIB_c10})
if(EVERSTEP_TORCH_VERSION VERSION_LESS 2.0)
  # Headers of libtorch 1.x use std::vector<IValue> before IValue is complete; clang refuses that in C++20, where vector is
  # constexpr, unless the header that completes it comes first.
  target_compile_options(everstep_torch_deps INTERFACE
    "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:Clang>>:SHELL:-include ATen/core/ivalue.h>")
endif()
