# Tests of the session core, included by tests/worker/CMakeLists.txt.
everstep_test(session_tests
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/session_step_test.cc ${CMAKE_CURRENT_LIST_DIR}/session_test.cc
  DEPS everstep_session everstep_schema everstep_base LABELS unit)
