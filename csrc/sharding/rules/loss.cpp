// Pieces of cross entropy over logits [rows, classes]: with the classes sharded each rank sees its
// own range and the sums stay pending.
#include "sharding/rules/families.h"
#include "sharding/rules/rule_builder.h"

namespace shardwright {
namespace {

// (x, maximum) -> sum over classes of exp(x - maximum).
ShardingRule sumExpRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const int rows = rule.addFactor(rule.operandShape(0)[0]);
  const int classes = rule.addFactor(rule.operandShape(0)[1]);
  rule.setOperand(0, {rows, classes});
  rule.setOperand(1, {rows});
  rule.setOutput(0, {rows});
  rule.setFlops(3 * elementCount(rule.operandShape(0)));
  return rule.finish();
}

// (x, target) -> x[i, target[i]]; zero where the class is another rank's.
ShardingRule pickRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const int rows = rule.addFactor(rule.operandShape(0)[0]);
  const int classes = rule.addNeedsOffset(rule.operandShape(0)[1]);
  rule.setOperand(0, {rows, classes});
  rule.setOperand(1, {rows});
  rule.setOutput(0, {rows});
  rule.rule().offset_op = node.op;  // its last argument is the offset
  rule.rule().bytes_moved = static_cast<double>(rule.operandMeta(1).bytes()) +
                            2 * static_cast<double>(node.outputs[0].bytes());
  rule.addPartial({0});
  return rule.finish();
}

// (x, lse, target, grad) -> (exp(x - lse) - onehot(target)) * grad.
ShardingRule softmaxMinusOnehotRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const int rows = rule.addFactor(rule.operandShape(0)[0]);
  const int classes = rule.addNeedsOffset(rule.operandShape(0)[1]);
  rule.setOperand(0, {rows, classes});
  for (int i = 1; i < rule.numOperands(); ++i) {
    rule.setOperand(i, {rows});
  }
  rule.setOutput(0, {rows, classes});
  rule.rule().offset_op = node.op;  // its last argument is the offset
  rule.addPartial({3});
  rule.setFlops(4 * elementCount(rule.operandShape(0)));
  return rule.finish();
}

}  // namespace

void addLossRules(RuleRegistry& registry) {
  registry.add("shardwright.sum_exp.default", sumExpRule);
  registry.add("shardwright.pick.default", pickRule);
  registry.add("shardwright.softmax_minus_onehot.default", softmaxMinusOnehotRule);
}

}  // namespace shardwright
