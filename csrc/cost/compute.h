// Time of one op on the shards of a strategy: roofline of arithmetic and memory traffic.
#pragma once

#include "mesh/cluster.h"
#include "sharding/sharded_graph.h"
#include "sharding/strategy.h"

namespace shardwright {

// Microseconds of `node` under `strategy` on one device of `cluster`: kernel_overhead_us +
// max(flops / (peak * efficiency), bytes / bandwidth), flops and bytes those of the local shards.
// Views, slices and inputs cost 0. With a cluster whose peak is 0 (abstract) every op costs 0.
double computeCostUs(const ShardedGraph& graph, NodeId node, const Strategy& strategy,
                     const std::vector<int>& mesh_shape, const Cluster& cluster);

// Local bytes of a value under a spec, at least one element.
std::int64_t localBytes(const TensorAtoms& atoms, DType dtype, const ShardingSpec& spec,
                        const std::vector<int>& mesh_shape);

}  // namespace shardwright
