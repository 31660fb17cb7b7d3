# Target `shardwright_cbc`: COIN-OR CBC's C interface, from the system or the pip package cbcbox.
add_library(shardwright_cbc INTERFACE)
set(SHARDWRIGHT_CBC_RPATH "")
set(cbc_found "")

if(SHARDWRIGHT_CBC MATCHES "^(auto|system)$")
  find_package(PkgConfig QUIET)
  if(PkgConfig_FOUND)
    pkg_check_modules(SHARDWRIGHT_SYSTEM_CBC QUIET IMPORTED_TARGET cbc)
    if(SHARDWRIGHT_SYSTEM_CBC_FOUND)
      target_link_libraries(shardwright_cbc INTERFACE PkgConfig::SHARDWRIGHT_SYSTEM_CBC)
      set(cbc_found "system, version ${SHARDWRIGHT_SYSTEM_CBC_VERSION}")
    endif()
  endif()
endif()

# The wheel holds one build for every processor (cbc_dist) beside builds for newer ones; the first
# is linked, so that a module built here also loads elsewhere. Its pkg-config files name folders of
# the wheel's builder: not used.
if(NOT cbc_found AND SHARDWRIGHT_CBC MATCHES "^(auto|cbcbox)$")
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c "import cbcbox; print(cbcbox.__path__[0])"
    OUTPUT_VARIABLE cbcbox_dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(cbcbox_dir)
    find_path(SHARDWRIGHT_CBCBOX_INCLUDE Cbc_C_Interface.h
              PATHS "${cbcbox_dir}/cbc_dist/include" PATH_SUFFIXES coin-or coin NO_DEFAULT_PATH)
    find_library(SHARDWRIGHT_CBCBOX_LIBRARY Cbc
                 PATHS "${cbcbox_dir}/cbc_dist/lib" NO_DEFAULT_PATH)
    if(SHARDWRIGHT_CBCBOX_INCLUDE AND SHARDWRIGHT_CBCBOX_LIBRARY)
      target_include_directories(shardwright_cbc SYSTEM INTERFACE "${SHARDWRIGHT_CBCBOX_INCLUDE}")
      target_link_libraries(shardwright_cbc INTERFACE "${SHARDWRIGHT_CBCBOX_LIBRARY}")
      # GNU ld looks up what libCbc itself needs before it lets a program link.
      target_link_options(shardwright_cbc INTERFACE "LINKER:-rpath-link,${cbcbox_dir}/cbc_dist/lib")
      target_compile_definitions(shardwright_cbc INTERFACE SHARDWRIGHT_CBC_FROM_CBCBOX)
      # First beside the installed package, then where the wheel lies now (in-place builds, C++ tests).
      set(SHARDWRIGHT_CBC_RPATH "$ORIGIN/../cbcbox/cbc_dist/lib" "${cbcbox_dir}/cbc_dist/lib")
      set(cbc_found "pip package cbcbox")
    endif()
  endif()
endif()

if(NOT cbc_found)
  message(FATAL_ERROR
    "shardwright needs the COIN-OR CBC solver and did not find it "
    "(SHARDWRIGHT_CBC=${SHARDWRIGHT_CBC}, Python ${Python_EXECUTABLE}). Get it in one of two ways:\n"
    "  pip install cbcbox                      (no root needed; into the Python named above)\n"
    "  apt-get install coinor-libcbc-dev       (Debian, Ubuntu; found through pkg-config)\n"
    "then configure again.")
endif()
message(STATUS "CBC: ${cbc_found}")
