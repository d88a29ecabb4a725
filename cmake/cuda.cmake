# CUDA: whether kernels for NVIDIA GPUs are built, and how. Sets TWOFOUR_WITH_CUDA.
#
# One object library per set of architectures, since architectures belong to a target, and for each
# part of a kernel family.
# TWOFOUR_CUDA_OBJECTS: the object files of the device code, as generator expressions.
set(TWOFOUR_CUDA "AUTO" CACHE STRING "CUDA kernels: AUTO (when nvcc 12.5 or newer is found), ON or OFF")
set_property(CACHE TWOFOUR_CUDA PROPERTY STRINGS AUTO ON OFF)
set(TWOFOUR_WITH_CUDA OFF)
set(TWOFOUR_CUDA_OBJECTS "")

set(cuda_why_not "")
if(TWOFOUR_CUDA STREQUAL "AUTO" OR TWOFOUR_CUDA)
  # A compiler that was asked for is not replaced by another one.
  set(nvcc "${CMAKE_CUDA_COMPILER}")
  if(NOT nvcc)
    set(nvcc "$ENV{CUDACXX}")
  endif()
  if(NOT nvcc)
    find_program(TWOFOUR_NVCC nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME
                 PATHS /usr/local/cuda PATH_SUFFIXES bin)
    mark_as_advanced(TWOFOUR_NVCC)
    set(nvcc "${TWOFOUR_NVCC}")
  endif()
  if(NOT nvcc)
    set(cuda_why_not "no nvcc was found")
  else()
    execute_process(COMMAND "${nvcc}" --version OUTPUT_VARIABLE nvcc_says ERROR_QUIET
                    RESULT_VARIABLE nvcc_failed)
    if(nvcc_failed OR NOT nvcc_says MATCHES "release ([0-9]+\\.[0-9]+)")
      set(cuda_why_not "${nvcc} does not run")
    elseif(CMAKE_MATCH_1 VERSION_LESS 12.5)
      set(cuda_why_not "expected nvcc 12.5 or newer, got ${CMAKE_MATCH_1} in ${nvcc}")
    else()
      set(TWOFOUR_WITH_CUDA ON)
      set(nvcc_version ${CMAKE_MATCH_1})
    endif()
  endif()
  if(NOT TWOFOUR_WITH_CUDA AND NOT TWOFOUR_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "TWOFOUR_CUDA is ${TWOFOUR_CUDA}: ${cuda_why_not}")
  endif()
else()
  set(cuda_why_not "TWOFOUR_CUDA is ${TWOFOUR_CUDA}")
endif()

if(NOT TWOFOUR_WITH_CUDA)
  message(STATUS "twofour: CUDA kernels are not built: ${cuda_why_not}")
  target_sources(twofour PRIVATE src/cuda/absent/cuda.cc)
  return()
endif()
message(STATUS "twofour: CUDA kernels are built with nvcc ${nvcc_version}")

set(CMAKE_CUDA_COMPILER "${nvcc}" CACHE FILEPATH "CUDA compiler")
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90)  # of CMake's own trial programs only; each target sets its own
endif()
enable_language(CUDA)
if(NOT "cuda_std_20" IN_LIST CMAKE_CUDA_COMPILE_FEATURES)  # CMake 3.25 does not know it of nvcc 13
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
endif()
find_package(CUDAToolkit 12.5 REQUIRED QUIET)  # it would tell of libraries nobody needs

# twofour_cuda_objects(NAME ARCHITECTURES SOURCE...): an object library, part of twofour.
function(twofour_cuda_objects name architectures)
  add_library(${name} OBJECT ${ARGN})
  set_target_properties(${name} PROPERTIES
    CUDA_ARCHITECTURES "${architectures}"
    CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF
    CUDA_RUNTIME_LIBRARY Static
    CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/include
                                             ${PROJECT_SOURCE_DIR}/src)
  target_compile_options(${name} PRIVATE
    --expt-relaxed-constexpr -O3 "-Xcompiler=-Wall,-Wextra,-Wshadow=local,-Wno-unknown-pragmas,-Wno-unknown-pragmas")
  target_sources(twofour PRIVATE $<TARGET_OBJECTS:${name}>)
  set(TWOFOUR_CUDA_OBJECTS ${TWOFOUR_CUDA_OBJECTS} $<TARGET_OBJECTS:${name}> PARENT_SCOPE)
endfunction()

# twofour_cuda_parts(NAME ARCHITECTURES PARTS SOURCE): one file compiled once for each part of it.
function(twofour_cuda_parts name architectures parts source)
  math(EXPR last "${parts} - 1")
  foreach(part RANGE ${last})
    twofour_cuda_objects(${name}_${part} "${architectures}" ${source})
    target_compile_definitions(${name}_${part} PRIVATE TWOFOUR_PART=${part} TWOFOUR_PARTS=${parts})
  endforeach()
  set(TWOFOUR_CUDA_OBJECTS ${TWOFOUR_CUDA_OBJECTS} PARENT_SCOPE)
endfunction()

file(GLOB cuda_sources CONFIGURE_DEPENDS src/cuda/*.cu src/cuda/prepare/*.cu)
twofour_cuda_objects(twofour_cuda "80-real;86-real;89-real;90-real;80-virtual" ${cuda_sources})
# Code for 8.0 runs on 8.6 and 8.9 as it is; everything newer than 9.0 compiles it from PTX.
twofour_cuda_parts(twofour_cuda_sm80 "80-real;90-real;80-virtual" 48 src/cuda/sm80/attention.cu)
# wgmma and TMA in this form exist on Hopper alone: code for 9.0a runs on nothing newer.
twofour_cuda_parts(twofour_cuda_sm90 "90a-real" 32 src/cuda/sm90/attention.cu)

file(GLOB_RECURSE cuda_host_sources CONFIGURE_DEPENDS src/cuda/*.cc)
list(FILTER cuda_host_sources EXCLUDE REGEX "/src/cuda/absent/")
target_sources(twofour PRIVATE ${cuda_host_sources})
target_compile_definitions(twofour PRIVATE TWOFOUR_WITH_CUDA)
# It compiles no CUDA itself; Makefile generators ask all the same.
set_target_properties(twofour PROPERTIES CUDA_ARCHITECTURES OFF)
# The static runtime loads the driver at the first CUDA call; libcuda itself is never linked.
target_link_libraries(twofour PRIVATE CUDA::cudart_static)
