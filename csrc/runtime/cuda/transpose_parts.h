// The copy between part-major and dim-major order on CUDA devices.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace shardwright {

// Contiguous [first, second, columns] -> contiguous [second, first, columns] on the current stream.
// Rows are moved in the widest words that divide them (16 bytes at best), which a general strided
// copy does not do for halves.
at::Tensor transposePartsCuda(const at::Tensor& contiguous, std::int64_t first, std::int64_t second,
                              std::int64_t columns);

}  // namespace shardwright
