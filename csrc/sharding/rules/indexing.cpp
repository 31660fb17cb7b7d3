// Reading and writing at given positions: indexed dims stay whole, the others are parallel.
#include <algorithm>

#include "sharding/rules/families.h"
#include "sharding/rules/rule_builder.h"

namespace shardwright {
namespace {

// out[i, j] = x[index[i, j], j] for dim 0: the dims beside `dim` are shared where sizes agree.
ShardingRule gatherRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const Shape& x = rule.operandShape(0);
  const Shape& index = rule.operandShape(1);
  const int dim = wrapDim(rule.intArg(1, 0), static_cast<int>(x.size()));
  std::vector<int> from;
  std::vector<int> at;
  for (std::size_t d = 0; d < std::min(x.size(), index.size()); ++d) {
    if (static_cast<int>(d) == dim) {
      from.push_back(rule.addBlocked(x[d]));
      at.push_back(rule.addFactor(index[d]));
    } else if (x[d] == index[d]) {
      from.push_back(rule.addFactor(x[d]));
      at.push_back(from.back());
    } else {
      from.push_back(rule.addBlocked(x[d]));
      at.push_back(rule.addBlocked(index[d]));
    }
  }
  rule.setOperand(0, from);
  rule.setOperand(1, at);
  rule.setOutput(0, at);
  rule.addPartial({0});
  return rule.finish();
}

// self with values written at index along dim: (self, dim, index, src?).
ShardingRule scatterRule(const Graph& graph, const Node& node, bool adds) {
  RuleBuilder rule(graph, node);
  const Shape& self = rule.operandShape(0);
  const int dim = wrapDim(rule.intArg(1, 0), static_cast<int>(self.size()));
  const std::optional<int> source = rule.operandOfArg(3);
  const auto agrees = [&](std::size_t d) {
    return static_cast<int>(d) != dim && self[d] == rule.operandShape(1)[d] &&
           (!source || self[d] == rule.operandShape(*source)[d]);
  };
  std::vector<int> shared(self.size(), kNoFactor);
  for (std::size_t d = 0; d < self.size(); ++d) {
    shared[d] = agrees(d) ? rule.addFactor(self[d]) : kNoFactor;
  }
  const auto own = [&](const Shape& shape) {
    std::vector<int> factors = shared;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      factors[d] = agrees(d) ? shared[d] : rule.addBlocked(shape[d]);
    }
    return factors;
  };
  const std::vector<int> target = own(self);
  rule.setOperand(0, target);
  for (int i = 1; i < rule.numOperands(); ++i) {
    if (rule.operandShape(i).size() == self.size()) {
      rule.setOperand(i, own(rule.operandShape(i)));
    }
  }
  rule.setOutput(0, target);
  if (adds && source) {
    rule.addPartial({0, *source});
  }
  rule.setFlops(elementCount(rule.operandShape(1)));
  return rule.finish();
}

ShardingRule indexSelectRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const Shape& x = rule.operandShape(0);
  const int dim = wrapDim(rule.intArg(1, 0), static_cast<int>(x.size()));
  std::vector<int> from;
  std::vector<int> to;
  for (std::size_t d = 0; d < x.size(); ++d) {
    if (static_cast<int>(d) == dim) {
      from.push_back(rule.addBlocked(x[d]));
      to.push_back(rule.addFactor(rule.outputShape(0)[d]));
      if (rule.operandShape(1).size() == 1) {
        rule.setOperand(1, {to.back()});
      }
    } else {
      from.push_back(rule.addFactor(x[d]));
      to.push_back(from.back());
    }
  }
  rule.setOperand(0, from);
  rule.setOutput(0, to);
  rule.addPartial({0});
  return rule.finish();
}

// self with source added (or copied) at the positions `index` of one dim.
ShardingRule indexAddRule(const Graph& graph, const Node& node, bool adds) {
  RuleBuilder rule(graph, node);
  const Shape& self = rule.operandShape(0);
  const int dim = wrapDim(rule.intArg(1, 0), static_cast<int>(self.size()));
  const int index =
      rule.addBlocked(elementCount(rule.operandShape(1)) > 1 ? rule.operandShape(1)[0] : 1);
  std::vector<int> target;
  std::vector<int> source;
  for (std::size_t d = 0; d < self.size(); ++d) {
    const bool is_indexed = static_cast<int>(d) == dim;
    target.push_back(is_indexed ? rule.addBlocked(self[d]) : rule.addFactor(self[d]));
    source.push_back(is_indexed ? index : target.back());
  }
  rule.setOperand(0, target);
  rule.setOperand(1, std::vector<int>(rule.operandShape(1).size(), index));
  rule.setOperand(2, source);
  rule.setOutput(0, target);
  if (adds) {
    rule.addPartial({0, 2});
  }
  return rule.finish();
}

// Which dims of x[indices] are indexed, and what the result looks like.
struct Indexed {
  std::vector<int> x;       // factors of x
  std::vector<int> index;   // factors of the broadcast index
  std::vector<int> result;  // factors of x[indices]
  std::vector<int> index_operands;
};

// Index tensors come as a list in argument 1, None where a dim is taken whole. The broadcast index
// dims stand at the first indexed dim if all indexed dims are neighbours, else in front.
Indexed addIndexed(RuleBuilder& rule, const Shape& x, bool index_is_blocked) {
  Indexed result;
  const ArgList& indices = *rule.node().args.at(1).asList();
  std::vector<bool> is_indexed(x.size(), false);
  int operand = 1;
  Shape index_shape;
  std::size_t first = x.size();
  std::size_t last = 0;
  std::size_t count = 0;
  for (std::size_t d = 0; d < indices.size(); ++d) {
    if (indices[d].isNone()) {
      continue;
    }
    is_indexed[d] = true;
    first = std::min(first, d);
    last = d;
    ++count;
    const Shape& shape = rule.operandShape(operand);
    if (shape.size() > index_shape.size()) {
      index_shape.insert(index_shape.begin(), shape.size() - index_shape.size(), 1);
    }
    for (std::size_t k = 0; k < shape.size(); ++k) {
      std::int64_t& size = index_shape[index_shape.size() - shape.size() + k];
      size = std::max(size, shape[k]);
    }
    result.index_operands.push_back(operand++);
  }
  for (const std::int64_t size : index_shape) {
    result.index.push_back(index_is_blocked ? rule.addBlocked(size) : rule.addFactor(size));
  }
  const bool are_neighbours = count > 0 && last - first + 1 == count;
  if (!are_neighbours) {
    result.result = result.index;
  }
  for (std::size_t d = 0; d < x.size(); ++d) {
    result.x.push_back(is_indexed[d] ? rule.addBlocked(x[d]) : rule.addFactor(x[d]));
    if (are_neighbours && d == first) {
      result.result.insert(result.result.end(), result.index.begin(), result.index.end());
    }
    if (!is_indexed[d]) {
      result.result.push_back(result.x.back());
    }
  }
  return result;
}

ShardingRule indexRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const Indexed indexed = addIndexed(rule, rule.operandShape(0), false);
  rule.setOperand(0, indexed.x);
  for (const int operand : indexed.index_operands) {
    rule.setOperand(operand, broadcastFactors(rule.operandShape(operand), indexed.index));
  }
  rule.setOutput(0, indexed.result);
  rule.addPartial({0});
  return rule.finish();
}

ShardingRule indexPutRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const Indexed indexed = addIndexed(rule, rule.operandShape(0), true);
  rule.setOperand(0, indexed.x);
  for (const int operand : indexed.index_operands) {
    rule.setOperand(operand, broadcastFactors(rule.operandShape(operand), indexed.index));
  }
  const int values = rule.operandOfArg(2).value();
  rule.setOperand(values, broadcastFactors(rule.operandShape(values), indexed.result));
  rule.setOutput(0, indexed.x);
  if (rule.boolArg(3, false)) {
    rule.addPartial({0, values});
  }
  rule.setFlops(elementCount(rule.operandShape(values)));
  return rule.finish();
}

}  // namespace

void addIndexingRules(RuleRegistry& registry) {
  registry.add("aten.gather.default", gatherRule);
  registry.add("aten.index_select.default", indexSelectRule);
  registry.add("aten.index.Tensor", indexRule);
  registry.add("aten._unsafe_index.Tensor", indexRule);
  registry.add("aten.index_put.default", indexPutRule);
  registry.add("aten._unsafe_index_put.default", indexPutRule);
  const auto scatter = [](const Graph& graph, const Node& node) {
    return scatterRule(graph, node, false);
  };
  for (const char* op : {"aten.scatter.src", "aten.scatter.value", "aten.scatter.reduce",
                         "aten.scatter.value_reduce", "aten.scatter_reduce.two"}) {
    registry.add(op, scatter);
  }
  registry.add("aten.scatter_add.default",
               [](const Graph& graph, const Node& node) { return scatterRule(graph, node, true); });
  registry.add("aten.index_add.default", [](const Graph& graph, const Node& node) {
    return indexAddRule(graph, node, true);
  });
  registry.add("aten.index_copy.default", [](const Graph& graph, const Node& node) {
    return indexAddRule(graph, node, false);
  });
}

}  // namespace shardwright
