# Bench of checkpoints, included by bench/CMakeLists.txt.
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
add_executable(everstep-bench-checkpoint ${CMAKE_CURRENT_LIST_DIR}/checkpoint_bench.cc)
target_include_directories(everstep-bench-checkpoint PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(everstep-bench-checkpoint PRIVATE
  everstep_checkpoint everstep_kernels CLI11::CLI11 nlohmann_json::nlohmann_json everstep_flags)
