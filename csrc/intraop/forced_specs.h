// Specs that a user demands: what they leave of a node's strategies.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "intraop/spec_tables.h"
#include "intraop/strategy_pool.h"
#include "sharding/sharded_graph.h"

namespace shardwright {

// The value that a spec demanded of a node is about: its output 0, or, as shardwright.send has no
// result, what it sends.
ValueRef forcedValue(const Graph& graph, NodeId node);

// The strategies of `set` that give the node's forcedValue() the spec demanded under the node's
// name or, of an input, its unsharded name; `set` itself where nothing is demanded. Adds the names
// that it went by to `used`. Throws PlanError [E312] when none is left.
std::shared_ptr<const StrategySet> applyForced(const ShardedGraph& graph, NodeId node,
                                               const std::vector<int>& mesh_shape,
                                               const std::map<std::string, ShardingSpec>& forced,
                                               std::shared_ptr<const StrategySet> set,
                                               SpecTables& tables, std::set<std::string>& used);

}  // namespace shardwright
