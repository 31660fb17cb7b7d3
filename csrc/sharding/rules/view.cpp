// Ops that only regroup, permute or repeat the dims of their operand.
#include <algorithm>

#include "sharding/rules/families.h"
#include "sharding/rules/rule_builder.h"

namespace shardwright {
namespace {

using Kind = ArgEdit::Kind;

// Consecutive dims of both sides with the same number of elements.
struct Block {
  std::vector<std::size_t> from;
  std::vector<std::size_t> to;
};

// Smallest blocks into which both shapes fall; dims of size 1 are in none.
std::vector<Block> commonBlocks(const Shape& from, const Shape& to) {
  std::vector<Block> blocks;
  std::size_t i = 0;
  std::size_t j = 0;
  const auto skipOnes = [](const Shape& shape, std::size_t& dim) {
    while (dim < shape.size() && shape[dim] == 1) {
      ++dim;
    }
  };
  for (;;) {
    skipOnes(from, i);
    skipOnes(to, j);
    if (i == from.size() || j == to.size()) {
      return blocks;
    }
    Block block;
    std::int64_t from_size = from[i];
    std::int64_t to_size = to[j];
    block.from.push_back(i++);
    block.to.push_back(j++);
    while (from_size != to_size) {
      Block& current = block;
      if (from_size < to_size) {
        skipOnes(from, i);
        from_size *= from[i];
        current.from.push_back(i++);
      } else {
        skipOnes(to, j);
        to_size *= to[j];
        current.to.push_back(j++);
      }
    }
    blocks.push_back(std::move(block));
  }
}

// Numbers of elements inside each dim of a block: {2, 3, 4} gives {12, 4, 1}.
std::vector<std::int64_t> strides(const Shape& shape, const std::vector<std::size_t>& dims) {
  std::vector<std::int64_t> result(dims.size());
  std::int64_t stride = 1;
  for (std::size_t k = dims.size(); k-- > 0;) {
    result[k] = stride;
    stride *= shape[dims[k]];
  }
  return result;
}

// Fills the factors of one block: the common refinement of both sides, or a blocked factor per dim
// where the sides do not nest ([6, 4] seen as [4, 6]). Returns whether they nest.
bool addBlock(RuleBuilder& rule, const Block& block, const Shape& from, const Shape& to,
              DimFactors& from_dims, DimFactors& to_dims) {
  const std::vector<std::int64_t> from_strides = strides(from, block.from);
  const std::vector<std::int64_t> to_strides = strides(to, block.to);
  std::vector<std::int64_t> cuts = from_strides;
  cuts.insert(cuts.end(), to_strides.begin(), to_strides.end());
  std::sort(cuts.begin(), cuts.end(), std::greater<>());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  const std::int64_t total = from_strides[0] * from[block.from[0]];
  bool nests = true;
  std::int64_t above = total;
  for (const std::int64_t cut : cuts) {
    nests = nests && above % cut == 0;
    above = cut;
  }
  const auto assign = [&](const Shape& shape, const std::vector<std::size_t>& dims,
                          const std::vector<std::int64_t>& dim_strides, DimFactors& target,
                          const std::vector<int>& factors) {
    for (std::size_t k = 0; k < dims.size(); ++k) {
      if (!nests) {
        target[dims[k]] = {rule.addBlocked(shape[dims[k]])};
        continue;
      }
      const std::int64_t end = dim_strides[k] * shape[dims[k]];
      for (std::size_t c = 0; c < cuts.size(); ++c) {
        if (cuts[c] >= dim_strides[k] && cuts[c] < end) {
          target[dims[k]].push_back(factors[c]);
        }
      }
    }
  };
  std::vector<int> factors;
  above = total;
  for (const std::int64_t cut : cuts) {
    factors.push_back(nests ? rule.addFactor(above / cut) : kNoFactor);
    above = cut;
  }
  assign(from, block.from, from_strides, from_dims, factors);
  assign(to, block.to, to_strides, to_dims, factors);
  return nests;
}

ShardingRule viewRule(const Graph& graph, const Node& node, bool shape_is_argument) {
  RuleBuilder rule(graph, node);
  const Shape& from = rule.operandShape(0);
  const Shape& to = rule.outputShape(0);
  if (std::count(from.begin(), from.end(), 0) > 0) {
    rule.blockOperand(0);
    rule.blockOutput(0);
    return rule.finish();
  }
  DimFactors from_dims(from.size());
  DimFactors to_dims(to.size());
  bool nests = true;
  for (const Block& block : commonBlocks(from, to)) {
    nests = addBlock(rule, block, from, to, from_dims, to_dims) && nests;
  }
  rule.setOperandDims(0, from_dims);
  rule.setOutputDims(0, to_dims);
  rule.addPartial({0});
  if (shape_is_argument) {
    rule.addEdit({.kind = Kind::kLocalShape, .arg = 1});
  }
  rule.rule().is_view = nests;
  rule.rule().aliases = {0};
  return rule.finish();
}

ShardingRule permuted(RuleBuilder rule, const std::vector<int>& order) {
  const std::vector<int> factors = rule.addFactors(rule.operandShape(0));
  std::vector<int> output;
  for (const int dim : order) {
    output.push_back(factors[static_cast<std::size_t>(dim)]);
  }
  rule.setOperand(0, factors);
  rule.setOutput(0, output);
  rule.addPartial({0});
  rule.rule().is_view = true;
  rule.rule().aliases = {0};
  return rule.finish();
}

ShardingRule permuteRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const int rank = static_cast<int>(rule.operandShape(0).size());
  std::vector<int> order;
  for (const std::int64_t dim : rule.intsArg(1)) {
    order.push_back(wrapDim(dim, rank));
  }
  return permuted(std::move(rule), order);
}

std::vector<int> swapped(int rank, int a, int b) {
  std::vector<int> order;
  for (int dim = 0; dim < rank; ++dim) {
    order.push_back(dim == a ? b : dim == b ? a : dim);
  }
  return order;
}

ShardingRule transposeRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const int rank = static_cast<int>(rule.operandShape(0).size());
  const int a = wrapDim(rule.intArg(1, 0), rank);
  const int b = wrapDim(rule.intArg(2, 0), rank);
  return permuted(std::move(rule), swapped(rank, a, b));
}

ShardingRule matrixTransposeRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const int rank = static_cast<int>(rule.operandShape(0).size());
  return permuted(std::move(rule), swapped(rank, 0, rank - 1));
}

// The new elements are copies: each rank makes those it needs.
ShardingRule expandRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const std::vector<int> factors = rule.addFactors(rule.outputShape(0));
  rule.setOperand(0, broadcastFactors(rule.operandShape(0), factors));
  rule.setOutput(0, factors);
  rule.addPartial({0});
  rule.addEdit({.kind = Kind::kLocalShape, .arg = 1});
  rule.rule().aliases = {0};
  rule.rule().is_view = rule.operandShape(0) == rule.outputShape(0);
  return rule.finish();
}

// Each repeated dim is (times, size) with the times outside.
ShardingRule repeatRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const Shape& from = rule.operandShape(0);
  const Shape& to = rule.outputShape(0);
  const std::size_t missing = to.size() - from.size();
  DimFactors from_dims(from.size());
  DimFactors to_dims(to.size());
  for (std::size_t d = 0; d < to.size(); ++d) {
    const std::int64_t size = d < missing ? 1 : from[d - missing];
    const int kept = rule.addFactor(size);
    to_dims[d] = {rule.addBlocked(size == 0 ? 0 : to[d] / size), kept};
    if (d >= missing) {
      from_dims[d - missing] = {kept};
    }
  }
  rule.setOperandDims(0, from_dims);
  rule.setOutputDims(0, to_dims);
  rule.addPartial({0});
  return rule.finish();
}

// Which dims go is decided by their size, so none that may go and is larger than 1 is sharded: its
// local size could be 1.
ShardingRule squeezeRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const Shape& from = rule.operandShape(0);
  const int rank = static_cast<int>(from.size());
  std::vector<bool> may_go(from.size(), node.args.size() < 2);
  for (const std::int64_t dim : rule.intsArg(1)) {
    may_go[static_cast<std::size_t>(wrapDim(dim, rank))] = true;
  }
  std::vector<int> factors;
  std::vector<int> kept;
  for (std::size_t d = 0; d < from.size(); ++d) {
    factors.push_back(may_go[d] ? rule.addBlocked(from[d]) : rule.addFactor(from[d]));
    if (!may_go[d] || from[d] != 1) {
      kept.push_back(factors.back());
    }
  }
  rule.setOperand(0, factors);
  rule.setOutput(0, kept);
  rule.addPartial({0});
  rule.rule().aliases = {0};
  return rule.finish();
}

// Reorders elements along some dims, which stay whole.
ShardingRule reorderRule(const Graph& graph, const Node& node, int dims_arg) {
  RuleBuilder rule(graph, node);
  const Shape& shape = rule.operandShape(0);
  const int rank = static_cast<int>(shape.size());
  std::vector<bool> blocked(shape.size(), rule.intsArg(dims_arg).empty());
  for (const std::int64_t dim : rule.intsArg(dims_arg)) {
    blocked[static_cast<std::size_t>(wrapDim(dim, rank))] = true;
  }
  std::vector<int> factors;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    factors.push_back(blocked[d] ? rule.addBlocked(shape[d]) : rule.addFactor(shape[d]));
  }
  rule.setOperand(0, factors);
  rule.setOutput(0, factors);
  rule.addPartial({0});
  return rule.finish();
}

// A triangle is laid out over both last dims.
ShardingRule triangleRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const Shape& shape = rule.operandShape(0);
  std::vector<int> factors;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    factors.push_back(d + 2 >= shape.size() ? rule.addBlocked(shape[d]) : rule.addFactor(shape[d]));
  }
  rule.setOperand(0, factors);
  rule.setOutput(0, factors);
  rule.addPartial({0});
  return rule.finish();
}

}  // namespace

void addViewRules(RuleRegistry& registry) {
  const auto reshape = [](const Graph& graph, const Node& node) {
    return viewRule(graph, node, true);
  };
  // Nothing in their arguments depends on sizes.
  const auto regroup = [](const Graph& graph, const Node& node) {
    return viewRule(graph, node, false);
  };
  for (const char* op : {"aten.view.default", "aten._unsafe_view.default", "aten.reshape.default",
                         "aten.view_copy.default"}) {
    registry.add(op, reshape);
  }
  for (const char* op : {"aten.unsqueeze.default", "aten.alias.default", "aten.detach.default",
                         "aten.lift_fresh.default"}) {
    registry.add(op, regroup);
  }
  for (const char* op : {"aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims"}) {
    registry.add(op, squeezeRule);
  }
  registry.add("aten.permute.default", permuteRule);
  registry.add("aten.transpose.int", transposeRule);
  registry.add("aten.t.default", matrixTransposeRule);
  registry.add("aten.expand.default", expandRule);
  registry.add("aten.repeat.default", repeatRule);
  registry.add("aten.flip.default",
               [](const Graph& graph, const Node& node) { return reorderRule(graph, node, 1); });
  registry.add("aten.roll.default",
               [](const Graph& graph, const Node& node) { return reorderRule(graph, node, 2); });
  registry.add("aten.tril.default", triangleRule);
  registry.add("aten.triu.default", triangleRule);
}

}  // namespace shardwright
