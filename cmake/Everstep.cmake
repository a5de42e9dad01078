# How a room is built: one static library a room, warnings as errors, one include root (the repository).

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release or Debug" FORCE)
endif()

find_program(EVERSTEP_CCACHE ccache)
if(EVERSTEP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${EVERSTEP_CCACHE})
endif()

# Everything our own code is compiled with; third-party headers come in as SYSTEM and stay silent.
add_library(everstep_flags INTERFACE)
target_compile_options(everstep_flags INTERFACE
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wimplicit-fallthrough -Werror
  # g++ 12 sees overlaps in std::string's operator+ that are not there (GCC bug 105329).
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
if(EVERSTEP_SANITIZE)
  # Instrumented code confuses g++'s flow analysis (GCC bug 105562): there its warnings are no errors.
  target_compile_options(everstep_flags INTERFACE
    -fsanitize=${EVERSTEP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -D_GLIBCXX_ASSERTIONS -Wno-error)
  target_link_options(everstep_flags INTERFACE -fsanitize=${EVERSTEP_SANITIZE})
endif()

# everstep_room(NAME SOURCES a.cc b.cc [DEPS everstep_base ...] [PRIVATE_DEPS TBB::tbb ...])
function(everstep_room name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(everstep_${name} STATIC ${ARG_SOURCES})
  target_include_directories(everstep_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/everstep>)
  target_compile_features(everstep_${name} PUBLIC cxx_std_20)
  target_link_libraries(everstep_${name} PUBLIC ${ARG_DEPS} PRIVATE $<BUILD_INTERFACE:everstep_flags> ${ARG_PRIVATE_DEPS})
endfunction()

# What the sanitizer stage of ./dev test runs, and no more.
add_custom_target(sanitized_tests)

# everstep_test(NAME SOURCES a_test.cc [DEPS ...] [LABELS ...]): one GoogleTest binary, registered with CTest as one test.
# Its main() is tests/support/test_main.cc. LABELS: `slow` (over 10 s), `process` and `proof` stay out of the sanitizer runs.
function(everstep_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  # Tests are compiled more often than they run; an empty optional or a wrong index ends them with a word.
  target_compile_options(${name} PRIVATE -O1 -D_GLIBCXX_ASSERTIONS)
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} everstep_test_main everstep_flags)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
  if(NOT ARG_LABELS MATCHES "slow|process|proof")
    add_dependencies(sanitized_tests ${name})
  endif()
endfunction()
