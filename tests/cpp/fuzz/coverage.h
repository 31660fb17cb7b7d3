// Edge coverage for a fuzzing driver of our own, where the compiler has no libFuzzer (GCC): sources
// compiled with -fsanitize-coverage=trace-pc call __sanitizer_cov_trace_pc in every block.
#pragma once

#include <cstddef>

namespace shardwright::fuzz {

// Forgets what the present execution has covered.
void beginExecution();

// Adds the present execution's coverage (hit counts in powers of two) to all seen so far. Returns
// how many entries are new.
size_t endExecution();

// Entries seen so far.
size_t numCovered();

}  // namespace shardwright::fuzz
