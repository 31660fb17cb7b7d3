// Tensors put side by side: cat, stack, pad.
#include <numeric>

#include "sharding/rules/families.h"
#include "sharding/rules/piece.h"
#include "sharding/rules/rule_builder.h"

namespace shardwright {
namespace {

std::vector<int> allOperands(const RuleBuilder& rule) {
  std::vector<int> operands(static_cast<std::size_t>(rule.numOperands()));
  std::iota(operands.begin(), operands.end(), 0);
  return operands;
}

// The joined dim is (blocks, within a block) when all pieces are whole numbers of blocks: three
// equal parts of a fused QKV gradient are shardable by head. Empty 1-d tensors, which torch lets
// pass, have no factors.
ShardingRule catRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const Shape& whole = rule.outputShape(0);
  const int dim = wrapDim(rule.intArg(1, 0), static_cast<int>(whole.size()));
  const auto joined = static_cast<std::size_t>(dim);
  std::int64_t block = whole[joined];
  for (int i = 0; i < rule.numOperands(); ++i) {
    if (rule.operandShape(i).size() == whole.size()) {
      block = blockLength(0, std::gcd(block, rule.operandShape(i)[joined]), whole[joined]);
    }
  }
  DimFactors output;
  for (std::size_t d = 0; d < whole.size(); ++d) {
    if (d == joined) {
      output.push_back({rule.addBlocked(whole[d] / block), rule.addFactor(block)});
    } else {
      output.push_back({rule.addFactor(whole[d])});
    }
  }
  for (int i = 0; i < rule.numOperands(); ++i) {
    const Shape& shape = rule.operandShape(i);
    if (shape.size() != whole.size()) {
      continue;
    }
    DimFactors operand = output;
    operand[joined] = {rule.addBlocked(shape[joined] / block), output[joined][1]};
    rule.setOperandDims(i, operand);
  }
  rule.setOutputDims(0, output);
  rule.addPartial(allOperands(rule));
  return rule.finish();
}

ShardingRule stackRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const Shape& whole = rule.outputShape(0);
  const int dim = wrapDim(rule.intArg(1, 0), static_cast<int>(whole.size()));
  const std::vector<int> factors = rule.addFactors(rule.operandShape(0));
  for (int i = 0; i < rule.numOperands(); ++i) {
    rule.setOperand(i, factors);
  }
  std::vector<int> output = factors;
  output.insert(output.begin() + dim, rule.addBlocked(rule.numOperands()));
  rule.setOutput(0, output);
  rule.addPartial(allOperands(rule));
  return rule.finish();
}

// Padding is given last dim first, two amounts a dim; amounts count in blocks as in catRule.
ShardingRule padRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const Shape& from = rule.operandShape(0);
  const Shape& to = rule.outputShape(0);
  const std::vector<std::int64_t> amounts = rule.intsArg(1);
  DimFactors operand(from.size());
  DimFactors output(to.size());
  for (std::size_t d = 0; d < from.size(); ++d) {
    const std::size_t position = 2 * (from.size() - 1 - d);
    const std::int64_t before = position < amounts.size() ? amounts[position] : 0;
    const std::int64_t after = position < amounts.size() ? amounts[position + 1] : 0;
    if (before == 0 && after == 0) {
      const int factor = rule.addFactor(from[d]);
      operand[d] = {factor};
      output[d] = {factor};
      continue;
    }
    const std::int64_t block = before >= 0 && after >= 0 ? blockLength(before, from[d], to[d]) : 1;
    const int within = rule.addFactor(block);
    operand[d] = {rule.addBlocked(from[d] / block), within};
    output[d] = {rule.addBlocked(to[d] / block), within};
    for (int side = 0; within != kNoFactor && side < 2; ++side) {
      rule.addEdit({.kind = ArgEdit::Kind::kScale,
                    .arg = 1,
                    .element = static_cast<int>(position) + side,
                    .operand = -1,
                    .dim = static_cast<int>(d)});
    }
  }
  rule.setOperandDims(0, operand);
  rule.setOutputDims(0, output);
  if (rule.numberArg(2, 0) == 0) {
    rule.addPartial({0});
  }
  return rule.finish();
}

}  // namespace

void addJoinRules(RuleRegistry& registry) {
  registry.add("aten.cat.default", catRule);
  registry.add("aten.stack.default", stackRule);
  registry.add("aten.constant_pad_nd.default", padRule);
}

}  // namespace shardwright
