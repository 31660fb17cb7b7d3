// Scaled dot product attention: batch and heads; lengths and the head dim stay whole.
#include "sharding/rules/families.h"
#include "sharding/rules/rule_builder.h"

namespace shardwright {
namespace {

// With grouped queries a key/value head serves `group` neighbouring query heads, so the query heads
// are (key/value heads, group) and only the former are sharded.
struct AttentionFactors {
  DimFactors q;
  DimFactors k;
  DimFactors v;
  DimFactors out;
  DimFactors lse;

  DimFactors mask(const Shape& shape) const {
    DimFactors full = lse;
    full.push_back(k[2]);
    DimFactors own(shape.size());
    for (std::size_t d = 0; d < shape.size(); ++d) {
      if (shape[d] != 1) {
        own[d] = full[full.size() - shape.size() + d];
      }
    }
    return own;
  }
};

AttentionFactors addAttentionFactors(RuleBuilder& rule, const Shape& q, const Shape& k,
                                     const Shape& v) {
  const int batch = rule.addFactor(q[0]);
  const int kv_heads = rule.addFactor(k[1]);
  const int group = rule.addBlocked(q[1] / k[1]);
  const int q_length = rule.addBlocked(q[2]);
  const int kv_length = rule.addBlocked(k[2]);
  const int qk_width = rule.addBlocked(q[3]);
  const int v_width = rule.addBlocked(v[3]);
  const std::vector<int> heads{kv_heads, group};
  AttentionFactors factors;
  factors.q = {{batch}, heads, {q_length}, {qk_width}};
  factors.k = {{batch}, {kv_heads}, {kv_length}, {qk_width}};
  factors.v = {{batch}, {kv_heads}, {kv_length}, {v_width}};
  factors.out = {{batch}, heads, {q_length}, {v_width}};
  factors.lse = {{batch}, heads, {q_length}};
  return factors;
}

// Flops of the two products q k^T and p v over all positions, causal or not.
double productFlops(const Shape& q, const Shape& k, std::int64_t width) {
  return 2 * elementCount({q[0], q[1], q[2], k[2], width});
}

// (q, k, v, mask?, is_causal, scale, enable_gqa) -> out, lse.
ShardingRule attentionRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const Shape& q = rule.operandShape(0);
  const Shape& k = rule.operandShape(1);
  const Shape& v = rule.operandShape(2);
  const AttentionFactors factors = addAttentionFactors(rule, q, k, v);
  rule.setOperandDims(0, factors.q);
  rule.setOperandDims(1, factors.k);
  rule.setOperandDims(2, factors.v);
  if (const std::optional<int> mask = rule.operandOfArg(3)) {
    rule.setOperandDims(*mask, factors.mask(rule.operandShape(*mask)));
  }
  rule.setOutputDims(0, factors.out);
  rule.setOutputDims(1, factors.lse);
  rule.setFlops(productFlops(q, k, q[3]) + productFlops(q, k, v[3]));
  return rule.finish();
}

// (grad, q, k, v, mask?, out, lse, is_causal, scale, enable_gqa) -> dq, dk, dv; linear in grad.
// The scores are computed again: five products.
ShardingRule attentionBackwardRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const Shape& q = rule.operandShape(1);
  const Shape& k = rule.operandShape(2);
  const Shape& v = rule.operandShape(3);
  const AttentionFactors factors = addAttentionFactors(rule, q, k, v);
  rule.setOperandDims(0, factors.out);
  rule.setOperandDims(1, factors.q);
  rule.setOperandDims(2, factors.k);
  rule.setOperandDims(3, factors.v);
  if (const std::optional<int> mask = rule.operandOfArg(4)) {
    rule.setOperandDims(*mask, factors.mask(rule.operandShape(*mask)));
  }
  rule.setOperandDims(rule.operandOfArg(5).value(), factors.out);
  rule.setOperandDims(rule.operandOfArg(6).value(), factors.lse);
  rule.setOutputDims(0, factors.q);
  rule.setOutputDims(1, factors.k);
  rule.setOutputDims(2, factors.v);
  rule.addPartial({0});
  rule.setFlops(3 * productFlops(q, k, q[3]) + 2 * productFlops(q, k, v[3]));
  return rule.finish();
}

}  // namespace

void addAttentionRules(RuleRegistry& registry) {
  registry.add("shardwright.sdpa.default", attentionRule);
  registry.add("shardwright.sdpa_backward.default", attentionBackwardRule);
}

}  // namespace shardwright
