// A piece of a dim (slice, cat, pad) whose ends fall on multiples of a block: the dim is then
// (blocks, within a block), and both the whole and the piece can be sharded within the blocks.
#pragma once

#include <cstdint>
#include <numeric>

namespace shardwright {

// Length of the blocks for pieces of the given ends, or 1 if the dim has to stay whole. A piece of
// more than kMaxBlocks blocks is an accident of the sizes (1000 of 2048 are multiples of 8), and
// its cuts would tear up the dim for all others.
inline constexpr std::int64_t kMaxBlocks = 16;
inline std::int64_t blockLength(std::int64_t start, std::int64_t length, std::int64_t size) {
  const std::int64_t block = std::gcd(std::gcd(start, length), size);
  return block > 0 && size / block <= kMaxBlocks ? block : 1;
}

}  // namespace shardwright
