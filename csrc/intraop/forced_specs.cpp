#include "intraop/forced_specs.h"

#include <utility>

#include "base/error.h"

namespace shardwright {
namespace {

// "dim 0 has 7 elements, which 2 devices do not divide" for each dim that `spec` cannot split.
std::vector<std::string> unevenDims(const TensorAtoms& atoms, const ShardingSpec& spec,
                                    const std::vector<int>& mesh_shape) {
  const std::vector<std::int64_t> shards = atomShards(atoms, spec, mesh_shape);
  std::vector<std::string> lines;
  for (std::size_t dim = 0; dim < atoms.dims.size(); ++dim) {
    for (const int atom : atoms.dims[dim]) {
      const auto index = static_cast<std::size_t>(atom);
      if (atoms.sizes[index] % shards[index] != 0) {
        lines.push_back("dim " + std::to_string(dim) + " has " +
                        std::to_string(atoms.sizes[index]) + " elements, which " +
                        std::to_string(shards[index]) + " devices do not divide");
      }
    }
  }
  return lines;
}

}  // namespace

ValueRef forcedValue(const Graph& graph, NodeId node) {
  const Node& forced = graph.node(node);
  return forced.op == "shardwright.send.default" ? forced.operands().front() : ValueRef{node, 0};
}

std::shared_ptr<const StrategySet> applyForced(const ShardedGraph& graph, NodeId id,
                                               const std::vector<int>& mesh_shape,
                                               const std::map<std::string, ShardingSpec>& forced,
                                               std::shared_ptr<const StrategySet> set,
                                               SpecTables& tables, std::set<std::string>& used) {
  const Node& node = graph.graph().node(id);
  const ValueRef value = forcedValue(graph.graph(), id);
  for (const auto& [name, spec] : forced) {
    if (name != node.name && !(node.input && node.input->name == name)) {
      continue;
    }
    used.insert(name);
    std::vector<std::size_t> kept;
    for (std::size_t index = 0; index < set->strategies.size(); ++index) {
      const Strategy& strategy = set->strategies[index];
      const std::vector<ShardingSpec>& specs =
          value.node == id ? strategy.outputs : strategy.operands;
      if (!specs.empty() && specs.front() == spec) {
        kept.push_back(index);
      }
    }
    if (kept.empty()) {
      const TensorAtoms& atoms = graph.atoms(value);
      std::vector<std::string> values = {"forced: " + printSpec(atoms, spec)};
      for (std::string& uneven : unevenDims(atoms, spec, mesh_shape)) {
        values.push_back(std::move(uneven));
      }
      throw Error(
          ErrorKind::kPlan, "E312", "the forced sharding of " + name + " is not possible.",
          {.values = std::move(values),
           .where = node.source,
           .advice = "a spec whose shards divide each dim evenly, or none for this tensor"});
    }
    set = std::make_shared<const StrategySet>(set->restrictedTo(kept, tables));
  }
  return set;
}

}  // namespace shardwright
