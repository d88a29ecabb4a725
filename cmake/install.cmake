# The install tree: library, public headers, CMake package, pkg-config file, licence.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# The headers carry the version for C; the project carries it for CMake: they must agree.
file(STRINGS ${PROJECT_SOURCE_DIR}/include/twofour/version.h version_lines
     REGEX "TWOFOUR_VERSION_(MAJOR|MINOR|PATCH) [0-9]+$")
list(TRANSFORM version_lines REPLACE ".* " "")
list(JOIN version_lines "." header_version)
if(NOT header_version VERSION_EQUAL PROJECT_VERSION)
  message(FATAL_ERROR "include/twofour/version.h: expected version ${PROJECT_VERSION}, "
                      "got ${header_version}")
endif()

get_target_property(twofour_type twofour TYPE)
set_target_properties(twofour PROPERTIES
  CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})

install(TARGETS twofour EXPORT twofour
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY include/twofour DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        COMPONENT development FILES_MATCHING PATTERN "*.h")

set(licence_dir ${CMAKE_INSTALL_DATAROOTDIR}/doc/twofour)
install(FILES LICENSE DESTINATION ${licence_dir} COMPONENT development)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/twofour)
install(EXPORT twofour NAMESPACE twofour:: FILE twofour-targets.cmake
        DESTINATION ${package_dir} COMPONENT development)
configure_package_config_file(cmake/twofour-config.cmake.in twofour-config.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(twofour-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/twofour-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/twofour-config-version.cmake
        DESTINATION ${package_dir} COMPONENT development)

# A static library leaves the linking of what it needs to its user, with or without
# `pkg-config --static`, since there is no shared one to ask for.
set(pc_libs "")
if(twofour_type STREQUAL "STATIC_LIBRARY")
  foreach(library IN LISTS OpenMP_CXX_LIB_NAMES ITEMS m)
    string(APPEND pc_libs " -l${library}")
  endforeach()
  if(TWOFOUR_WITH_CUDA)
    string(APPEND pc_libs " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt -lpthread")
  endif()
  # A C program has no C++ run-time library otherwise.
  if("c++" IN_LIST CMAKE_CXX_IMPLICIT_LINK_LIBRARIES)
    string(APPEND pc_libs " -lc++")
  else()
    string(APPEND pc_libs " -lstdc++")
  endif()
endif()
# The prefix from where the file lies, so that the tree can be moved.
file(RELATIVE_PATH pc_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" pc_prefix "${pc_prefix}")
configure_file(cmake/twofour.pc.in twofour.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/twofour.pc
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)

if(TARGET twofour_cli)
  install(TARGETS twofour_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
  install(FILES LICENSE DESTINATION ${licence_dir} COMPONENT tools)
  install(DIRECTORY cases DESTINATION ${CMAKE_INSTALL_DATADIR}/twofour COMPONENT tools)
endif()
