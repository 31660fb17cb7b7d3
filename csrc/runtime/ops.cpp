// The operators torch.ops.shardwright.{all_gather, ...}: schemas, CPU and CUDA kernels, and the
// shape-only kernels that fake and meta tensors use.
#include <ATen/ATen.h>
#include <c10/core/SymInt.h>
#include <torch/library.h>

#include <string>
#include <utility>
#include <vector>

#include "runtime/collectives.h"

namespace shardwright {

namespace {

at::Tensor reduceScatterOp(const at::Tensor& x, std::int64_t dim, std::int64_t outer,
                           std::int64_t group_size, const std::string& reduce_op,
                           const std::string& group) {
  return reduceScatter(x, dim, outer, group_size, parseReduceOp(reduce_op), group);
}

at::Tensor allReduceOp(const at::Tensor& x, const std::string& reduce_op,
                       const std::string& group) {
  return allReduce(x, parseReduceOp(reduce_op), group);
}

// Contiguous result of the input's dtype whose dims are scaled by `times` and `over`.
at::Tensor resized(const at::Tensor& x, std::int64_t gathered_dim, std::int64_t scattered_dim,
                   std::int64_t group_size) {
  std::vector<c10::SymInt> shape = x.sym_sizes().vec();
  if (gathered_dim >= 0) {
    c10::SymInt& size = shape.at(static_cast<std::size_t>(gathered_dim));
    size = size * group_size;
  }
  if (scattered_dim >= 0) {
    c10::SymInt& size = shape.at(static_cast<std::size_t>(scattered_dim));
    TORCH_CHECK(size % group_size == 0, "dim ", scattered_dim, " of size ", size,
                " is not divisible by ", group_size);
    size = size / group_size;
  }
  return at::empty_symint(shape, x.options());
}

at::Tensor allGatherMeta(const at::Tensor& x, std::int64_t dim, std::int64_t /*outer*/,
                         std::int64_t group_size, const std::string& /*group*/) {
  return resized(x, dim, -1, group_size);
}

at::Tensor reduceScatterMeta(const at::Tensor& x, std::int64_t dim, std::int64_t /*outer*/,
                             std::int64_t group_size, const std::string& /*reduce_op*/,
                             const std::string& /*group*/) {
  return resized(x, -1, dim, group_size);
}

at::Tensor allReduceMeta(const at::Tensor& x, const std::string& /*reduce_op*/,
                         const std::string& /*group*/) {
  return resized(x, -1, -1, 1);
}

at::Tensor allToAllMeta(const at::Tensor& x, std::int64_t src_dim, std::int64_t /*src_outer*/,
                        std::int64_t dst_dim, std::int64_t /*dst_outer*/, std::int64_t group_size,
                        const std::string& /*group*/) {
  return resized(x, src_dim, dst_dim, group_size);
}

at::Tensor shardSliceMeta(const at::Tensor& x, std::int64_t dim, std::int64_t /*outer*/,
                          std::int64_t group_size, std::int64_t /*rank*/) {
  return resized(x, -1, dim, group_size);
}

at::Tensor maskPartialMeta(const at::Tensor& x, bool /*keep*/) { return resized(x, -1, -1, 1); }

void registerKernels(torch::Library& library) {
  library.impl("all_gather", &allGather);
  library.impl("reduce_scatter", &reduceScatterOp);
  library.impl("all_reduce", &allReduceOp);
  library.impl("all_to_all", &allToAll);
  library.impl("shard_slice", &shardSlice);
  library.impl("mask_partial", &maskPartial);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(shardwright, library) {
  library.def("all_gather(Tensor x, int dim, int outer, int group_size, str group) -> Tensor");
  library.def(
      "reduce_scatter(Tensor x, int dim, int outer, int group_size, str reduce_op, str group) -> "
      "Tensor");
  library.def("all_reduce(Tensor x, str reduce_op, str group) -> Tensor");
  library.def(
      "all_to_all(Tensor x, int src_dim, int src_outer, int dst_dim, int dst_outer, int "
      "group_size, str group) -> Tensor");
  library.def("shard_slice(Tensor x, int dim, int outer, int group_size, int rank) -> Tensor");
  library.def("mask_partial(Tensor x, bool keep) -> Tensor");
}

TORCH_LIBRARY_IMPL(shardwright, CPU, library) { registerKernels(library); }
TORCH_LIBRARY_IMPL(shardwright, CUDA, library) { registerKernels(library); }
TORCH_LIBRARY_IMPL(shardwright, Meta, library) {
  library.impl("all_gather", &allGatherMeta);
  library.impl("reduce_scatter", &reduceScatterMeta);
  library.impl("all_reduce", &allReduceMeta);
  library.impl("all_to_all", &allToAllMeta);
  library.impl("shard_slice", &shardSliceMeta);
  library.impl("mask_partial", &maskPartialMeta);
}

}  // namespace shardwright
