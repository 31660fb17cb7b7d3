// Where values leave microbatches and stages: sums over microbatches, results joined from their
// parts, values for other stages.
#include "sharding/rules/families.h"
#include "sharding/rules/rule_builder.h"

namespace shardwright {
namespace {

// The sum over microbatches of what its operand was in each, in memory of its own from the first
// microbatch on. A pending sum over ranks may stay pending, so that it is reduced once per step.
ShardingRule accumulateRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const std::vector<int> factors = rule.addFactors(rule.outputShape(0));
  rule.setOperand(0, factors);
  rule.setOutput(0, factors);
  rule.addPartial({0});
  rule.setFlops(0);
  return rule.finish();
}

// A result of all microbatches, joined from whole parts.
ShardingRule collectRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  rule.blockOperand(0);
  rule.blockOutput(0);
  rule.setFlops(0);
  return rule.finish();
}

// Marks a value that another stage needs, in whatever spec it has there. The result is empty.
ShardingRule sendRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  rule.setOperand(0, rule.addFactors(rule.operandShape(0)));
  rule.setFlops(0);
  rule.rule().bytes_moved = 0;
  return rule.finish();
}

}  // namespace

void addMicrobatchRules(RuleRegistry& registry) {
  registry.add("shardwright.accumulate.default", accumulateRule);
  registry.add("shardwright.collect.default", collectRule);
  registry.add("shardwright.send.default", sendRule);
}

}  // namespace shardwright
