// Collectives over one mesh axis on torch's process groups, resolved by name. Inputs and results
// are dense local tensors; the result is complete (or, on CUDA, ordered on the current stream).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>

#include "sharding/placement.h"

namespace shardwright {

// "sum", "max" or "min". Throws InternalError [E902] for anything else.
ReduceOp parseReduceOp(const std::string& name);

// S -> R: dim `dim` of `input` is [outer, inner]; the result's is [outer, group_size, inner].
at::Tensor allGather(const at::Tensor& input, std::int64_t dim, std::int64_t outer,
                     std::int64_t group_size, const std::string& group);

// P -> S: dim `dim` of `input` is [outer, group_size, inner]; every rank keeps its own part of the
// reduction. Half-precision sums are taken in float32 and rounded once.
at::Tensor reduceScatter(const at::Tensor& input, std::int64_t dim, std::int64_t outer,
                         std::int64_t group_size, ReduceOp reduce, const std::string& group);

// P -> R. Half-precision sums are taken in float32 and rounded once.
at::Tensor allReduce(const at::Tensor& input, ReduceOp reduce, const std::string& group);

// S(src) -> S(dst): dim `src_dim` of `input` is [src_outer, inner] and gets gathered, dim `dst_dim`
// is [dst_outer, group_size, inner] and gets divided. Both may be the same dim (two of its atoms);
// all sizes are those of `input`.
at::Tensor allToAll(const at::Tensor& input, std::int64_t src_dim, std::int64_t src_outer,
                    std::int64_t dst_dim, std::int64_t dst_outer, std::int64_t group_size,
                    const std::string& group);

// R -> S: part `rank` of dim `dim` seen as [outer, group_size, inner]; a copy, no communication.
at::Tensor shardSlice(const at::Tensor& input, std::int64_t dim, std::int64_t outer,
                      std::int64_t group_size, std::int64_t rank);

// R -> P(sum): a copy where `keep`, zeros elsewhere; no communication.
at::Tensor maskPartial(const at::Tensor& input, bool keep);

// `src_outer` of allToAll after dst is divided: smaller only where dst is an atom of the same dim
// that lies outside src.
std::int64_t exchangedOuter(std::int64_t src_dim, std::int64_t src_outer, std::int64_t dst_dim,
                            std::int64_t dst_outer, std::int64_t group_size);

}  // namespace shardwright
