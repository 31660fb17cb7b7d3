#include "fuzz/coverage.h"

#include <array>
#include <cstdint>

namespace shardwright::fuzz {
namespace {

constexpr size_t kMapSize = 1 << 16;
std::array<uint8_t, kMapSize> hits;
std::array<uint8_t, kMapSize> seen;
size_t num_covered = 0;
uintptr_t previous = 0;

// 1, 2, 3, 4-7, 8-15, 16-31, 32-127, 128 and more, as one bit each.
uint8_t bucketOf(uint8_t count) {
  if (count == 0) return 0;
  if (count <= 3) return static_cast<uint8_t>(1 << (count - 1));
  if (count <= 7) return 8;
  if (count <= 15) return 16;
  if (count <= 31) return 32;
  return count <= 127 ? 64 : 128;
}

void record(uintptr_t address) {
  const uintptr_t here = (address >> 4) ^ (address << 8);
  uint8_t& count = hits[(here ^ (previous >> 1)) % kMapSize];
  if (count < 255) ++count;
  previous = here;
}

}  // namespace

void beginExecution() {
  hits.fill(0);
  previous = 0;
}

size_t endExecution() {
  size_t num_new = 0;
  for (size_t i = 0; i < kMapSize; ++i) {
    const uint8_t bucket = bucketOf(hits[i]);
    if ((bucket & static_cast<uint8_t>(~seen[i])) == 0) continue;
    if (seen[i] == 0) ++num_covered;
    seen[i] |= bucket;
    ++num_new;
  }
  return num_new;
}

size_t numCovered() { return num_covered; }

}  // namespace shardwright::fuzz

// Called by instrumented code; this file itself is not instrumented.
extern "C" void __sanitizer_cov_trace_pc() {
  shardwright::fuzz::record(reinterpret_cast<uintptr_t>(__builtin_return_address(0)));
}
