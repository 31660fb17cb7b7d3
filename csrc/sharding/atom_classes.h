// Which atoms of a step's values count the same things: the samples of its batch, wherever they
// are.
#pragma once

#include <vector>

#include "sharding/sharded_graph.h"

namespace shardwright {

// Atoms that share a factor of some op are of one class, and so are those of a value and its views.
// Example: in y = x @ w with x [batch, in], w [in, out], the dim 0 of x and of y are one class, the
// dims called `in` another.
class AtomClasses {
 public:
  explicit AtomClasses(const ShardedGraph& graph);

  // The class of an atom of a value.
  int of(ValueRef value, int atom);

 private:
  int slot(ValueRef value, int atom) const;
  int find(int item);
  void joinFactors(NodeId node);
  void joinTensor(ValueRef value, const TensorMap& map, std::vector<int>& seen);

  const ShardedGraph& graph_;
  std::vector<std::vector<int>> first_;  // [node][output]
  std::vector<int> parent_;
};

}  // namespace shardwright
