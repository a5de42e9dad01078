# everstep-bench-step, with the programs that it starts: everstep-ps and, where Gloo's headers match the libtorch of the
# build (Debian's do; PyTorch's wheels come without them), everstep-gloo-baseline.
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)

add_library(everstep_bench_control STATIC ${CMAKE_CURRENT_LIST_DIR}/step/control.cc)
target_include_directories(everstep_bench_control PUBLIC ${PROJECT_SOURCE_DIR})
target_link_libraries(everstep_bench_control PUBLIC everstep_base PRIVATE everstep_flags)

add_executable(everstep-bench-step)
target_sources(everstep-bench-step PRIVATE
  step/contest.cc
  step/contestants.cc
  step/report.cc
  step/socket_roles.cc
  step/step_main.cc
  step/worker_role.cc)
target_link_libraries(everstep-bench-step PRIVATE
  everstep_bench_control everstep_kernels everstep_worker everstep_transport CLI11::CLI11 nlohmann_json::nlohmann_json Threads::Threads
  everstep_flags)
add_dependencies(everstep-bench-step everstep-ps)

find_path(EVERSTEP_GLOO_INCLUDE gloo/context.h)
mark_as_advanced(EVERSTEP_GLOO_INCLUDE)
if(EVERSTEP_TORCH AND EVERSTEP_TORCH_VERSION VERSION_LESS 2.0 AND EVERSTEP_GLOO_INCLUDE)
  add_executable(everstep-gloo-baseline gloo_baseline.cc)
  target_compile_options(everstep-gloo-baseline PRIVATE -O3)
  target_link_libraries(everstep-gloo-baseline PRIVATE
    everstep_bench_control everstep_torch_deps CLI11::CLI11 everstep_flags)
  add_dependencies(everstep-bench-step everstep-gloo-baseline)
endif()
