// Whether the choices of a plan fit the step they are for, checked against the rules directly and
// not through the enumerator of strategies.
#pragma once

#include <vector>

#include "plan/plan.h"
#include "sharding/sharded_graph.h"
#include "sharding/strategy.h"

namespace shardwright {

// The strategy that the specs of `choice` stand for: what each axis does, derived from where the
// atoms lie in the node's rule. Throws PlanError [E314] naming the node and the axis if no reading
// of the rule gives these specs (a reduction left out, two factors on one axis, an uneven shard).
//
// Example: mm "m k, k n -> m n" with operands "R S0", "S0 R" and output "R R P0" splits k over axis
// 0; the same with output "R R" throws.
Strategy checkedStrategy(const ShardedGraph& graph, const std::vector<int>& mesh_shape,
                         const OpChoice& choice);

// That every node of the graph but views has one choice, in graph order, every conversion point of
// the graph one conversion, and that specs have one valid placement per axis. Throws PlanError
// [E314].
void checkCoverage(const ShardedGraph& graph, const StagePlan& stage);

// Error for a plan that does not fit: "<what>", the node and its source line.
[[noreturn]] void throwPlanMismatch(const ShardedGraph& graph, NodeId node, const std::string& what,
                                    std::vector<std::string> values = {});

}  // namespace shardwright
