// Pieces of a tensor and their backward: the piece put back among zeros.
#include <algorithm>
#include <limits>

#include "sharding/rules/families.h"
#include "sharding/rules/piece.h"
#include "sharding/rules/rule_builder.h"

namespace shardwright {
namespace {

using Kind = ArgEdit::Kind;

// Argument positions of a slice's dim, start, end and step.
struct SliceArgs {
  int dim;
  int start;
  int end;
  int step;
};

// The factors of the sliced dim in the whole tensor and in the slice.
struct SlicedDim {
  std::vector<int> whole;
  std::vector<int> piece;
  bool is_shardable = false;
};

SlicedDim addSlicedDim(RuleBuilder& rule, std::int64_t size, std::int64_t length, int start_arg,
                       int step_arg) {
  if (length == size) {
    const int factor = rule.addFactor(size);
    return {{factor}, {factor}, true};
  }
  std::int64_t start = rule.intArg(start_arg, 0);
  start = std::clamp<std::int64_t>(start < 0 ? start + size : start, 0, size);
  const std::int64_t step = rule.intArg(step_arg, 1);
  const std::int64_t block = step == 1 ? blockLength(start, length, size) : 1;
  if (block == 1) {
    return {{rule.addBlocked(size)}, {rule.addBlocked(length)}, false};
  }
  const int within = rule.addFactor(block);
  return {{rule.addBlocked(size / block), within}, {rule.addBlocked(length / block), within}, true};
}

// Factors of all dims, `dim` being the sliced one.
struct SlicedTensor {
  DimFactors whole;
  DimFactors piece;
  bool scales = false;  // the bounds must follow the local size
  int dim = 0;
};

SlicedTensor addSlicedTensor(RuleBuilder& rule, const Shape& whole, const Shape& piece,
                             const SliceArgs& args) {
  SlicedTensor result;
  result.dim = wrapDim(rule.intArg(args.dim, 0), static_cast<int>(whole.size()));
  for (std::size_t d = 0; d < whole.size(); ++d) {
    if (static_cast<int>(d) == result.dim) {
      SlicedDim sliced = addSlicedDim(rule, whole[d], piece[d], args.start, args.step);
      result.scales = sliced.is_shardable;
      result.whole.push_back(std::move(sliced.whole));
      result.piece.push_back(std::move(sliced.piece));
    } else {
      const int factor = rule.addFactor(whole[d]);
      result.whole.push_back({factor});
      result.piece.push_back({factor});
    }
  }
  return result;
}

// Bounds scale with the sliced dim of the whole tensor, operand `whole` (-1: output 0).
void scaleBounds(RuleBuilder& rule, const SlicedTensor& sliced, const SliceArgs& args, int whole) {
  const auto num_args = static_cast<int>(rule.node().args.size());
  for (const int arg : {args.start, args.end}) {
    if (sliced.scales && arg < num_args &&
        !rule.node().args[static_cast<std::size_t>(arg)].isNone()) {
      rule.addEdit({.kind = Kind::kScale, .arg = arg, .operand = whole, .dim = sliced.dim});
    }
  }
}

ShardingRule sliceRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  constexpr SliceArgs kArgs{.dim = 1, .start = 2, .end = 3, .step = 4};
  const SlicedTensor sliced =
      addSlicedTensor(rule, rule.operandShape(0), rule.outputShape(0), kArgs);
  rule.setOperandDims(0, sliced.whole);
  rule.setOutputDims(0, sliced.piece);
  scaleBounds(rule, sliced, kArgs, 0);
  rule.addPartial({0});
  rule.rule().aliases = {0};
  rule.rule().is_view = rule.operandShape(0) == rule.outputShape(0);
  return rule.finish();
}

ShardingRule sliceScatterRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  constexpr SliceArgs kArgs{.dim = 2, .start = 3, .end = 4, .step = 5};
  const SlicedTensor sliced =
      addSlicedTensor(rule, rule.operandShape(0), rule.operandShape(1), kArgs);
  rule.setOperandDims(0, sliced.whole);
  rule.setOperandDims(1, sliced.piece);
  rule.setOutputDims(0, sliced.whole);
  scaleBounds(rule, sliced, kArgs, 0);
  rule.addPartial({0, 1});
  return rule.finish();
}

ShardingRule sliceBackwardRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  constexpr SliceArgs kArgs{.dim = 2, .start = 3, .end = 4, .step = 5};
  const SlicedTensor sliced =
      addSlicedTensor(rule, rule.outputShape(0), rule.operandShape(0), kArgs);
  rule.setOperandDims(0, sliced.piece);
  rule.setOutputDims(0, sliced.whole);
  rule.addEdit({.kind = Kind::kLocalShape, .arg = 1});
  scaleBounds(rule, sliced, kArgs, -1);
  rule.addPartial({0});
  return rule.finish();
}

// Factors of a tensor whose dim `dim` is picked from, and of what is left without it.
struct SelectedTensor {
  std::vector<int> whole;
  std::vector<int> rest;
};

SelectedTensor addSelectedTensor(RuleBuilder& rule, const Shape& whole, int dim) {
  SelectedTensor result;
  for (std::size_t d = 0; d < whole.size(); ++d) {
    if (static_cast<int>(d) == dim) {
      result.whole.push_back(rule.addBlocked(whole[d]));
    } else {
      result.whole.push_back(rule.addFactor(whole[d]));
      result.rest.push_back(result.whole.back());
    }
  }
  return result;
}

ShardingRule selectRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const Shape& whole = rule.operandShape(0);
  const int dim = wrapDim(rule.intArg(1, 0), static_cast<int>(whole.size()));
  const SelectedTensor selected = addSelectedTensor(rule, whole, dim);
  rule.setOperand(0, selected.whole);
  rule.setOutput(0, selected.rest);
  rule.addPartial({0});
  rule.rule().aliases = {0};
  return rule.finish();
}

ShardingRule selectBackwardRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const Shape& whole = rule.outputShape(0);
  const int dim = wrapDim(rule.intArg(2, 0), static_cast<int>(whole.size()));
  const SelectedTensor selected = addSelectedTensor(rule, whole, dim);
  rule.setOperand(0, selected.rest);
  rule.setOutput(0, selected.whole);
  rule.addEdit({.kind = Kind::kLocalShape, .arg = 1});
  rule.addPartial({0});
  return rule.finish();
}

ShardingRule selectScatterRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const Shape& whole = rule.operandShape(0);
  const int dim = wrapDim(rule.intArg(2, 0), static_cast<int>(whole.size()));
  const SelectedTensor selected = addSelectedTensor(rule, whole, dim);
  rule.setOperand(0, selected.whole);
  rule.setOperand(1, selected.rest);
  rule.setOutput(0, selected.whole);
  rule.addPartial({0, 1});
  return rule.finish();
}

}  // namespace

void addSliceRules(RuleRegistry& registry) {
  registry.add("aten.slice.Tensor", sliceRule);
  registry.add("aten.slice_scatter.default", sliceScatterRule);
  registry.add("aten.slice_backward.default", sliceBackwardRule);
  registry.add("aten.select.int", selectRule);
  registry.add("aten.select_scatter.default", selectScatterRule);
  registry.add("aten.select_backward.default", selectBackwardRule);
}

}  // namespace shardwright
