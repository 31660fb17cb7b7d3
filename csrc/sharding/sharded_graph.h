// A graph with its rules refined to atoms and folded views: what the search, the pricing and the
// emission all read.
#pragma once

#include <vector>

#include "graph/graph.h"
#include "sharding/registry.h"
#include "sharding/rule.h"

namespace shardwright {

// Atoms of every value, refined over the whole step (union of the cuts that any view makes,
// carried along factors to a fixpoint), and each node's rule rewritten so that each factor is
// exactly one atom wherever it appears. Where cuts do not nest (6 as 2 x 3 and as 3 x 2) the node
// that comes first in the graph keeps its cut; in the later node the factors concerned become
// blocked (and a view that has any is no longer a view). The new value of an input has the atoms of
// the input, dim by dim. Linear in the size of the graph but for such conflicts.
class ShardedGraph {
 public:
  ShardedGraph(const Graph& graph, const RuleRegistry& registry);

  const Graph& graph() const { return *graph_; }
  // Refined rule: TensorMap::dims of operand i has, dim by dim, as many factors as the atoms of
  // that operand value.
  const ShardingRule& rule(NodeId node) const { return rules_[node.index()]; }
  // Atoms of a value; `sizes` is the root's list, `dims` index into it.
  const TensorAtoms& atoms(ValueRef value) const;
  // The value whose atoms `value` shares through pure views; itself when it is no view. Specs of a
  // value and of its root are the same object.
  ValueRef root(ValueRef value) const;
  bool isView(NodeId node) const { return rules_[node.index()].is_view; }
  // The value that owns the memory of `value`, through views, slices and in-place updates.
  ValueRef storage(ValueRef value) const;

 private:
  const Graph* graph_;
  std::vector<ShardingRule> rules_;
  std::vector<std::vector<TensorAtoms>> atoms_;
  std::vector<std::vector<ValueRef>> roots_;
  std::vector<std::vector<ValueRef>> storages_;
};

}  // namespace shardwright
