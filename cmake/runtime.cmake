# Torch extension `_runtime`: csrc/runtime and its bindings, the only code that sees torch headers.
execute_process(
  COMMAND "${Python_EXECUTABLE}" "${CMAKE_SOURCE_DIR}/cmake/query_torch.py"
  OUTPUT_VARIABLE torch_facts ERROR_VARIABLE torch_error RESULT_VARIABLE torch_status)
if(NOT torch_status EQUAL 0)
  message(FATAL_ERROR
    "shardwright's runtime needs torch in ${Python_EXECUTABLE} "
    "(pip: use --no-build-isolation):\n${torch_error}")
endif()
cmake_language(EVAL CODE "${torch_facts}")

add_library(shardwright_torch INTERFACE)
target_include_directories(shardwright_torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
target_link_directories(shardwright_torch INTERFACE ${TORCH_LIBRARY_DIRS})
target_link_libraries(shardwright_torch INTERFACE ${TORCH_LIBRARY_NAMES} ${TORCH_EXTRA_LIBRARIES})
target_compile_definitions(
  shardwright_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=${TORCH_CXX11_ABI} USE_C10D_GLOO)

# CUDA sources: when torch is a CUDA build and nvcc is there.
set(runtime_cuda OFF)
if(SHARDWRIGHT_CUDA STREQUAL "on" AND NOT TORCH_CUDA_VERSION)
  message(FATAL_ERROR "SHARDWRIGHT_CUDA=on, but torch ${TORCH_VERSION} is not a CUDA build")
endif()
if(TORCH_CUDA_VERSION AND NOT SHARDWRIGHT_CUDA STREQUAL "off")
  find_program(SHARDWRIGHT_NVCC nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(SHARDWRIGHT_NVCC)
    if(CMAKE_VERSION VERSION_LESS 3.26)
      message(FATAL_ERROR "CUDA with C++20 needs CMake 3.26 or newer, this is ${CMAKE_VERSION} "
                          "(pip install cmake)")
    endif()
    if(NOT CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES "80-real;90")
    endif()
    set(CMAKE_CUDA_COMPILER "${SHARDWRIGHT_NVCC}")
    set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # torch's own libcudart is linked
    enable_language(CUDA)
    # The toolkit's headers first: the ones beside torch are of the same release but not all there.
    target_include_directories(
      shardwright_torch SYSTEM BEFORE INTERFACE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(runtime_cuda ON)
  elseif(SHARDWRIGHT_CUDA STREQUAL "on")
    message(FATAL_ERROR "SHARDWRIGHT_CUDA=on, but nvcc is not found (set CUDA_HOME)")
  endif()
endif()
message(STATUS "torch: ${TORCH_VERSION}, CUDA sources: ${runtime_cuda}")

# Objects, not an archive: the operator registrations are static objects that nothing refers to.
file(GLOB_RECURSE runtime_sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/csrc/runtime/*.cpp")
list(FILTER runtime_sources EXCLUDE REGEX "/csrc/runtime/cuda/")
if(runtime_cuda)
  file(GLOB_RECURSE runtime_cuda_sources CONFIGURE_DEPENDS
       "${CMAKE_SOURCE_DIR}/csrc/runtime/cuda/*.cpp" "${CMAKE_SOURCE_DIR}/csrc/runtime/cuda/*.cu")
  list(APPEND runtime_sources ${runtime_cuda_sources})
endif()
set(runtime_link shardwright_core shardwright_torch)
if(runtime_sources)
  add_library(shardwright_runtime OBJECT ${runtime_sources})
  target_link_libraries(shardwright_runtime PUBLIC ${runtime_link})
  if(runtime_cuda)
    target_compile_definitions(shardwright_runtime PUBLIC SHARDWRIGHT_WITH_CUDA USE_C10D_NCCL)
  endif()
  list(PREPEND runtime_link shardwright_runtime)
endif()

file(GLOB runtime_binding_sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/csrc/bindings/runtime/*.cpp")
add_library(_runtime MODULE ${runtime_binding_sources})
target_link_libraries(_runtime PRIVATE ${runtime_link} torch_python Python::Module)
target_compile_definitions(_runtime PRIVATE TORCH_EXTENSION_NAME=_runtime)
set_target_properties(_runtime PROPERTIES
  PREFIX "" SUFFIX ".${Python_SOABI}.so"
  LIBRARY_OUTPUT_DIRECTORY "${SHARDWRIGHT_MODULE_DIR}"
  INSTALL_RPATH "$ORIGIN/../torch/lib;${TORCH_LIBRARY_DIRS};${SHARDWRIGHT_CBC_RPATH}")
