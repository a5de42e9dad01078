# Micro-benchmark of ps/kernels, included by bench/CMakeLists.txt.
find_package(benchmark REQUIRED)
add_executable(kernels_bench ${CMAKE_CURRENT_LIST_DIR}/kernels_bench.cc)
target_include_directories(kernels_bench PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(kernels_bench PRIVATE everstep_kernels benchmark::benchmark everstep_flags)
target_compile_options(kernels_bench PRIVATE -O3)
