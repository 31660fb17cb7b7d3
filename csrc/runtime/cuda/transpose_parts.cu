#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstdint>

#include "runtime/cuda/transpose_parts.h"

namespace shardwright {

namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMaxBlocks = 65535;

// One word of `words` = first * second * row_words per thread and turn of the grid.
template <typename Word>
__global__ void transposeRows(const Word* __restrict__ source, Word* __restrict__ target,
                              std::int64_t first, std::int64_t second, std::int64_t row_words) {
  const std::int64_t words = first * second * row_words;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < words;
       i += stride) {
    const std::int64_t row = i / row_words;
    const std::int64_t column = i - row * row_words;
    // Writes run in order; reads of one row do too.
    const std::int64_t target_outer = row / first;
    const std::int64_t target_inner = row - target_outer * first;
    target[i] = source[(target_inner * second + target_outer) * row_words + column];
  }
}

template <typename Word>
void launch(const at::Tensor& source, at::Tensor& target, std::int64_t first, std::int64_t second,
            std::int64_t row_bytes) {
  const std::int64_t row_words = row_bytes / static_cast<std::int64_t>(sizeof(Word));
  const std::int64_t words = first * second * row_words;
  const std::int64_t blocks = std::min((words + kThreads - 1) / kThreads, kMaxBlocks);
  transposeRows<Word>
      <<<static_cast<unsigned>(blocks), kThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(
          static_cast<const Word*>(source.const_data_ptr()),
          static_cast<Word*>(target.mutable_data_ptr()), first, second, row_words);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

at::Tensor transposePartsCuda(const at::Tensor& contiguous, std::int64_t first, std::int64_t second,
                              std::int64_t columns) {
  const c10::cuda::CUDAGuard guard(contiguous.device());
  at::Tensor result = at::empty({second, first, columns}, contiguous.options());
  const std::int64_t row_bytes = columns * static_cast<std::int64_t>(contiguous.element_size());
  if (result.numel() == 0) {
    return result;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(contiguous.const_data_ptr());
  const auto fits = [&](std::int64_t word) {
    return row_bytes % word == 0 && address % static_cast<std::uintptr_t>(word) == 0;
  };
  if (fits(16)) {
    launch<uint4>(contiguous, result, first, second, row_bytes);
  } else if (fits(8)) {
    launch<std::uint64_t>(contiguous, result, first, second, row_bytes);
  } else if (fits(4)) {
    launch<std::uint32_t>(contiguous, result, first, second, row_bytes);
  } else if (fits(2)) {
    launch<std::uint16_t>(contiguous, result, first, second, row_bytes);
  } else {
    launch<std::uint8_t>(contiguous, result, first, second, row_bytes);
  }
  return result;
}

}  // namespace shardwright
