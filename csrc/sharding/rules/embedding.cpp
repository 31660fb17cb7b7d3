// Embedding tables: rows that this rank does not hold count as zero, so a sharded vocabulary gives
// a pending sum.
#include "sharding/rules/families.h"
#include "sharding/rules/rule_builder.h"

namespace shardwright {
namespace {

ShardingRule embeddingRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const int vocabulary = rule.addNeedsOffset(rule.operandShape(0)[0]);
  const int width = rule.addFactor(rule.operandShape(0)[1]);
  std::vector<int> factors = rule.addFactors(rule.operandShape(1));
  rule.setOperand(0, {vocabulary, width});
  rule.setOperand(1, factors);
  factors.push_back(width);
  rule.setOutput(0, factors);
  rule.rule().offset_op = "shardwright.embedding_shard.default";
  // Only the rows looked up are read.
  rule.rule().bytes_moved = static_cast<double>(rule.operandMeta(1).bytes()) +
                            2 * static_cast<double>(node.outputs[0].bytes());
  rule.addPartial({0});
  return rule.finish();
}

// (grad, indices, num_weights, padding_idx, scale_grad_by_freq) -> [num_weights, width].
ShardingRule embeddingBackwardRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const bool scales_by_count = rule.boolArg(4, false);
  const Shape& weight = rule.outputShape(0);
  const int vocabulary = rule.addNeedsOffset(weight[0]);
  const int width = rule.addFactor(weight[1]);
  std::vector<int> factors;
  for (const std::int64_t size : rule.operandShape(1)) {
    factors.push_back(scales_by_count ? rule.addBlocked(size) : rule.addFactor(size));
  }
  rule.setOperand(1, factors);
  factors.push_back(width);
  rule.setOperand(0, factors);
  rule.setOutput(0, {vocabulary, width});
  rule.addEdit({.kind = ArgEdit::Kind::kLocalDim, .arg = 2, .output = 0, .dim = 0});
  rule.rule().offset_op = "shardwright.embedding_dense_backward_shard.default";
  rule.addPartial({0});
  rule.setFlops(elementCount(rule.operandShape(0)));
  return rule.finish();
}

}  // namespace

void addEmbeddingRules(RuleRegistry& registry) {
  registry.add("aten.embedding.default", embeddingRule);
  registry.add("aten.embedding_dense_backward.default", embeddingBackwardRule);
}

}  // namespace shardwright
