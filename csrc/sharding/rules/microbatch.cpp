// Where values leave the microbatches: sums over them, and results joined from their parts.
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

}  // namespace

void addMicrobatchRules(RuleRegistry& registry) {
  registry.add("shardwright.accumulate.default", accumulateRule);
  registry.add("shardwright.collect.default", collectRule);
}

}  // namespace shardwright
