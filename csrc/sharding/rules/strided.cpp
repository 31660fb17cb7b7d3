// Diagonals and overlapping windows along a dim: the dims they run over stay whole.
#include "sharding/rules/families.h"
#include "sharding/rules/rule_builder.h"

namespace shardwright {
namespace {

// Factors of the whole tensor with some dims blocked, and of the others alone.
struct SplitDims {
  std::vector<int> whole;
  std::vector<int> others;
};

SplitDims addSplitDims(RuleBuilder& rule, const Shape& whole, const std::vector<int>& blocked) {
  SplitDims result;
  for (std::size_t d = 0; d < whole.size(); ++d) {
    bool is_blocked = false;
    for (const int dim : blocked) {
      is_blocked = is_blocked || dim == static_cast<int>(d);
    }
    result.whole.push_back(is_blocked ? rule.addBlocked(whole[d]) : rule.addFactor(whole[d]));
    if (!is_blocked) {
      result.others.push_back(result.whole.back());
    }
  }
  return result;
}

void setBothSides(RuleBuilder& rule, const std::vector<int>& whole, const std::vector<int>& piece,
                  bool is_backward) {
  rule.setOperand(0, is_backward ? piece : whole);
  rule.setOutput(0, is_backward ? whole : piece);
  rule.addPartial({0});
  if (is_backward) {
    rule.addEdit({.kind = ArgEdit::Kind::kLocalShape, .arg = 1});
  } else {
    rule.rule().aliases = {0};
  }
}

// diagonal(x, offset, dim1, dim2): both dims go, the diagonal is the new last one. The backward has
// the shape of x as its second argument.
ShardingRule diagonalRule(const Graph& graph, const Node& node, bool is_backward) {
  RuleBuilder rule(graph, node);
  const Shape& whole = is_backward ? rule.outputShape(0) : rule.operandShape(0);
  const Shape& diagonal = is_backward ? rule.operandShape(0) : rule.outputShape(0);
  const int shift = is_backward ? 1 : 0;
  const int rank = static_cast<int>(whole.size());
  const SplitDims dims = addSplitDims(
      rule, whole,
      {wrapDim(rule.intArg(2 + shift, 0), rank), wrapDim(rule.intArg(3 + shift, 1), rank)});
  std::vector<int> piece = dims.others;
  piece.push_back(rule.addBlocked(diagonal.back()));
  setBothSides(rule, dims.whole, piece, is_backward);
  return rule.finish();
}

// unfold(x, dim, size, step): the dim counts windows, the new last dim runs within a window.
ShardingRule unfoldRule(const Graph& graph, const Node& node, bool is_backward) {
  RuleBuilder rule(graph, node);
  const Shape& whole = is_backward ? rule.outputShape(0) : rule.operandShape(0);
  const Shape& windows = is_backward ? rule.operandShape(0) : rule.outputShape(0);
  const int dim = wrapDim(rule.intArg(is_backward ? 2 : 1, 0), static_cast<int>(whole.size()));
  const SplitDims dims = addSplitDims(rule, whole, {dim});
  std::vector<int> piece = dims.whole;
  piece[static_cast<std::size_t>(dim)] = rule.addBlocked(windows[static_cast<std::size_t>(dim)]);
  piece.push_back(rule.addBlocked(windows.back()));
  setBothSides(rule, dims.whole, piece, is_backward);
  return rule.finish();
}

}  // namespace

void addStridedRules(RuleRegistry& registry) {
  for (const bool is_backward : {false, true}) {
    registry.add(is_backward ? "aten.diagonal_backward.default" : "aten.diagonal.default",
                 [is_backward](const Graph& graph, const Node& node) {
                   return diagonalRule(graph, node, is_backward);
                 });
    registry.add(is_backward ? "aten.unfold_backward.default" : "aten.unfold.default",
                 [is_backward](const Graph& graph, const Node& node) {
                   return unfoldRule(graph, node, is_backward);
                 });
  }
}

}  // namespace shardwright
