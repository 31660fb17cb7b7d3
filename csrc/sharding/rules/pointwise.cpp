// Elementwise ops with broadcasting, and the ways in which some of them are linear.
#include <algorithm>
#include <initializer_list>
#include <utility>

#include "sharding/rules/families.h"
#include "sharding/rules/rule_builder.h"

namespace shardwright {
namespace {

// Sets of arguments such that the op is linear in the tensors of one set together, the other
// arguments held fixed.
using LinearArgs = std::vector<std::vector<int>>;

ShardingRule pointwiseRule(const Graph& graph, const Node& node, const LinearArgs& linear) {
  RuleBuilder rule(graph, node);
  const std::vector<int> factors = rule.addFactors(rule.outputShape(0));
  for (int i = 0; i < rule.numOperands(); ++i) {
    rule.setOperand(i, broadcastFactors(rule.operandShape(i), factors));
  }
  for (int output = 0; output < rule.numOutputs(); ++output) {
    if (rule.isComputed(output)) {
      rule.setOutput(output, factors);
    }
  }
  rule.setFlops(elementCount(rule.outputShape(0)));
  for (const std::vector<int>& args : linear) {
    std::vector<int> operands;
    for (const int arg : args) {
      if (const std::optional<int> operand = rule.operandOfArg(arg)) {
        operands.push_back(*operand);
      }
    }
    if (operands.size() == args.size()) {
      rule.addPartial(operands);
    }
  }
  return rule.finish();
}

RuleMaker linearIn(LinearArgs linear) {
  return [linear = std::move(linear)](const Graph& graph, const Node& node) {
    return pointwiseRule(graph, node, linear);
  };
}

// A sum of rounded parts is not the rounded sum: only casts that lose nothing are linear.
bool isExactCast(DType from, DType to) {
  if (from == to) {
    return true;
  }
  if (from == DType::kBool || to == DType::kBool) {
    return false;
  }
  if (isFloating(from)) {
    return isFloating(to) && elementBytes(to) > elementBytes(from);
  }
  return isFloating(to) ? elementBytes(to) >= 4 : elementBytes(to) >= elementBytes(from);
}

ShardingRule castRule(const Graph& graph, const Node& node) {
  const bool exact = isExactCast(graph.meta(node.operands().at(0)).dtype, node.outputs.at(0).dtype);
  return pointwiseRule(graph, node, exact ? LinearArgs{{0}} : LinearArgs{});
}

// Linear where the scalar that replaces elements is 0.
ShardingRule maskedFillScalarRule(const Graph& graph, const Node& node) {
  const bool fills_zero = RuleBuilder(graph, node).numberArg(2, 0) == 0;
  return pointwiseRule(graph, node, fills_zero ? LinearArgs{{0}} : LinearArgs{});
}

ShardingRule divModeRule(const Graph& graph, const Node& node) {
  const bool rounds = RuleBuilder(graph, node).kwarg("rounding_mode") != nullptr;
  return pointwiseRule(graph, node, rounds ? LinearArgs{} : LinearArgs{{0}});
}

}  // namespace

void addPointwiseRules(RuleRegistry& registry) {
  // Linear in the first argument alone.
  for (const char* op : {"aten.neg.default",
                         "aten.clone.default",
                         "aten.mul.Scalar",
                         "aten.div.Scalar",
                         "aten.div.Tensor",
                         "aten.true_divide.Tensor",
                         "aten.positive.default",
                         "aten.lift_fresh_copy.default",
                         "aten.threshold_backward.default",
                         "aten.gelu_backward.default",
                         "aten.silu_backward.default",
                         "aten.sigmoid_backward.default",
                         "aten.tanh_backward.default",
                         "aten.leaky_relu_backward.default",
                         "aten.softplus_backward.default",
                         "aten.elu_backward.default",
                         "aten.hardtanh_backward.default",
                         "aten.hardswish_backward.default",
                         "aten.hardsigmoid_backward.default",
                         "aten.logit_backward.default",
                         "aten.hardshrink_backward.default",
                         "aten.softshrink_backward.default",
                         "aten.log_sigmoid_backward.default",
                         "aten._prelu_kernel_backward.default"}) {
    registry.add(op, linearIn({{0}}));
  }
  for (const char* op : {"aten.add.Tensor", "aten.sub.Tensor"}) {
    registry.add(op, linearIn({{0, 1}}));
  }
  registry.add("aten.mul.Tensor", linearIn({{0}, {1}}));
  registry.add("aten.where.self", linearIn({{1, 2}}));
  registry.add("aten.copy.default", linearIn({{1}}));
  registry.add("aten.lerp.Scalar", linearIn({{0, 1}}));
  registry.add("aten.lerp.Tensor", linearIn({{0, 1}}));
  registry.add("aten.addcmul.default", linearIn({{0, 1}, {0, 2}}));
  registry.add("aten.addcdiv.default", linearIn({{0, 1}}));
  registry.add("aten.masked_fill.Tensor", linearIn({{0, 2}}));
  registry.add("aten.masked_fill.Scalar", maskedFillScalarRule);
  registry.add("aten.div.Tensor_mode", divModeRule);
  registry.add("aten.div.Scalar_mode", divModeRule);
  registry.add("aten._to_copy.default", castRule);
  registry.add("prims.convert_element_type.default", castRule);
  for (const char* op : {"aten.abs.default",
                         "aten.acos.default",
                         "aten.acosh.default",
                         "aten.add.Scalar",
                         "aten.asin.default",
                         "aten.asinh.default",
                         "aten.atan.default",
                         "aten.atan2.default",
                         "aten.atanh.default",
                         "aten.bitwise_and.Scalar",
                         "aten.bitwise_and.Tensor",
                         "aten.bitwise_not.default",
                         "aten.bitwise_or.Scalar",
                         "aten.bitwise_or.Tensor",
                         "aten.bitwise_xor.Scalar",
                         "aten.bitwise_xor.Tensor",
                         "aten.bitwise_left_shift.Tensor",
                         "aten.bitwise_left_shift.Tensor_Scalar",
                         "aten.bitwise_right_shift.Tensor",
                         "aten.bitwise_right_shift.Tensor_Scalar",
                         "aten.ceil.default",
                         "aten.celu.default",
                         "aten.clamp.default",
                         "aten.clamp.Tensor",
                         "aten.clamp_max.default",
                         "aten.clamp_max.Tensor",
                         "aten.clamp_min.default",
                         "aten.clamp_min.Tensor",
                         "aten.copysign.Scalar",
                         "aten.copysign.Tensor",
                         "aten.cos.default",
                         "aten.cosh.default",
                         "aten.elu.default",
                         "aten.eq.Scalar",
                         "aten.eq.Tensor",
                         "aten.erf.default",
                         "aten.erfc.default",
                         "aten.erfinv.default",
                         "aten.exp.default",
                         "aten.exp2.default",
                         "aten.expm1.default",
                         "aten.fill.Scalar",
                         "aten.fill.Tensor",
                         "aten.floor.default",
                         "aten.floor_divide.default",
                         "aten.floor_divide.Scalar",
                         "aten.fmax.default",
                         "aten.fmin.default",
                         "aten.fmod.Scalar",
                         "aten.fmod.Tensor",
                         "aten.frac.default",
                         "aten.ge.Scalar",
                         "aten.ge.Tensor",
                         "aten.gelu.default",
                         "aten.gt.Scalar",
                         "aten.gt.Tensor",
                         "aten.hardsigmoid.default",
                         "aten.hardswish.default",
                         "aten.hardtanh.default",
                         "aten.hypot.default",
                         "aten.isfinite.default",
                         "aten.isinf.default",
                         "aten.isnan.default",
                         "aten.le.Scalar",
                         "aten.le.Tensor",
                         "aten.leaky_relu.default",
                         "aten.lgamma.default",
                         "aten.digamma.default",
                         "aten.log.default",
                         "aten.log10.default",
                         "aten.log1p.default",
                         "aten.log2.default",
                         "aten.logaddexp.default",
                         "aten.logical_and.default",
                         "aten.logical_not.default",
                         "aten.logical_or.default",
                         "aten.logical_xor.default",
                         "aten.logit.default",
                         "aten.lt.Scalar",
                         "aten.lt.Tensor",
                         "aten.maximum.default",
                         "aten.minimum.default",
                         "aten.mish.default",
                         "aten.nan_to_num.default",
                         "aten.ne.Scalar",
                         "aten.ne.Tensor",
                         "aten.pow.Scalar",
                         "aten.pow.Tensor_Scalar",
                         "aten.pow.Tensor_Tensor",
                         "aten.reciprocal.default",
                         "aten.relu.default",
                         "aten.relu6.default",
                         "aten.remainder.Scalar",
                         "aten.remainder.Tensor",
                         "aten.round.default",
                         "aten.round.decimals",
                         "aten.rsqrt.default",
                         "aten.rsub.Scalar",
                         "aten.rsub.Tensor",
                         "aten.selu.default",
                         "aten.sgn.default",
                         "aten.sigmoid.default",
                         "aten.sign.default",
                         "aten.signbit.default",
                         "aten.silu.default",
                         "aten.sin.default",
                         "aten.sinh.default",
                         "aten.softplus.default",
                         "aten.softshrink.default",
                         "aten.hardshrink.default",
                         "aten._prelu_kernel.default",
                         "aten.log_sigmoid_forward.default",
                         "aten.sqrt.default",
                         "aten.square.default",
                         "aten.sub.Scalar",
                         "aten.tan.default",
                         "aten.tanh.default",
                         "aten.threshold.default",
                         "aten.trunc.default",
                         "aten.where.ScalarOther",
                         "aten.where.ScalarSelf",
                         "aten.xlogy.Tensor"}) {
    registry.add(op, linearIn({}));
  }
}

}  // namespace shardwright
