// Random masks drawn from (seed, stream, position in the whole tensor), the same on every mesh.
#include "sharding/rules/families.h"
#include "sharding/rules/rule_builder.h"

namespace shardwright {
namespace {

using Kind = ArgEdit::Kind;

// (x, seed, stream, p); the shard op also takes the global, local and first index of each atom.
ShardingRule dropoutRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const std::vector<int> factors = rule.addFactors(rule.outputShape(0));
  rule.setOperand(0, factors);
  rule.setOutput(0, factors);
  rule.rule().sharded_op = "shardwright.dropout_shard.default";
  rule.addEdit({.kind = Kind::kGlobalAtoms, .arg = -1});
  rule.addEdit({.kind = Kind::kLocalAtoms, .arg = -2});
  rule.addEdit({.kind = Kind::kAtomStarts, .arg = -3});
  rule.addPartial({0});
  rule.setFlops(16 * elementCount(rule.outputShape(0)));
  return rule.finish();
}

}  // namespace

void addRandomRules(RuleRegistry& registry) {
  registry.add("shardwright.dropout.default", dropoutRule);
}

}  // namespace shardwright
