// Strategies, costs and bytes of nodes, shared by all nodes that have the same rule on tensors of
// the same form.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "intraop/spec_tables.h"
#include "mesh/cluster.h"
#include "sharding/sharded_graph.h"
#include "sharding/strategy.h"

namespace shardwright {

struct StrategySet {
  std::vector<Strategy> strategies;
  std::vector<double> cost_us;                          // per strategy
  std::vector<SpecListId> operands;                     // per operand: its spec in each strategy
  std::vector<SpecListId> outputs;                      // per output: its spec in each strategy
  std::vector<std::vector<std::int64_t>> output_bytes;  // [output][strategy], local

  // The strategies at `kept` (ascending) alone.
  StrategySet restrictedTo(const std::vector<std::size_t>& kept, SpecTables& tables) const;
};

class StrategyPool {
 public:
  StrategyPool(const ShardedGraph& graph, const DeviceMesh& mesh, const Cluster& cluster,
               bool shard_all_products, SpecTables& tables);

  std::shared_ptr<const StrategySet> strategies(NodeId node);

 private:
  std::string keyOf(NodeId node) const;
  StrategySet build(NodeId node);

  const ShardedGraph* graph_;
  const DeviceMesh* mesh_;
  const Cluster* cluster_;
  bool shard_all_products_;
  SpecTables* tables_;
  std::map<std::string, std::shared_ptr<const StrategySet>> sets_;
};

}  // namespace shardwright
