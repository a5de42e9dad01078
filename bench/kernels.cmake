# Micro-benchmark of ps/kernels, included by bench/CMakeLists.txt.
find_package(benchmark REQUIRED)
add_executable(everstep-bench-kernels ${CMAKE_CURRENT_LIST_DIR}/kernels_bench.cc)
target_include_directories(everstep-bench-kernels PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(everstep-bench-kernels PRIVATE everstep_kernels benchmark::benchmark everstep_flags)
target_compile_options(everstep-bench-kernels PRIVATE -O3)
