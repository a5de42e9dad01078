# Run by CTest (CMakeLists.txt beside this file has the variables).

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "failed (${status}): ${command}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK_DIR})
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${WORK_DIR}/installed)
set(prefixes ${WORK_DIR}/installed ${TORCH_PREFIX})
list(JOIN prefixes "\\;" prefixes)  # one argument, which run() must not take apart
set(flags "")
if(SANITIZE)
  set(flags -fsanitize=${SANITIZE})
endif()
run(${CMAKE_COMMAND} -G Ninja -S ${SOURCE_DIR} -B ${WORK_DIR}/build
  "-DCMAKE_PREFIX_PATH=${prefixes}" -DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_FLAGS=${flags}"
  -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER} -DWITH_TORCH=${TORCH})
run(${CMAKE_COMMAND} --build ${WORK_DIR}/build --parallel 2)
run(${WORK_DIR}/build/plain)
if(TORCH)
  run(${WORK_DIR}/build/with_torch)
endif()
# The installed programs must find their libraries, too.
foreach(program everstep everstep-ps everstep-worker)
  if(TORCH OR EXISTS ${WORK_DIR}/installed/bin/${program})
    run(${WORK_DIR}/installed/bin/${program} --help)
  endif()
endforeach()
