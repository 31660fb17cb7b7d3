#include "cost/compute.h"

#include <algorithm>

#include "base/checked.h"

namespace shardwright {

namespace {

double peakFlopsPerUs(const Cluster& cluster, DType dtype) {
  auto found = cluster.peak_flops_per_us.find(dtype);
  if (found == cluster.peak_flops_per_us.end()) {
    found = cluster.peak_flops_per_us.find(DType::kFloat32);
  }
  return found == cluster.peak_flops_per_us.end() ? 0 : found->second;
}

// The dtype the arithmetic runs in: that of the first floating operand, else of the first output.
DType computeDType(const Graph& graph, const Node& node) {
  for (const ValueRef operand : node.operands()) {
    if (isFloating(graph.meta(operand).dtype)) {
      return graph.meta(operand).dtype;
    }
  }
  return node.outputs.empty() ? DType::kFloat32 : node.outputs.front().dtype;
}

// Whether the op starts no kernel: an input, or all outputs are windows on operands' storage.
bool isFree(const Node& node, const ShardingRule& rule) {
  const bool only_windows =
      !rule.aliases.empty() && !rule.in_place &&
      std::all_of(rule.aliases.begin(), rule.aliases.end(), [](int alias) { return alias >= 0; });
  return node.input.has_value() || rule.is_view || only_windows;
}

double bytesMoved(const ShardedGraph& graph, NodeId node, const Strategy& strategy,
                  const std::vector<int>& mesh_shape) {
  const ShardingRule& rule = graph.rule(node);
  if (rule.bytes_moved >= 0) {
    return rule.bytes_moved / static_cast<double>(strategy.compute_shards);
  }
  double bytes = 0;
  std::vector<ValueRef> seen;  // a value used twice is read once
  const std::vector<ValueRef> operands = graph.graph().node(node).operands();
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (std::find(seen.begin(), seen.end(), operands[i]) == seen.end()) {
      seen.push_back(operands[i]);
      bytes += static_cast<double>(localBytes(graph.atoms(operands[i]),
                                              graph.graph().meta(operands[i]).dtype,
                                              strategy.operands[i], mesh_shape));
    }
  }
  for (std::size_t i = 0; i < strategy.outputs.size(); ++i) {
    const ValueRef output = {node, static_cast<int>(i)};
    bytes += static_cast<double>(localBytes(graph.atoms(output), graph.graph().meta(output).dtype,
                                            strategy.outputs[i], mesh_shape));
  }
  return bytes;
}

}  // namespace

std::int64_t localBytes(const TensorAtoms& atoms, DType dtype, const ShardingSpec& spec,
                        const std::vector<int>& mesh_shape) {
  std::int64_t bytes = elementBytes(dtype);
  for (const std::int64_t size : localShape(atoms, spec, mesh_shape)) {
    bytes = checkedMul(bytes, size);
  }
  return bytes;
}

double computeCostUs(const ShardedGraph& graph, NodeId node, const Strategy& strategy,
                     const std::vector<int>& mesh_shape, const Cluster& cluster) {
  const Node& op = graph.graph().node(node);
  const ShardingRule& rule = graph.rule(node);
  const double peak = peakFlopsPerUs(cluster, computeDType(graph.graph(), op));
  if (peak <= 0 || isFree(op, rule)) {
    return 0;
  }
  const double arithmetic_us = rule.flops / static_cast<double>(strategy.compute_shards) /
                               (peak * cluster.compute_efficiency);
  const double traffic_us =
      bytesMoved(graph, node, strategy, mesh_shape) / cluster.memory_bandwidth_bytes_per_us;
  return cluster.kernel_overhead_us + std::max(arithmetic_us, traffic_us);
}

}  // namespace shardwright
