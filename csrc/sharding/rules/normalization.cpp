// Softmax, layer norm and RMS norm: the normalized dims stay whole.
#include "sharding/rules/families.h"
#include "sharding/rules/rule_builder.h"

namespace shardwright {
namespace {

// Factors of `shape` with the dims from `first` on blocked.
std::vector<int> addTailBlocked(RuleBuilder& rule, const Shape& shape, std::size_t first) {
  std::vector<int> factors;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    factors.push_back(d >= first ? rule.addBlocked(shape[d]) : rule.addFactor(shape[d]));
  }
  return factors;
}

std::vector<int> tail(const std::vector<int>& factors, std::size_t first) {
  return {factors.begin() + static_cast<std::ptrdiff_t>(first), factors.end()};
}

// Every operand and the output have one shape; `dim_arg` is the dim that stays whole.
ShardingRule softmaxRule(const Graph& graph, const Node& node, int dim_arg, bool is_backward) {
  RuleBuilder rule(graph, node);
  const Shape& shape = rule.operandShape(0);
  const int dim = wrapDim(rule.intArg(dim_arg, -1), static_cast<int>(shape.size()));
  std::vector<int> factors;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    factors.push_back(static_cast<int>(d) == dim ? rule.addBlocked(shape[d])
                                                 : rule.addFactor(shape[d]));
  }
  for (int i = 0; i < rule.numOperands(); ++i) {
    rule.setOperand(i, factors);
  }
  rule.setOutput(0, factors);
  if (is_backward) {
    rule.addPartial({0});  // linear in the incoming gradient
  }
  rule.setFlops(5 * elementCount(shape));
  return rule.finish();
}

std::size_t firstNormalized(const RuleBuilder& rule, const Shape& shape, int shape_arg) {
  return shape.size() - rule.intsArg(shape_arg).size();
}

// (x, normalized_shape, weight?, bias?, eps) -> y and one or two statistics per row. The statistics
// keep size-1 dims (layer norm) or not.
ShardingRule normRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const Shape& shape = rule.operandShape(0);
  const std::size_t first = firstNormalized(rule, shape, 1);
  const std::vector<int> factors = addTailBlocked(rule, shape, first);
  rule.setOperand(0, factors);
  for (int i = 1; i < rule.numOperands(); ++i) {
    rule.setOperand(i, tail(factors, first));
  }
  rule.setOutput(0, factors);
  for (int output = 1; output < rule.numOutputs(); ++output) {
    std::vector<int> rows(rule.outputShape(output).size(), kNoFactor);
    for (std::size_t d = 0; d < first && d < rows.size(); ++d) {
      rows[d] = factors[d];
    }
    rule.setOutput(output, rows);
  }
  rule.setFlops(8 * elementCount(shape));
  return rule.finish();
}

// (grad, x, normalized_shape, statistics..., weight?, bias?, output_mask) -> dx, dweight?, dbias?:
// linear in grad, and the parameters' gradients are sums over rows.
ShardingRule normBackwardRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const Shape& shape = rule.operandShape(1);
  const std::size_t first = firstNormalized(rule, shape, 2);
  const std::vector<int> factors = addTailBlocked(rule, shape, first);
  const int num_statistics = rule.numOutputs() - 1;  // 2 with a bias (mean, rstd), 1 without
  const std::optional<int> weight = rule.operandOfArg(3 + num_statistics);
  const std::optional<int> bias = rule.operandOfArg(4 + num_statistics);
  for (int i = 0; i < rule.numOperands(); ++i) {
    if (i < 2) {
      rule.setOperand(i, factors);
    } else if (i == weight || i == bias) {
      rule.setOperand(i, tail(factors, first));
    } else {
      std::vector<int> rows(rule.operandShape(i).size(), kNoFactor);
      for (std::size_t d = 0; d < first && d < rows.size(); ++d) {
        rows[d] = factors[d];
      }
      rule.setOperand(i, rows);
    }
  }
  for (int output = 0; output < rule.numOutputs(); ++output) {
    if (rule.isComputed(output)) {
      rule.setOutput(output, output == 0 ? factors : tail(factors, first));
    }
  }
  rule.addPartial({0});
  rule.setFlops(14 * elementCount(shape));
  return rule.finish();
}

}  // namespace

void addNormalizationRules(RuleRegistry& registry) {
  for (const char* op : {"aten._softmax.default", "aten._log_softmax.default"}) {
    registry.add(op, [](const Graph& graph, const Node& node) {
      return softmaxRule(graph, node, 1, false);
    });
  }
  for (const char* op :
       {"aten._softmax_backward_data.default", "aten._log_softmax_backward_data.default"}) {
    registry.add(
        op, [](const Graph& graph, const Node& node) { return softmaxRule(graph, node, 2, true); });
  }
  registry.add("aten.native_layer_norm.default", normRule);
  registry.add("aten._fused_rms_norm.default", normRule);
  registry.add("aten.native_layer_norm_backward.default", normBackwardRule);
  registry.add("aten._fused_rms_norm_backward.default", normBackwardRule);
}

}  // namespace shardwright
