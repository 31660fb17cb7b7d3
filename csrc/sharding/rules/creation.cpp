// Tensors made from nothing: every rank makes its own part.
#include "sharding/rules/families.h"
#include "sharding/rules/rule_builder.h"

namespace shardwright {
namespace {

using Kind = ArgEdit::Kind;

// `size_arg` is the position of the size argument.
ShardingRule filledRule(const Graph& graph, const Node& node, int size_arg) {
  RuleBuilder rule(graph, node);
  rule.setOutput(0, rule.addFactors(rule.outputShape(0)));
  for (int i = 0; i < rule.numOperands(); ++i) {
    rule.blockOperand(i);
  }
  rule.addEdit({.kind = Kind::kLocalShape, .arg = size_arg});
  return rule.finish();
}

// Takes shape and dtype from its operand, never the values.
ShardingRule likeRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const std::vector<int> factors = rule.addFactors(rule.outputShape(0));
  rule.setOperand(0, factors);
  rule.setOutput(0, factors);
  rule.rule().bytes_moved = static_cast<double>(node.outputs[0].bytes());
  return rule.finish();
}

// The shard op takes (start, end, step, length of the part, first index of the part).
ShardingRule arangeRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  rule.setOutput(0, {rule.addNeedsOffset(rule.outputShape(0)[0])});
  rule.addEdit({.kind = Kind::kLocalDim, .arg = -1, .output = 0, .dim = 0});
  rule.rule().offset_op = "shardwright.arange_shard.default";
  return rule.finish();
}

ShardingRule replicatedRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  for (int output = 0; output < rule.numOutputs(); ++output) {
    rule.blockOutput(output);
  }
  return rule.finish();
}

}  // namespace

void addCreationRules(RuleRegistry& registry) {
  for (const char* op : {"aten.full.default", "aten.zeros.default", "aten.ones.default",
                         "aten.empty.memory_format"}) {
    registry.add(op,
                 [](const Graph& graph, const Node& node) { return filledRule(graph, node, 0); });
  }
  for (const char* op : {"aten.new_full.default", "aten.new_zeros.default", "aten.new_ones.default",
                         "aten.new_empty.default"}) {
    registry.add(op,
                 [](const Graph& graph, const Node& node) { return filledRule(graph, node, 1); });
  }
  for (const char* op : {"aten.full_like.default", "aten.zeros_like.default",
                         "aten.ones_like.default", "aten.empty_like.default"}) {
    registry.add(op, likeRule);
  }
  registry.add("aten.arange.start_step", arangeRule);
  for (const char* op : {"aten.arange.default", "aten.arange.start", "aten.eye.default",
                         "aten.eye.m", "aten.scalar_tensor.default"}) {
    registry.add(op, replicatedRule);
  }
}

}  // namespace shardwright
