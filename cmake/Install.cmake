# What `cmake --install` lays down: the programs, the static libraries and headers that a training loop of one's own needs,
# and a CMake package:
#
#   find_package(everstep REQUIRED COMPONENTS worker_torch)
#   target_link_libraries(mine PRIVATE everstep::worker_torch)   # or everstep::worker, which does without libtorch

include(CMakePackageConfigHelpers)
set(EVERSTEP_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/everstep)

# install_library(ROOM): everstep_ROOM becomes everstep::ROOM for the package's users.
function(install_library room)
  if(TARGET everstep_${room})
    set_target_properties(everstep_${room} PROPERTIES EXPORT_NAME ${room})
    install(TARGETS everstep_${room} EXPORT everstepTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endfunction()

foreach(room base schema transport worker)
  install_library(${room})
endforeach()
if(EVERSTEP_TORCH)
  install_library(worker_torch)
  install(FILES ${PROJECT_SOURCE_DIR}/cmake/Torch.cmake DESTINATION ${EVERSTEP_PACKAGE_DIR} RENAME everstepTorch.cmake)
endif()

# A room's public headers lie in its own folder; those of its inner folders (one transport, one task) stay at home.
foreach(room base schema transport worker)
  file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${room}/*.h)
  if(NOT EVERSTEP_TORCH)
    list(FILTER headers EXCLUDE REGEX "/torch[^/]*\\.h$")
  endif()
  install(FILES ${headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/everstep/${room})
endforeach()

foreach(program everstep everstep-ps everstep-worker)
  if(TARGET ${program})
    # An installed worker finds the same libtorch as the built one, wherever it lies.
    set_target_properties(${program} PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
    install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endforeach()

if(TARGET everstep_base)
  install(EXPORT everstepTargets NAMESPACE everstep:: DESTINATION ${EVERSTEP_PACKAGE_DIR})
endif()
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/everstepConfig.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/everstepConfig.cmake INSTALL_DESTINATION ${EVERSTEP_PACKAGE_DIR})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/everstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/everstepConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/everstepConfigVersion.cmake
  DESTINATION ${EVERSTEP_PACKAGE_DIR})
