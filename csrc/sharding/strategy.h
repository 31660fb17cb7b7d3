// All ways to run one node on a mesh, from its rule: the one enumerator of strategies.
#pragma once

#include <vector>

#include "sharding/sharded_graph.h"

namespace shardwright {

// What each mesh axis does for one node, hence the specs its operands must have and its outputs
// get. Specs name atoms of the operand's or output's root.
struct Strategy {
  // Per axis: factor index it shards; kReplicated; or kFirstPartial - k: partial rule k passes.
  static constexpr int kReplicated = -1;
  static constexpr int kFirstPartial = -2;
  std::vector<int> axis_choice;
  std::vector<int> axis_order;  // per axis: position among axes on the same factor, 0 = outermost
  std::vector<ShardingSpec> operands;
  std::vector<ShardingSpec> outputs;
  std::int64_t compute_shards = 1;  // over how many devices the op's work is divided
};

// Every assignment of mesh axes (sizes in `mesh_shape`, axes of size 1 stay replicated) to
// factors, in a fixed order, all-replicated first. Two axes on one factor come in both orders.
// Graph inputs enumerate every spec without P for parameters, buffers, optimizer state and batch;
// hyper-parameters, seeds and constants are replicated.
std::vector<Strategy> enumerateStrategies(const ShardedGraph& graph, NodeId node,
                                          const std::vector<int>& mesh_shape);

}  // namespace shardwright
