#include "sharding/registry.h"

#include <algorithm>

#include "base/error.h"
#include "sharding/rules/families.h"

namespace shardwright {
namespace {

std::string shapeText(const TensorMeta& meta) {
  std::string text = std::string(dtypeName(meta.dtype)) + "[";
  for (std::size_t dim = 0; dim < meta.shape.size(); ++dim) {
    text += (dim == 0 ? "" : ", ") + std::to_string(meta.shape[dim]);
  }
  return text + "]";
}

std::vector<std::string> describe(const Graph& graph, const Node& node) {
  std::vector<std::string> lines;
  lines.push_back("node: " + node.name +
                  (node.module_path.empty() ? "" : " in module " + node.module_path));
  std::string operands = "operands:";
  for (const ValueRef value : node.operands()) {
    operands += " " + shapeText(graph.meta(value));
  }
  std::string outputs = "outputs:";
  for (const TensorMeta& meta : node.outputs) {
    outputs += " " + shapeText(meta);
  }
  lines.push_back(operands);
  lines.push_back(outputs);
  return lines;
}

// Names the first dim whose factors do not multiply up to its size, "" if there is none.
std::string misfit(const ShardingRule& rule, const TensorMap& map, const TensorMeta& meta,
                   const std::string& name) {
  if (map.dims.size() != meta.shape.size()) {
    return name + " has " + std::to_string(meta.shape.size()) + " dims, its rule " +
           std::to_string(map.dims.size());
  }
  std::vector<int> seen;
  for (std::size_t dim = 0; dim < meta.shape.size(); ++dim) {
    std::int64_t product = 1;
    for (const int factor : map.dims[dim]) {
      if (std::find(seen.begin(), seen.end(), factor) != seen.end()) {
        return name + " names one factor in two places";
      }
      seen.push_back(factor);
      if (factor < 0 || static_cast<std::size_t>(factor) >= rule.factors.size()) {
        return name + " names a factor that does not exist";
      }
      product *= rule.factors[static_cast<std::size_t>(factor)].size;
    }
    if (product != std::max<std::int64_t>(meta.shape[dim], 1)) {
      return name + " has size " + std::to_string(meta.shape[dim]) + " in dim " +
             std::to_string(dim) + ", the factors of its rule give " + std::to_string(product);
    }
  }
  return "";
}

void check(const Graph& graph, const Node& node, const ShardingRule& rule) {
  const std::vector<ValueRef> operands = node.operands();
  std::string problem;
  if (rule.operands.size() != operands.size() || rule.outputs.size() != node.outputs.size()) {
    problem = "the node has " + std::to_string(operands.size()) + " tensor operands and " +
              std::to_string(node.outputs.size()) + " outputs, the rule " +
              std::to_string(rule.operands.size()) + " and " + std::to_string(rule.outputs.size());
  }
  for (std::size_t i = 0; problem.empty() && i < operands.size(); ++i) {
    problem =
        misfit(rule, rule.operands[i], graph.meta(operands[i]), "operand " + std::to_string(i));
  }
  for (std::size_t o = 0; problem.empty() && o < node.outputs.size(); ++o) {
    problem = misfit(rule, rule.outputs[o], node.outputs[o], "output " + std::to_string(o));
  }
  if (!problem.empty()) {
    std::vector<std::string> values = describe(graph, node);
    values.insert(values.begin(), problem);
    throw Error(ErrorKind::kRule, "E202", "the sharding rule of " + node.op + " does not fit.",
                {.values = std::move(values),
                 .where = node.source,
                 .advice = "correct the rule given to sw.register_rule(\"" + node.op + "\", ...)"});
  }
}

// bool tensors hold no sums, so no pending one can pass through them.
void dropBooleanPartials(const Graph& graph, const Node& node, ShardingRule& rule) {
  const std::vector<ValueRef> operands = node.operands();
  std::erase_if(rule.partials, [&](const PartialRule& partial) {
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if (partial.operands[i] && graph.meta(operands[i]).dtype == DType::kBool) {
        return true;
      }
    }
    for (std::size_t o = 0; o < node.outputs.size(); ++o) {
      if (partial.outputs[o] && node.outputs[o].dtype == DType::kBool) {
        return true;
      }
    }
    return false;
  });
}

}  // namespace

void RuleRegistry::add(const std::string& op, RuleMaker maker) { makers_[op] = std::move(maker); }

bool RuleRegistry::contains(const std::string& op) const { return makers_.contains(op); }

ShardingRule RuleRegistry::rule(const Graph& graph, NodeId node_id) const {
  const Node& node = graph.node(node_id);
  const auto found = makers_.find(node.op);
  if (found == makers_.end()) {
    throw Error(ErrorKind::kRule, "E201", "op " + node.op + " has no sharding rule.",
                {.values = describe(graph, node),
                 .where = node.source,
                 .advice = "sw.register_rule(\"" + node.op + "\", \"...\") with the op in factor " +
                           "notation, such as \"b m k, b k n -> b m n\""});
  }
  ShardingRule rule = found->second(graph, node);
  rule.aliases.resize(node.outputs.size(), -1);
  check(graph, node, rule);
  for (std::size_t o = 0; o < node.outputs.size(); ++o) {
    if (node.outputs[o].shape == std::vector<std::int64_t>{0}) {
      rule.outputs[o].missing_is_partial = false;  // not computed, hence never pending
    }
  }
  dropBooleanPartials(graph, node, rule);
  return rule;
}

std::vector<std::string> RuleRegistry::ops() const {
  std::vector<std::string> names;
  names.reserve(makers_.size());
  for (const auto& [op, maker] : makers_) {
    names.push_back(op);
  }
  return names;
}

RuleRegistry builtinRules() {
  RuleRegistry registry;
  addAttentionRules(registry);
  addConvolutionRules(registry);
  addCreationRules(registry);
  addEmbeddingRules(registry);
  addIndexingRules(registry);
  addInputRules(registry);
  addJoinRules(registry);
  addLossRules(registry);
  addMatmulRules(registry);
  addMicrobatchRules(registry);
  addNormalizationRules(registry);
  addPointwiseRules(registry);
  addPoolingRules(registry);
  addRandomRules(registry);
  addReductionRules(registry);
  addScanRules(registry);
  addSliceRules(registry);
  addStridedRules(registry);
  addUpdateRules(registry);
  addViewRules(registry);
  return registry;
}

}  // namespace shardwright
