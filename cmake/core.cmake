# Static library `shardwright_core` (the planner, no torch header) and its Python module `_core`.
set(core_globs "")
foreach(part base graph mesh sharding cost intraop interop plan)
  list(APPEND core_globs "${CMAKE_SOURCE_DIR}/csrc/${part}/*.cpp")
endforeach()
file(GLOB_RECURSE core_sources CONFIGURE_DEPENDS ${core_globs})
add_library(shardwright_core STATIC ${core_sources})
target_include_directories(shardwright_core PUBLIC "${CMAKE_SOURCE_DIR}/csrc")
target_link_libraries(shardwright_core PUBLIC shardwright_options shardwright_cbc)

find_package(Threads REQUIRED)
target_link_libraries(shardwright_core PUBLIC Threads::Threads)

# Compressed problem files (.json.gz) need zlib; without it the reader refuses them by name.
find_package(ZLIB)
if(ZLIB_FOUND)
  target_link_libraries(shardwright_core PUBLIC ZLIB::ZLIB)
  target_compile_definitions(shardwright_core PUBLIC SHARDWRIGHT_HAVE_ZLIB)
else()
  message(STATUS "zlib: not found, .json.gz problem files will be refused "
                 "(apt-get install zlib1g-dev)")
endif()

execute_process(
  COMMAND "${Python_EXECUTABLE}" -c "import pybind11; print(pybind11.get_cmake_dir())"
  OUTPUT_VARIABLE pybind11_DIR OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT pybind11_DIR)
  message(FATAL_ERROR "shardwright needs pybind11 in ${Python_EXECUTABLE}: pip install pybind11")
endif()
find_package(pybind11 CONFIG REQUIRED)

file(GLOB core_binding_sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/csrc/bindings/core/*.cpp")
pybind11_add_module(_core MODULE NO_EXTRAS ${core_binding_sources})
target_link_libraries(_core PRIVATE shardwright_core)
set_target_properties(_core PROPERTIES
  LIBRARY_OUTPUT_DIRECTORY "${SHARDWRIGHT_MODULE_DIR}"
  INSTALL_RPATH "${SHARDWRIGHT_CBC_RPATH}")
