// Matrix products: a sum over k of products, so either factor may be pending.
#include "sharding/rules/families.h"
#include "sharding/rules/rule_builder.h"

namespace shardwright {
namespace {

double productFlops(std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k) {
  return 2.0 * static_cast<double>(batch) * static_cast<double>(m) * static_cast<double>(n) *
         static_cast<double>(k);
}

ShardingRule mmRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const Shape& left = rule.operandShape(0);
  const Shape& right = rule.operandShape(1);
  const int m = rule.addFactor(left[0]);
  const int k = rule.addFactor(left[1]);
  const int n = rule.addFactor(right[1]);
  rule.setOperand(0, {m, k});
  rule.setOperand(1, {k, n});
  rule.setOutput(0, {m, n});
  rule.addPartial({0});
  rule.addPartial({1});
  rule.setFlops(productFlops(1, left[0], right[1], left[1]));
  return rule.finish();
}

ShardingRule bmmRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const Shape& left = rule.operandShape(0);
  const Shape& right = rule.operandShape(1);
  const int b = rule.addFactor(left[0]);
  const int m = rule.addFactor(left[1]);
  const int k = rule.addFactor(left[2]);
  const int n = rule.addFactor(right[2]);
  rule.setOperand(0, {b, m, k});
  rule.setOperand(1, {b, k, n});
  rule.setOutput(0, {b, m, n});
  rule.addPartial({0});
  rule.addPartial({1});
  rule.setFlops(productFlops(left[0], left[1], right[2], left[2]));
  return rule.finish();
}

// The added tensor would be added once per shard of k, so k stays whole.
ShardingRule addProductRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const Shape& left = rule.operandShape(1);
  const Shape& right = rule.operandShape(2);
  const bool batched = left.size() == 3;
  std::vector<int> row_factors;
  std::vector<int> column_factors;
  std::vector<int> output_factors;
  if (batched) {
    const int b = rule.addFactor(left[0]);
    row_factors.push_back(b);
    column_factors.push_back(b);
    output_factors.push_back(b);
  }
  const std::int64_t rows = left[left.size() - 2];
  const std::int64_t columns = right.back();
  const int m = rule.addFactor(rows);
  const int k = rule.addBlocked(left.back());
  const int n = rule.addFactor(columns);
  row_factors.insert(row_factors.end(), {m, k});
  column_factors.insert(column_factors.end(), {k, n});
  output_factors.insert(output_factors.end(), {m, n});
  rule.setOperand(0, broadcastFactors(rule.operandShape(0), output_factors));
  rule.setOperand(1, row_factors);
  rule.setOperand(2, column_factors);
  rule.setOutput(0, output_factors);
  rule.addPartial({0, 1});
  rule.addPartial({0, 2});
  rule.setFlops(productFlops(batched ? left[0] : 1, rows, columns, left.back()));
  return rule.finish();
}

ShardingRule mvRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const Shape& matrix = rule.operandShape(0);
  const int m = rule.addFactor(matrix[0]);
  const int k = rule.addFactor(matrix[1]);
  rule.setOperand(0, {m, k});
  rule.setOperand(1, {k});
  rule.setOutput(0, {m});
  rule.addPartial({0});
  rule.addPartial({1});
  rule.setFlops(productFlops(1, matrix[0], 1, matrix[1]));
  return rule.finish();
}

ShardingRule dotRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const int k = rule.addFactor(rule.operandShape(0)[0]);
  rule.setOperand(0, {k});
  rule.setOperand(1, {k});
  rule.addPartial({0});
  rule.addPartial({1});
  rule.setFlops(productFlops(1, 1, 1, rule.operandShape(0)[0]));
  return rule.finish();
}

}  // namespace

void addMatmulRules(RuleRegistry& registry) {
  registry.add("aten.mm.default", mmRule);
  registry.add("aten.bmm.default", bmmRule);
  registry.add("aten.addmm.default", addProductRule);
  registry.add("aten.baddbmm.default", addProductRule);
  registry.add("aten.mv.default", mvRule);
  registry.add("aten.dot.default", dotRule);
}

}  // namespace shardwright
