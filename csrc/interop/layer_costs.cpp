#include "interop/layer_costs.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "interop/layer_table.h"
#include "sharding/sharded_graph.h"

namespace shardwright {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// The specs that main values of one shape and dtype can have, and how near the best choices with
// each come to the best of all, over the classes and sides that have such a value.
struct SpecList {
  std::vector<ShardingSpec> specs;
  std::map<ShardingSpec, std::size_t> number;
  std::vector<double> excess;

  std::size_t add(const ShardingSpec& spec) {
    const auto [known, added] = number.try_emplace(spec, specs.size());
    if (added) {
      specs.push_back(spec);
      excess.push_back(kNever);
    }
    return known->second;
  }
};

std::vector<ShardingSpec> nearest(const SpecList& list, std::size_t most) {
  std::vector<std::size_t> order(list.specs.size());
  for (std::size_t index = 0; index < order.size(); ++index) {
    order[index] = index;
  }
  const auto isWhole = [&](std::size_t index) {
    return std::ranges::all_of(list.specs[index], [](const Placement& placement) {
      return placement.kind == Placement::Kind::kReplicate;
    });
  };
  std::ranges::stable_sort(
      order, {}, [&](std::size_t index) { return isWhole(index) ? -kNever : list.excess[index]; });
  order.resize(std::min(order.size(), std::max<std::size_t>(most, 1)));
  std::ranges::sort(order);
  std::vector<ShardingSpec> kept;
  for (const std::size_t index : order) {
    kept.push_back(list.specs[index]);
  }
  return kept;
}

// Where a port's specs stand in the shared list: -1 where it has none of that kind.
std::vector<int> positionsIn(const LayerPort& port, const std::vector<ShardingSpec>& list) {
  std::vector<int> positions;
  for (const ShardingSpec& spec : list) {
    const auto found = std::ranges::find(port.specs, spec);
    positions.push_back(found == port.specs.end() ? -1
                                                  : static_cast<int>(found - port.specs.begin()));
  }
  return positions;
}

std::vector<std::int32_t> presentIn(const std::vector<int>& positions) {
  std::vector<std::int32_t> present;
  std::ranges::copy_if(positions, std::back_inserter(present), [](int at) { return at >= 0; });
  std::ranges::sort(present);
  return present;
}

}  // namespace

struct LayerCosts::Impl {
  struct Class {
    LayerClass layer;
    std::unique_ptr<ShardedGraph> graph;
    // Index of the shape and dtype of the entering and leaving main value; -1 for no value.
    int entry_kind = -1;
    int exit_kind = -1;
  };

  LayerCostOptions options;
  std::vector<Class> classes;
  int num_kinds = 0;
};

LayerCosts::LayerCosts(const LayerGraphs& graphs, const RuleRegistry& registry,
                       const LayerCostOptions& options)
    : impl_(std::make_unique<Impl>()) {
  impl_->options = options;
  std::map<std::pair<std::vector<std::int64_t>, DType>, int> kinds;
  const auto kindOf = [&](const TensorMeta& meta) {
    return kinds.try_emplace({meta.shape, meta.dtype}, static_cast<int>(kinds.size()))
        .first->second;
  };
  for (const LayerClass& layer : graphs.classes) {
    Impl::Class made{layer, std::make_unique<ShardedGraph>(*layer.graph, registry), -1, -1};
    if (layer.main_in) {
      made.entry_kind = kindOf(layer.graph->meta({*layer.main_in, 0}));
    }
    if (layer.main_out) {
      made.exit_kind = kindOf(layer.graph->meta(layer.graph->node(*layer.main_out).operands()[0]));
    }
    impl_->classes.push_back(std::move(made));
  }
  impl_->num_kinds = static_cast<int>(kinds.size());
}

LayerCosts::~LayerCosts() = default;
LayerCosts::LayerCosts(LayerCosts&&) noexcept = default;
LayerCosts& LayerCosts::operator=(LayerCosts&&) noexcept = default;

std::vector<std::vector<bool>> LayerCosts::keptReceived() const {
  std::vector<std::vector<bool>> kept;
  for (const Impl::Class& layer : impl_->classes) {
    kept.push_back(shardwright::keptReceived(*layer.graph, layer.layer));
  }
  return kept;
}

std::vector<LayerTable> LayerCosts::tables(const DeviceMesh& mesh, const Cluster& cluster,
                                           const std::vector<MemoryPrice>& prices) const {
  std::vector<std::unique_ptr<LayerSolver>> solvers;
  std::vector<LayerSolver::Solution> first;
  std::vector<SpecList> lists(static_cast<std::size_t>(impl_->num_kinds));
  const auto isStopped = [&] { return impl_->options.is_stopped && impl_->options.is_stopped(); };
  for (const Impl::Class& layer : impl_->classes) {
    if (isStopped()) return {};
    solvers.push_back(
        std::make_unique<LayerSolver>(*layer.graph, layer.layer, mesh, cluster, impl_->options));
    const LayerSolver& solver = *solvers.back();
    first.push_back(solver.solve(prices.front()));
    const std::vector<double>& costs = first.back().costs();
    const double best = *std::ranges::min_element(costs);
    const std::size_t num_exits = solver.exit().specs.size();
    const auto note = [&](int kind, const ShardingSpec& spec, double cost) {
      if (kind >= 0) {
        SpecList& list = lists[static_cast<std::size_t>(kind)];
        double& excess = list.excess[list.add(spec)];
        excess = std::min(excess, best == kNever ? kNever : cost - best);
      }
    };
    for (std::size_t index = 0; index < costs.size(); ++index) {
      note(layer.entry_kind, solver.entry().specs[index / num_exits], costs[index]);
      note(layer.exit_kind, solver.exit().specs[index % num_exits], costs[index]);
    }
  }
  std::vector<std::vector<ShardingSpec>> kept;
  for (const SpecList& list : lists) {
    kept.push_back(nearest(list, static_cast<std::size_t>(std::max(1, impl_->options.max_specs))));
  }
  std::vector<LayerTable> tables(impl_->classes.size());
  for (std::size_t index = 0; index < tables.size(); ++index) {
    const LayerSolver& solver = *solvers[index];
    const Impl::Class& layer = impl_->classes[index];
    LayerTable& table = tables[index];
    const auto specsOf = [&](int kind) {
      return kind < 0 ? std::vector<ShardingSpec>{ShardingSpec()}
                      : kept[static_cast<std::size_t>(kind)];
    };
    table.entry_specs = specsOf(layer.entry_kind);
    table.exit_specs = specsOf(layer.exit_kind);
    const std::vector<int> entries = positionsIn(solver.entry(), table.entry_specs);
    const std::vector<int> exits = positionsIn(solver.exit(), table.exit_specs);
    const std::vector<std::int32_t> some_entries = presentIn(entries);
    const std::vector<std::int32_t> some_exits = presentIn(exits);
    for (std::size_t price = 0; price < prices.size(); ++price) {
      if (isStopped()) return {};
      const LayerSolver::Solution solution =
          price == 0 ? std::move(first[index])
                     : solver.solve(prices[price], some_entries, some_exits);
      table.is_exact.push_back(solution.ports->isExact());
      std::vector<LayerCost>& costs = table.costs.emplace_back();
      for (const int entry : entries) {
        for (const int exit : exits) {
          costs.push_back(entry < 0 || exit < 0
                              ? LayerCost()
                              : solver.cost(solution, static_cast<std::size_t>(entry),
                                            static_cast<std::size_t>(exit)));
        }
      }
    }
  }
  return tables;
}

}  // namespace shardwright
