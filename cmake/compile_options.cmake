# Target `shardwright_options`: warnings, assertions and sanitizers of every target of ours.
add_library(shardwright_options INTERFACE)
# nvcc passes generated code to the host compiler, which must not be held to all our warnings.
set(cxx "$<COMPILE_LANGUAGE:CXX>")
set(cuda "$<COMPILE_LANGUAGE:CUDA>")
target_compile_options(
  shardwright_options INTERFACE "$<${cxx}:-Wall;-Wextra;-Wshadow;-Wconversion>"
                                "$<${cuda}:-Xcompiler=-Wall>")
if(SHARDWRIGHT_WERROR)
  target_compile_options(
    shardwright_options INTERFACE "$<${cxx}:-Werror>" "$<${cuda}:-Werror=all-warnings>")
endif()
if(SHARDWRIGHT_ASSERTIONS)
  target_compile_definitions(shardwright_options INTERFACE _GLIBCXX_ASSERTIONS)
endif()
if(SHARDWRIGHT_SANITIZE)
  if(NOT SHARDWRIGHT_SANITIZE MATCHES "^(address|undefined|address,undefined|thread)$")
    message(FATAL_ERROR "SHARDWRIGHT_SANITIZE is '${SHARDWRIGHT_SANITIZE}'; "
                        "use address, undefined, 'address,undefined' or thread")
  endif()
  target_compile_options(
    shardwright_options INTERFACE
    "$<${cxx}:-fsanitize=${SHARDWRIGHT_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=all;-g1;-O1>")
  target_link_options(shardwright_options INTERFACE "-fsanitize=${SHARDWRIGHT_SANITIZE}")
endif()
