#include "sharding/atom_classes.h"

#include <cstddef>

namespace shardwright {

AtomClasses::AtomClasses(const ShardedGraph& graph) : graph_(graph) {
  for (std::size_t index = 0; index < graph.graph().nodes().size(); ++index) {
    first_.emplace_back();
    for (std::size_t output = 0; output < graph.graph().nodes()[index].outputs.size(); ++output) {
      first_.back().push_back(static_cast<int>(parent_.size()));
      const std::size_t count = graph.atoms({NodeId(index), static_cast<int>(output)}).sizes.size();
      for (std::size_t atom = 0; atom < count; ++atom) {
        parent_.push_back(static_cast<int>(parent_.size()));
      }
    }
  }
  for (std::size_t index = 0; index < graph.graph().nodes().size(); ++index) {
    if (!graph.isView(NodeId(index))) {
      joinFactors(NodeId(index));
    }
  }
}

int AtomClasses::of(ValueRef value, int atom) { return find(slot(value, atom)); }

int AtomClasses::slot(ValueRef value, int atom) const {
  const ValueRef root = graph_.root(value);
  return first_[root.node.index()][static_cast<std::size_t>(root.output)] + atom;
}

int AtomClasses::find(int item) {
  while (parent_[static_cast<std::size_t>(item)] != item) {
    int& up = parent_[static_cast<std::size_t>(item)];
    up = parent_[static_cast<std::size_t>(up)];
    item = up;
  }
  return item;
}

void AtomClasses::joinFactors(NodeId node) {
  const ShardingRule& rule = graph_.rule(node);
  std::vector<int> seen(rule.factors.size(), -1);
  const std::vector<ValueRef> operands = graph_.graph().node(node).operands();
  for (std::size_t i = 0; i < operands.size(); ++i) {
    joinTensor(operands[i], rule.operands[i], seen);
  }
  for (std::size_t o = 0; o < rule.outputs.size(); ++o) {
    joinTensor({node, static_cast<int>(o)}, rule.outputs[o], seen);
  }
}

void AtomClasses::joinTensor(ValueRef value, const TensorMap& map, std::vector<int>& seen) {
  const TensorAtoms& atoms = graph_.atoms(value);
  for (std::size_t d = 0; d < atoms.dims.size(); ++d) {
    for (std::size_t k = 0; k < atoms.dims[d].size(); ++k) {
      int& known = seen[static_cast<std::size_t>(map.dims[d][k])];
      const int here = find(slot(value, atoms.dims[d][k]));
      if (known >= 0) {
        parent_[static_cast<std::size_t>(here)] = find(known);
      } else {
        known = here;
      }
    }
  }
}

}  // namespace shardwright
