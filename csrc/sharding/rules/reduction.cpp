// Reductions over dims: sums and extrema of shards are completed later, other reductions need the
// dims whole.
#include <algorithm>

#include "sharding/rules/families.h"
#include "sharding/rules/rule_builder.h"

namespace shardwright {
namespace {

enum class Completion { kSum, kMax, kMin, kNone };

int addReduced(RuleBuilder& rule, std::int64_t size, Completion completion) {
  switch (completion) {
    case Completion::kSum:
      return rule.addReduction(size, ReduceOp::kSum);
    case Completion::kMax:
      return rule.addReduction(size, ReduceOp::kMax);
    case Completion::kMin:
      return rule.addReduction(size, ReduceOp::kMin);
    case Completion::kNone:
      return rule.addBlocked(size);
  }
  return kNoFactor;
}

// `dims_arg` holds the reduced dims (none or an empty list: all), -1 if the op always reduces all.
ShardingRule reductionRule(const Graph& graph, const Node& node, Completion completion,
                           int dims_arg, bool is_linear) {
  RuleBuilder rule(graph, node);
  const Shape& from = rule.operandShape(0);
  const int rank = static_cast<int>(from.size());
  const std::vector<std::int64_t> dims =
      dims_arg < 0 ? std::vector<std::int64_t>{} : rule.intsArg(dims_arg);
  std::vector<bool> reduced(from.size(), dims.empty());
  if (rank > 0) {
    for (const std::int64_t dim : dims) {
      reduced[static_cast<std::size_t>(wrapDim(dim, rank))] = true;
    }
  }
  std::vector<int> operand;
  std::vector<int> kept;
  std::vector<int> kept_with_ones;
  for (std::size_t d = 0; d < from.size(); ++d) {
    operand.push_back(reduced[d] ? addReduced(rule, from[d], completion) : rule.addFactor(from[d]));
    kept_with_ones.push_back(reduced[d] ? kNoFactor : operand.back());
    if (!reduced[d]) {
      kept.push_back(operand.back());
    }
  }
  rule.setOperand(0, operand);
  for (int output = 0; output < rule.numOutputs(); ++output) {
    const bool keeps_dims = rule.outputShape(output).size() == from.size();
    rule.setOutput(output, keeps_dims ? kept_with_ones : kept);
  }
  if (is_linear) {
    rule.addPartial({0});
  }
  rule.setFlops(elementCount(from));
  return rule.finish();
}

RuleMaker reduces(Completion completion, int dims_arg, bool is_linear = false) {
  return [completion, dims_arg, is_linear](const Graph& graph, const Node& node) {
    return reductionRule(graph, node, completion, dims_arg, is_linear);
  };
}

}  // namespace

void addReductionRules(RuleRegistry& registry) {
  registry.add("aten.sum.default", reduces(Completion::kSum, -1, true));
  registry.add("aten.sum.dim_IntList", reduces(Completion::kSum, 1, true));
  registry.add("aten.amax.default", reduces(Completion::kMax, 1));
  registry.add("aten.amin.default", reduces(Completion::kMin, 1));
  registry.add("aten.max.default", reduces(Completion::kMax, -1));
  registry.add("aten.min.default", reduces(Completion::kMin, -1));
  // A mean of local means needs the counts: the dims stay whole (capture writes sums instead).
  registry.add("aten.mean.default", reduces(Completion::kNone, -1, true));
  registry.add("aten.mean.dim", reduces(Completion::kNone, 1, true));
  for (const char* op : {"aten.any.default", "aten.all.default", "aten.prod.default"}) {
    registry.add(op, reduces(Completion::kNone, -1));
  }
  for (const char* op :
       {"aten.any.dim", "aten.any.dims", "aten.all.dim", "aten.all.dims", "aten.prod.dim_int",
        "aten.std.correction", "aten.var.correction", "aten.var_mean.correction",
        "aten.logsumexp.default", "aten.max.dim", "aten.median.dim", "aten.min.dim",
        "aten.argmax.default", "aten.argmin.default"}) {
    registry.add(op, reduces(Completion::kNone, 1));
  }
  registry.add("aten.linalg_vector_norm.default", reduces(Completion::kNone, 2));
}

}  // namespace shardwright
