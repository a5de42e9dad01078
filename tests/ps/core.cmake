# Tests of the pure cores in ps/, included by tests/ps/CMakeLists.txt.
everstep_test(core_tests
  SOURCES
    ${CMAKE_CURRENT_LIST_DIR}/config_record_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/step_times_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/coordinator_checkpoint_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/coordinator_failure_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/coordinator_join_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/coordinator_modes_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/coordinator_recovery_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/coordinator_servers_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/coordinator_step_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/coordinator_testing.cc
    ${CMAKE_CURRENT_LIST_DIR}/ledger_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/membership_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/policy_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/replica_checkpoint_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/rebalancer_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/replica_copies_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/replica_pull_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/replica_push_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/replica_step_test.cc
  DEPS everstep_core everstep_config everstep_schema everstep_base LABELS unit)

# The record's store beyond one machine, against a real etcd.
everstep_test(etcd_record_test SOURCES ${CMAKE_CURRENT_LIST_DIR}/etcd_record_test.cc
  DEPS everstep_config everstep_test_etcd LABELS unit)
