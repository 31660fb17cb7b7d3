// Pooling: each image and channel by itself, windows whole.
#include <algorithm>

#include "sharding/rules/families.h"
#include "sharding/rules/rule_builder.h"

namespace shardwright {
namespace {

// All tensors are [batch, channels, height, width] or without the batch; the two last dims are
// windows.
ShardingRule poolingRule(const Graph& graph, const Node& node, bool is_linear) {
  RuleBuilder rule(graph, node);
  const Shape& shape = rule.operandShape(0);
  std::vector<int> leading;
  for (std::size_t d = 0; d + 2 < shape.size(); ++d) {
    leading.push_back(rule.addFactor(shape[d]));
  }
  const auto withWindows = [&](const Shape& own) {
    std::vector<int> factors = leading;
    factors.push_back(rule.addBlocked(own[own.size() - 2]));
    factors.push_back(rule.addBlocked(own.back()));
    return factors;
  };
  double largest = 0;
  for (int i = 0; i < rule.numOperands(); ++i) {
    rule.setOperand(i, withWindows(rule.operandShape(i)));
    largest = std::max(largest, elementCount(rule.operandShape(i)));
  }
  for (int output = 0; output < rule.numOutputs(); ++output) {
    rule.setOutput(output, withWindows(rule.outputShape(output)));
  }
  if (is_linear) {
    rule.addPartial({0});
  }
  rule.setFlops(largest);
  return rule.finish();
}

}  // namespace

void addPoolingRules(RuleRegistry& registry) {
  registry.add("aten.max_pool2d_with_indices.default", [](const Graph& graph, const Node& node) {
    return poolingRule(graph, node, false);
  });
  for (const char* op : {"aten.max_pool2d_with_indices_backward.default", "aten.avg_pool2d.default",
                         "aten.avg_pool2d_backward.default", "aten._adaptive_avg_pool2d.default",
                         "aten._adaptive_avg_pool2d_backward.default"}) {
    registry.add(
        op, [](const Graph& graph, const Node& node) { return poolingRule(graph, node, true); });
  }
}

}  // namespace shardwright
