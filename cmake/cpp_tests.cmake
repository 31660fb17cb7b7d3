# GoogleTest binaries: `shardwright_tests` (planner), `shardwright_runtime_tests` (with torch).
find_package(GTest QUIET)
if(NOT GTest_FOUND)
  message(STATUS "GoogleTest: not found, C++ tests are skipped (apt-get install libgtest-dev)")
  return()
endif()

file(GLOB_RECURSE core_test_sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/cpp/*_test.cpp")
set(runtime_test_sources ${core_test_sources})
list(FILTER core_test_sources EXCLUDE REGEX "/tests/cpp/runtime/")
list(FILTER runtime_test_sources INCLUDE REGEX "/tests/cpp/runtime/")

add_executable(shardwright_tests ${core_test_sources})
target_link_libraries(shardwright_tests PRIVATE shardwright_core GTest::gtest_main)
target_include_directories(shardwright_tests PRIVATE "${CMAKE_SOURCE_DIR}/tests/cpp")
# Only the sources that read test data get its absolute path: it keeps ccache from sharing them.
set_source_files_properties("${CMAKE_SOURCE_DIR}/tests/cpp/intraop/contest_reader_test.cpp" PROPERTIES
  COMPILE_DEFINITIONS SHARDWRIGHT_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data")
set_target_properties(shardwright_tests PROPERTIES INSTALL_RPATH "${SHARDWRIGHT_CBC_RPATH}")

if(SHARDWRIGHT_BUILD_RUNTIME AND runtime_test_sources)
  add_executable(shardwright_runtime_tests ${runtime_test_sources})
  target_link_libraries(shardwright_runtime_tests PRIVATE ${runtime_link} GTest::gtest_main)
  target_include_directories(shardwright_runtime_tests PRIVATE "${CMAKE_SOURCE_DIR}/tests/cpp")
  set_target_properties(shardwright_runtime_tests PROPERTIES
    INSTALL_RPATH "${TORCH_LIBRARY_DIRS};${SHARDWRIGHT_CBC_RPATH}")
endif()
