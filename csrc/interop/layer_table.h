// The costs of one layer class on one mesh, for every pair of entry and exit spec. Private to
// layer_costs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "interop/layer_costs.h"
#include "interop/layer_memory.h"
#include "interop/port_elimination.h"
#include "intraop/model.h"

namespace shardwright {

// One end of a layer: problem nodes that must agree on a spec.
struct LayerPort {
  std::vector<ShardingSpec> specs;   // that the main value can have
  std::optional<ChoiceNodeId> node;  // of the problem: one strategy per spec; nothing for no value
};

class LayerSolver {
 public:
  // Everything must outlive this. `entry` and `exit`: shape of the main value in the whole graph.
  LayerSolver(const ShardedGraph& graph, const LayerClass& layer, const DeviceMesh& mesh,
              const Cluster& cluster, const LayerCostOptions& options);

  const LayerPort& entry() const { return entry_; }
  const LayerPort& exit() const { return exit_; }

  // Least costs in units for every pair of the ports' specs, entry slowest; infinity where there is
  // no way.
  struct Solution {
    const std::vector<double>& costs() const { return ports->costs(); }

    std::vector<std::vector<std::int64_t>> price_units;  // by problem node and strategy
    std::unique_ptr<Problem> problem;
    std::unique_ptr<PortElimination> ports;
  };
  // With lists, for those of the ports' specs alone (ascending; the others are impossible).
  Solution solve(const MemoryPrice& price) const;
  Solution solve(const MemoryPrice& price, const std::vector<std::int32_t>& entries,
                 const std::vector<std::int32_t>& exits) const;
  // The way that attains one of the costs, by the ports' specs.
  LayerCost cost(const Solution& solution, std::size_t entry, std::size_t exit) const;

 private:
  LayerPort makePort(ProblemBuilder& builder, std::optional<NodeId> first,
                     std::optional<NodeId> second);
  std::vector<std::optional<ShardingSpec>> boundarySpecsOf(NodeId node, ValueRef main) const;

  const ShardedGraph& graph_;
  const LayerClass& layer_;
  const DeviceMesh& mesh_;
  LayerCostOptions options_;
  Model model_;
  LayerMemory memory_;
  std::optional<Problem> problem_;  // the model's, with the ports
  LayerPort entry_;
  LayerPort exit_;
};

}  // namespace shardwright
