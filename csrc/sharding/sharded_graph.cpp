#include "sharding/sharded_graph.h"

#include <map>

#include "sharding/refinement.h"

namespace shardwright {
namespace {

// Sizes of the atoms between `cuts` of the elements [stride, stride * size), outer to inner.
std::vector<std::int64_t> atomSizes(const Cuts& cuts, std::int64_t stride, std::int64_t size) {
  std::vector<std::int64_t> sizes;
  std::int64_t above = stride * size;
  for (const std::int64_t cut : cuts) {
    if (cut > stride && cut < above) {
      sizes.push_back(above / cut);
      above = cut;
    }
  }
  if (above > stride) {
    sizes.push_back(above / stride);
  }
  return sizes;
}

// Rewrites one node's rule so that each factor is one atom.
class RuleRefiner {
 public:
  RuleRefiner(const Graph& graph, NodeId node, const ShardingRule& rule,
              const Refinement& refinement)
      : graph_(graph), node_(node), rule_(rule), refinement_(refinement) {}

  ShardingRule refine() {
    ShardingRule refined = rule_;
    refined.factors.clear();
    factors_ = &refined.factors;
    const std::vector<ValueRef> operands = graph_.node(node_).operands();
    for (std::size_t i = 0; i < operands.size(); ++i) {
      refineMap(operands[i], rule_.operands[i], refined.operands[i]);
    }
    for (std::size_t o = 0; o < rule_.outputs.size(); ++o) {
      const ValueRef value{node_, static_cast<int>(o)};
      refineMap(value, rule_.outputs[o], refined.outputs[o]);
    }
    for (std::size_t o = 0; o < rule_.outputs.size(); ++o) {
      refined.outputs[o].unaffected = atomsOf(rule_.outputs[o].unaffected);
    }
    refined.is_view = rule_.is_view && !any_dropped_;
    return refined;
  }

 private:
  void refineMap(ValueRef value, const TensorMap& map, TensorMap& refined) {
    for (std::size_t d = 0; d < map.dims.size(); ++d) {
      const std::vector<int>& dim = map.dims[d];
      std::vector<int>& target = refined.dims[d];
      target.clear();
      const Cuts& cuts = refinement_.cuts(value, static_cast<int>(d));
      if (!dim.empty() && refinement_.isDropped(node_, dim[0])) {
        any_dropped_ = true;
        const std::int64_t size = graph_.meta(value).shape[d];
        for (const std::int64_t atom : atomSizes(cuts, 1, size)) {
          target.push_back(addFactor(blockedFactor(atom)));
        }
        continue;
      }
      std::int64_t stride = 1;
      for (const int factor : dim) {
        stride *= rule_.factors[static_cast<std::size_t>(factor)].size;
      }
      for (const int factor : dim) {
        const std::int64_t size = rule_.factors[static_cast<std::size_t>(factor)].size;
        stride /= size;
        const std::vector<int>& atoms = refineFactor(factor, atomSizes(cuts, stride, size));
        target.insert(target.end(), atoms.begin(), atoms.end());
      }
    }
  }

  // A blocked factor may be cut differently in different places and is then several factors.
  const std::vector<int>& refineFactor(int index, const std::vector<std::int64_t>& sizes) {
    const auto [entry, is_new] = refined_.try_emplace({index, sizes});
    std::vector<int>& atoms = entry->second;
    if (!is_new) {
      return atoms;
    }
    const Factor& factor = rule_.factors[static_cast<std::size_t>(index)];
    std::int64_t inside = factor.size;
    for (const std::int64_t size : sizes) {
      Factor atom = factor;
      inside /= size;
      atom.size = size;
      if (factor.needs_offset && !atoms.empty()) {
        atom.blocked = true;
        atom.needs_offset = false;
      }
      atom.offset_stride = atom.needs_offset ? inside : 1;
      atoms.push_back(addFactor(atom));
    }
    return atoms;
  }

  std::vector<int> atomsOf(const std::vector<int>& factors) const {
    std::vector<int> atoms;
    for (const auto& [key, refined] : refined_) {
      for (const int factor : factors) {
        if (key.first == factor) {
          atoms.insert(atoms.end(), refined.begin(), refined.end());
        }
      }
    }
    return atoms;
  }

  static Factor blockedFactor(std::int64_t size) {
    Factor factor;
    factor.size = size;
    factor.blocked = true;
    return factor;
  }

  int addFactor(const Factor& factor) {
    factors_->push_back(factor);
    return static_cast<int>(factors_->size()) - 1;
  }

  const Graph& graph_;
  NodeId node_;
  const ShardingRule& rule_;
  const Refinement& refinement_;
  std::vector<Factor>* factors_ = nullptr;
  std::map<std::pair<int, std::vector<std::int64_t>>, std::vector<int>> refined_;
  bool any_dropped_ = false;
};

// Atoms of a value that is its own root, numbered dim by dim, outer to inner.
TensorAtoms rootAtoms(const TensorMeta& meta, ValueRef value, const Refinement& refinement) {
  TensorAtoms atoms;
  for (std::size_t d = 0; d < meta.shape.size(); ++d) {
    std::vector<int>& dim = atoms.dims.emplace_back();
    if (meta.shape[d] <= 1) {
      continue;
    }
    for (const std::int64_t size :
         atomSizes(refinement.cuts(value, static_cast<int>(d)), 1, meta.shape[d])) {
      dim.push_back(static_cast<int>(atoms.sizes.size()));
      atoms.sizes.push_back(size);
    }
  }
  return atoms;
}

// Atoms of a view: those of its operand, found through the factors.
TensorAtoms viewAtoms(const ShardingRule& rule, const TensorAtoms& operand) {
  std::vector<int> atom_of_factor(rule.factors.size(), -1);
  for (std::size_t d = 0; d < operand.dims.size(); ++d) {
    for (std::size_t k = 0; k < operand.dims[d].size(); ++k) {
      atom_of_factor[static_cast<std::size_t>(rule.operands[0].dims[d][k])] = operand.dims[d][k];
    }
  }
  TensorAtoms atoms;
  atoms.sizes = operand.sizes;
  for (const std::vector<int>& dim : rule.outputs[0].dims) {
    std::vector<int>& target = atoms.dims.emplace_back();
    for (const int factor : dim) {
      target.push_back(atom_of_factor[static_cast<std::size_t>(factor)]);
    }
  }
  return atoms;
}

}  // namespace

ShardedGraph::ShardedGraph(const Graph& graph, const RuleRegistry& registry) : graph_(&graph) {
  const std::size_t num_nodes = graph.nodes().size();
  std::vector<ShardingRule> rules;
  rules.reserve(num_nodes);
  for (std::size_t node = 0; node < num_nodes; ++node) {
    rules.push_back(registry.rule(graph, NodeId(node)));
  }
  const Refinement refinement(graph, rules);
  rules_.reserve(num_nodes);
  atoms_.resize(num_nodes);
  roots_.resize(num_nodes);
  storages_.resize(num_nodes);
  for (std::size_t node = 0; node < num_nodes; ++node) {
    const NodeId id(node);
    rules_.push_back(RuleRefiner(graph, id, rules[node], refinement).refine());
    const ShardingRule& rule = rules_.back();
    const std::vector<ValueRef> operands = graph.node(id).operands();
    for (std::size_t o = 0; o < graph.node(id).outputs.size(); ++o) {
      const ValueRef value{id, static_cast<int>(o)};
      const int alias = rule.is_view ? 0 : rule.aliases[o];
      storages_[node].push_back(alias < 0 ? value
                                          : storage(operands[static_cast<std::size_t>(alias)]));
      roots_[node].push_back(rule.is_view ? root(operands[0]) : value);
      atoms_[node].push_back(rule.is_view ? viewAtoms(rule, atoms(operands[0]))
                                          : rootAtoms(graph.meta(value), value, refinement));
    }
  }
}

const TensorAtoms& ShardedGraph::atoms(ValueRef value) const {
  return atoms_[value.node.index()][static_cast<std::size_t>(value.output)];
}

ValueRef ShardedGraph::root(ValueRef value) const {
  return roots_[value.node.index()][static_cast<std::size_t>(value.output)];
}

ValueRef ShardedGraph::storage(ValueRef value) const {
  return storages_[value.node.index()][static_cast<std::size_t>(value.output)];
}

}  // namespace shardwright
