// Time of one op on the shards of a strategy: roofline of arithmetic and memory traffic.
#pragma once

#include "mesh/cluster.h"
#include "sharding/sharded_graph.h"
#include "sharding/strategy.h"

namespace shardwright {

// Microseconds of `node` under `strategy` on one device of `cluster`: kernel_overhead_us +
// max(flops / (peak * efficiency), bytes / bandwidth), flops and bytes those of the local shards.
// Flops are the rule's, divided by compute_shards, against the peak of the first floating operand's
// dtype; bytes the rule's bytes_moved divided likewise or, where it gives none, the shards of the
// distinct operands and of the outputs. Inputs, views and slices (outputs that live in an operand's
// storage without updating it) cost 0. On an abstract cluster (no peak) every op costs 0.
double computeCostUs(const ShardedGraph& graph, NodeId node, const Strategy& strategy,
                     const std::vector<int>& mesh_shape, const Cluster& cluster);

// Bytes of one rank's shard of a value under a spec.
std::int64_t localBytes(const TensorAtoms& atoms, DType dtype, const ShardingSpec& spec,
                        const std::vector<int>& mesh_shape);

}  // namespace shardwright
