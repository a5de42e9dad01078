# Tests of ps/kernels and ps/schedule, included by tests/ps/CMakeLists.txt.
everstep_test(kernels_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/kernels_test.cc ${CMAKE_CURRENT_LIST_DIR}/kernels_apply_test.cc
  DEPS everstep_kernels LABELS unit)
# The scalar references must round as the kernels do.
target_compile_options(kernels_test PRIVATE -ffp-contract=off)

everstep_test(schedule_test SOURCES ${CMAKE_CURRENT_LIST_DIR}/schedule_test.cc DEPS everstep_schedule LABELS unit)

if(EVERSTEP_TORCH)
  everstep_test(optimizer_torch_test
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/optimizer_torch_test.cc
    DEPS everstep_kernels everstep_torch_deps LABELS unit torch)
endif()
