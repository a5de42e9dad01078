# Included by worker/CMakeLists.txt: the built-in tasks' data, then, with EVERSTEP_TORCH, all that knows libtorch.
find_package(ZLIB REQUIRED)
everstep_room(datasets
  SOURCES tasks/array_file.cc tasks/data_file.cc tasks/dataset.cc tasks/text.cc
  DEPS everstep_base
  PRIVATE_DEPS ZLIB::ZLIB)

if(NOT EVERSTEP_TORCH)
  return()
endif()

everstep_room(worker_torch
  SOURCES torch_model.cc
  DEPS everstep_worker everstep_torch_deps)

everstep_room(tasks
  SOURCES tasks/char_transformer.cc tasks/dataset_task.cc tasks/fashion_mnist.cc tasks/runtime.cc tasks/script.cc
    tasks/task.cc
  DEPS everstep_worker
  PRIVATE_DEPS everstep_datasets everstep_worker_torch ${CMAKE_DL_LIBS})

find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
add_executable(everstep-worker worker_main.cc stop_signal.cc)
target_include_directories(everstep-worker PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(everstep-worker PRIVATE
  everstep_tasks everstep_worker everstep_discovery CLI11::CLI11 nlohmann_json::nlohmann_json everstep_flags)
