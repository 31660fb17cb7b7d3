// Ops that walk along one dim, which therefore stays whole: running sums, sorting, selection.
#include "sharding/rules/families.h"
#include "sharding/rules/rule_builder.h"

namespace shardwright {
namespace {

// Position of the dim argument and its default.
struct DimArg {
  int arg;
  std::int64_t otherwise;
};

ShardingRule scanRule(const Graph& graph, const Node& node, DimArg dim_arg, bool is_linear) {
  RuleBuilder rule(graph, node);
  const Shape& from = rule.operandShape(0);
  std::int64_t given = rule.intArg(dim_arg.arg, dim_arg.otherwise);
  if (const Arg* by_name = rule.kwarg("dim")) {
    given = std::get<std::int64_t>(by_name->value);
  }
  const int dim = wrapDim(given, static_cast<int>(from.size()));
  std::vector<int> operand;
  for (std::size_t d = 0; d < from.size(); ++d) {
    operand.push_back(static_cast<int>(d) == dim ? rule.addBlocked(from[d])
                                                 : rule.addFactor(from[d]));
  }
  rule.setOperand(0, operand);
  for (int output = 0; output < rule.numOutputs(); ++output) {
    std::vector<int> factors = operand;
    if (!factors.empty()) {
      const auto walked = static_cast<std::size_t>(dim);
      factors[walked] = rule.addBlocked(rule.outputShape(output)[walked]);
    }
    rule.setOutput(output, factors);
  }
  if (is_linear) {
    rule.addPartial({0});
  }
  rule.setFlops(elementCount(from));
  return rule.finish();
}

RuleMaker scans(DimArg dim_arg, bool is_linear = false) {
  return [dim_arg, is_linear](const Graph& graph, const Node& node) {
    return scanRule(graph, node, dim_arg, is_linear);
  };
}

}  // namespace

void addScanRules(RuleRegistry& registry) {
  registry.add("aten.cumsum.default", scans({1, 0}, true));
  registry.add("aten.cumprod.default", scans({1, 0}));
  registry.add("aten.logcumsumexp.default", scans({1, 0}));
  registry.add("aten.cummax.default", scans({1, 0}));
  registry.add("aten.cummin.default", scans({1, 0}));
  registry.add("aten.sort.default", scans({1, -1}));
  registry.add("aten.sort.stable", scans({1, -1}));
  registry.add("aten.argsort.default", scans({1, -1}));
  registry.add("aten.topk.default", scans({2, -1}));
}

}  // namespace shardwright
