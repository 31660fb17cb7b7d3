#include "interop/layer_table.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "cost/compute.h"
#include "interop/boundary_specs.h"

namespace shardwright {
namespace {

ModelOptions modelOptions(const LayerCostOptions& options) {
  ModelOptions model;
  const auto microbatches = static_cast<double>(options.num_microbatches);
  model.phase_weight = {microbatches, microbatches, 1};
  model.shard_all_products = options.shard_all_products;
  return model;
}

// The value that an input brings in, or that a send takes out.
ValueRef passedBy(const Graph& graph, NodeId node) {
  return graph.node(node).input ? ValueRef{node, 0} : graph.node(node).operands()[0];
}

}  // namespace

LayerSolver::LayerSolver(const ShardedGraph& graph, const LayerClass& layer, const DeviceMesh& mesh,
                         const Cluster& cluster, const LayerCostOptions& options)
    : graph_(graph),
      layer_(layer),
      mesh_(mesh),
      options_(options),
      model_(graph, mesh, cluster, modelOptions(options)),
      memory_(graph, layer, model_) {
  ProblemBuilder builder{model_.problem()};
  entry_ = makePort(builder, layer.main_in, layer.grad_out);
  exit_ = makePort(builder, layer.main_out, layer.grad_in);
  problem_ = std::move(builder).build();
}

std::vector<std::optional<ShardingSpec>> LayerSolver::boundarySpecsOf(NodeId node,
                                                                      ValueRef main) const {
  const Graph& graph = graph_.graph();
  const TensorAtoms& atoms = graph_.atoms(passedBy(graph, node));
  std::vector<std::optional<ShardingSpec>> specs;
  for (const Strategy& strategy : model_.strategies(node)) {
    const ShardingSpec& spec =
        graph.node(node).input ? strategy.outputs.front() : strategy.operands.front();
    specs.push_back(boundarySpec(atoms, spec, graph.meta(main).shape, mesh_.shape()));
  }
  return specs;
}

LayerPort LayerSolver::makePort(ProblemBuilder& builder, std::optional<NodeId> main,
                                std::optional<NodeId> gradient) {
  if (!main) {
    return {{ShardingSpec()}, std::nullopt};
  }
  const ValueRef value = passedBy(graph_.graph(), *main);
  LayerPort port;
  std::map<ShardingSpec, std::int64_t> number;
  for (const std::optional<ShardingSpec>& spec : boundarySpecsOf(*main, value)) {
    if (spec && number.try_emplace(*spec, static_cast<std::int64_t>(port.specs.size())).second) {
      port.specs.push_back(*spec);
    }
  }
  std::vector<std::int64_t> numbers(port.specs.size());
  for (std::size_t index = 0; index < numbers.size(); ++index) {
    numbers[index] = static_cast<std::int64_t>(index);
  }
  port.node = builder.addNode(std::vector<std::int64_t>(port.specs.size(), 0));
  const std::vector<ModelNode>& nodes = model_.nodes();
  for (const std::optional<NodeId>& end : {main, gradient}) {
    if (!end) {
      continue;
    }
    std::vector<std::int64_t> labels;
    for (const std::optional<ShardingSpec>& spec : boundarySpecsOf(*end, value)) {
      const auto known = spec ? number.find(*spec) : number.end();
      labels.push_back(known == number.end() ? -1 : known->second);
    }
    const auto node = std::ranges::find_if(nodes, [&](const ModelNode& candidate) {
      return candidate.kind == ModelNode::Kind::kOp && candidate.op == *end;
    });
    builder.addAlias(*port.node, ChoiceNodeId(static_cast<std::size_t>(node - nodes.begin())),
                     numbers, labels);
  }
  return port;
}

LayerSolver::Solution LayerSolver::solve(const MemoryPrice& price) const {
  const auto all = [](const LayerPort& port) {
    std::vector<std::int32_t> specs(port.specs.size());
    std::iota(specs.begin(), specs.end(), 0);
    return specs;
  };
  return solve(price, all(entry_), all(exit_));
}

LayerSolver::Solution LayerSolver::solve(const MemoryPrice& price,
                                         const std::vector<std::int32_t>& entries,
                                         const std::vector<std::int32_t>& exits) const {
  Solution solution;
  solution.price_units.resize(problem_->numNodes());
  std::vector<std::vector<std::int64_t>> costs;
  for (std::size_t n = 0; n < problem_->numNodes(); ++n) {
    costs.push_back(problem_->nodes()[n].costs);
    std::vector<std::int64_t>& units = solution.price_units[n];
    units.assign(costs.back().size(), 0);
    if (n >= memory_.fixedBytes().size()) {
      continue;
    }
    for (std::size_t s = 0; s < units.size(); ++s) {
      units[s] =
          costUnits(price.fixed_us_per_byte * static_cast<double>(memory_.fixedBytes()[n][s]) +
                    price.saved_us_per_byte * static_cast<double>(memory_.savedBytes()[n][s]));
      costs.back()[s] = addCost(costs.back()[s], units[s]);
    }
  }
  solution.problem = std::make_unique<Problem>(problem_->withNodeCosts(std::move(costs)));
  std::vector<std::int32_t> kept;
  std::vector<std::vector<std::int32_t>> allowed;
  for (const auto& [port, specs] : {std::pair(&entry_, &entries), std::pair(&exit_, &exits)}) {
    if (port->node) {
      kept.push_back(static_cast<std::int32_t>(port->node->index()));
      allowed.push_back(*specs);
    }
  }
  solution.ports =
      std::make_unique<PortElimination>(*solution.problem, kept, allowed, options_.max_work);
  return solution;
}

LayerCost LayerSolver::cost(const Solution& solution, std::size_t entry, std::size_t exit) const {
  LayerCost cost;
  const double claimed = solution.costs()[entry * exit_.specs.size() + exit];
  if (claimed == kInfinity) {
    return cost;
  }
  std::vector<std::int32_t> kept;
  for (const auto& [port, spec] : {std::pair(&entry_, entry), std::pair(&exit_, exit)}) {
    if (port->node) {
      kept.push_back(static_cast<std::int32_t>(spec));
    }
  }
  const std::vector<std::int32_t> choice = solution.ports->choice(kept);
  const std::array<std::int64_t, 3> units = model_.phaseUnits(choice);
  cost.possible = true;
  cost.cost_units = units[0] + units[1] + units[2];
  for (std::size_t n = 0; n < choice.size(); ++n) {
    cost.cost_units += solution.price_units[n][static_cast<std::size_t>(choice[n])];
  }
  if (solution.ports->costShift() == 0 && static_cast<double>(cost.cost_units) != claimed) {
    throw Error(ErrorKind::kInternal, "E931", "a layer's cost is not what its choice costs.",
                {.values = {"found: " + std::to_string(claimed),
                            "its choice: " + std::to_string(cost.cost_units)},
                 .advice = "report this with the model"});
  }
  const auto microbatches = static_cast<double>(options_.num_microbatches);
  cost.forward_us = static_cast<double>(units[0]) / kUnitsPerUs / microbatches;
  cost.backward_us = static_cast<double>(units[1]) / kUnitsPerUs / microbatches;
  cost.update_us = static_cast<double>(units[2]) / kUnitsPerUs;
  memory_.measure(choice, cost);
  if (layer_.main_out) {
    // In another spec it is another buffer than the one that leaves.
    const TensorMeta& meta = graph_.graph().meta(passedBy(graph_.graph(), *layer_.main_out));
    if (cost.saved_exit_bytes !=
        localBytes(wholeDims(meta.shape), meta.dtype, exit_.specs[exit], mesh_.shape())) {
      cost.saved_exit_bytes = 0;
    }
  }
  return cost;
}

}  // namespace shardwright
