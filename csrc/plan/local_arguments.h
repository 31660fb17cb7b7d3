// What one op's call becomes on local shards: which op, with which arguments.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "plan/plan.h"
#include "plan/program_table.h"
#include "sharding/sharded_graph.h"

namespace shardwright {

struct LocalCall {
  std::string op;
  LocalArgList args;
  std::vector<std::pair<std::string, LocalArg>> kwargs;
};

// The node's own op with its arguments edited by its rule, or the rule's offset_op or sharded_op
// where what they are for is sharded. `operands` holds the local value of each tensor operand, in
// the order of Node::operands(). Views are called as reshape where they were calls of view, since
// a converted value need not have the strides of the original. Throws PlanError [E311] when the
// choice's specs do not go with the rule.
//
// Example: embedding with its vocabulary of 8 over axis 1 of (2, 4) becomes
// shardwright.embedding_shard(weight, indices, 2 * coordinate[1]).
LocalCall localCall(const ShardedGraph& graph, const OpChoice& choice,
                    const std::vector<int>& mesh_shape, const std::vector<LocalRef>& operands);

// Error for choices that do not fit the graph: what, the node and its source line.
[[noreturn]] void throwChoiceMismatch(const ShardedGraph& graph, NodeId node,
                                      const std::string& what,
                                      std::vector<std::string> values = {});

}  // namespace shardwright
