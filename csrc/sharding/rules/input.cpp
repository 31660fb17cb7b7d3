// Inputs of the graph: every dim may be sharded, except in what all ranks must have whole.
#include "sharding/rules/families.h"
#include "sharding/rules/rule_builder.h"

namespace shardwright {
namespace {

bool isAlwaysReplicated(InputKind kind) {
  return kind == InputKind::kHyper || kind == InputKind::kRng || kind == InputKind::kConstant;
}

ShardingRule inputRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  if (node.input && isAlwaysReplicated(node.input->kind)) {
    rule.blockOutput(0);
  } else {
    rule.setOutput(0, rule.addFactors(rule.outputShape(0)));
  }
  return rule.finish();
}

}  // namespace

void addInputRules(RuleRegistry& registry) { registry.add("input", inputRule); }

}  // namespace shardwright
