# Target `shardwright_options`: warnings, assertions and sanitizers of every target of ours.
add_library(shardwright_options INTERFACE)
target_compile_options(shardwright_options INTERFACE -Wall -Wextra -Wshadow -Wconversion)
if(SHARDWRIGHT_WERROR)
  target_compile_options(shardwright_options INTERFACE -Werror)
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
    shardwright_options INTERFACE "-fsanitize=${SHARDWRIGHT_SANITIZE}" -fno-omit-frame-pointer
                                  -fno-sanitize-recover=all -g)
  target_link_options(shardwright_options INTERFACE "-fsanitize=${SHARDWRIGHT_SANITIZE}")
endif()
