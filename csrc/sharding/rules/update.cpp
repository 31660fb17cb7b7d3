// Optimizer updates: elementwise over the parameter, in place; counters and hyper-parameters are
// scalars that every rank has.
#include <utility>

#include "sharding/rules/families.h"
#include "sharding/rules/rule_builder.h"

namespace shardwright {
namespace {

ShardingRule updateRule(const Graph& graph, const Node& node, std::vector<int> aliases) {
  RuleBuilder rule(graph, node);
  const Shape& shape = rule.operandShape(0);
  const std::vector<int> factors = rule.addFactors(shape);
  for (int i = 0; i < rule.numOperands(); ++i) {
    if (rule.operandShape(i) == shape) {
      rule.setOperand(i, factors);
    }
  }
  for (int output = 0; output < rule.numOutputs(); ++output) {
    if (rule.outputShape(output) == shape) {
      rule.setOutput(output, factors);
    }
    // The step count advances everywhere alike.
    rule.rule().outputs[static_cast<std::size_t>(output)].missing_is_partial = false;
  }
  rule.rule().aliases = std::move(aliases);
  rule.rule().in_place = true;
  rule.setFlops(12 * elementCount(shape));
  return rule.finish();
}

// No fused kernel exists for it: each element costs what the passes of the op's implementation read
// and write, most of them over one or two fp32 tensors into a third.
ShardingRule masterUpdateRule(const Graph& graph, const Node& node) {
  ShardingRule rule = updateRule(graph, node, {-1, 0, 2, 3});
  constexpr double kWideBytes = 112;  // 28 fp32 elements
  const TensorMeta& grad = graph.meta(node.operands()[1]);
  const std::int64_t narrow_bytes =
      elementBytes(grad.dtype) + elementBytes(node.outputs.front().dtype);
  rule.bytes_moved =
      static_cast<double>(grad.numElements()) * (kWideBytes + static_cast<double>(narrow_bytes));
  return rule;
}

RuleMaker updates(std::vector<int> aliases) {
  return [aliases = std::move(aliases)](const Graph& graph, const Node& node) {
    return updateRule(graph, node, aliases);
  };
}

}  // namespace

void addUpdateRules(RuleRegistry& registry) {
  registry.add("shardwright.adam_update.default", updates({0, 2, 3, 4}));
  registry.add("shardwright.adam_amsgrad_update.default", updates({0, 2, 3, 4, 5}));
  registry.add("shardwright.adam_master_update.default", masterUpdateRule);
  registry.add("shardwright.sgd_update.default", updates({0}));
  registry.add("shardwright.sgd_momentum_update.default", updates({0, 2}));
}

}  // namespace shardwright
