// Convolutions: batch, in-channels and out-channels (or the groups) may be sharded, windows not.
#include "sharding/rules/families.h"
#include "sharding/rules/rule_builder.h"

namespace shardwright {
namespace {

// Factors of one convolution; with groups the channels of a group stay together.
struct ConvFactors {
  std::vector<int> input;          // batch and spatial dims of x; [1] is unused
  std::vector<int> output;         // the same of y
  std::vector<int> kernel;         // spatial dims of the weight
  std::vector<int> in_channels;    // of x
  std::vector<int> out_channels;   // of y
  std::vector<int> weight_first;   // dim 0 of the weight
  std::vector<int> weight_second;  // dim 1 of the weight
  int in_channel = kNoFactor;      // the sum over it makes y
};

DimFactors dataDims(const std::vector<int>& spatial, const std::vector<int>& channels) {
  DimFactors dims;
  for (std::size_t d = 0; d < spatial.size(); ++d) {
    dims.push_back(d == 1 ? channels : std::vector<int>{spatial[d]});
  }
  return dims;
}

DimFactors weightDims(const ConvFactors& factors) {
  DimFactors dims{factors.weight_first, factors.weight_second};
  for (const int factor : factors.kernel) {
    dims.push_back({factor});
  }
  return dims;
}

ConvFactors addConvFactors(RuleBuilder& rule, const Shape& x, const Shape& y, const Shape& weight,
                           std::int64_t groups, bool transposed) {
  ConvFactors factors;
  const int batch = rule.addFactor(x[0]);
  factors.input = {batch, kNoFactor};
  factors.output = {batch, kNoFactor};
  for (std::size_t d = 2; d < x.size(); ++d) {
    factors.input.push_back(rule.addBlocked(x[d]));
    factors.output.push_back(rule.addBlocked(y[d]));
    factors.kernel.push_back(rule.addBlocked(weight[d]));
  }
  if (groups == 1) {
    const int in = rule.addFactor(x[1]);
    const int out = rule.addFactor(y[1]);
    factors.in_channels = {in};
    factors.out_channels = {out};
    factors.in_channel = in;
    factors.weight_first = {transposed ? in : out};
    factors.weight_second = {transposed ? out : in};
    return factors;
  }
  const int group = rule.addFactor(groups);
  const int in = rule.addBlocked(x[1] / groups);
  const int out = rule.addBlocked(y[1] / groups);
  factors.in_channels = {group, in};
  factors.out_channels = {group, out};
  factors.weight_first = {group, transposed ? in : out};
  factors.weight_second = {transposed ? out : in};
  return factors;
}

// Multiply-adds count 2: every spatial position of y (of x when transposed) times the weight.
double convFlops(const Shape& x, const Shape& y, const Shape& weight, bool transposed) {
  const Shape& positions = transposed ? x : y;
  return 2 * static_cast<double>(x[0]) * elementCount(weight) *
         elementCount({positions.begin() + 2, positions.end()});
}

ShardingRule convolutionRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const Shape& x = rule.operandShape(0);
  const Shape& weight = rule.operandShape(1);
  const Shape& y = rule.outputShape(0);
  const bool transposed = rule.boolArg(6, false);
  const std::int64_t groups = rule.intArg(8, 1);
  const ConvFactors factors = addConvFactors(rule, x, y, weight, groups, transposed);
  rule.setOperandDims(0, dataDims(factors.input, factors.in_channels));
  rule.setOperandDims(1, weightDims(factors));
  rule.setOutputDims(0, dataDims(factors.output, factors.out_channels));
  if (const std::optional<int> bias = rule.operandOfArg(2)) {
    rule.setOperandDims(*bias, {factors.out_channels});
    if (factors.in_channel != kNoFactor) {
      // The bias would be added once per shard of the in-channels.
      rule.rule().factors[static_cast<std::size_t>(factors.in_channel)].blocked = true;
    }
  } else {
    rule.addPartial({0});
    rule.addPartial({1});
  }
  if (groups > 1) {
    rule.addEdit({.kind = ArgEdit::Kind::kScale, .arg = 8, .operand = 0, .dim = 1});
  }
  rule.setFlops(convFlops(x, y, weight, transposed));
  return rule.finish();
}

// (grad, x, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups,
// output_mask) -> dx, dweight, dbias: dx sums over out-channels, dweight over the batch, dbias over
// the batch.
ShardingRule convolutionBackwardRule(const Graph& graph, const Node& node) {
  RuleBuilder rule(graph, node);
  const Shape& grad = rule.operandShape(0);
  const Shape& x = rule.operandShape(1);
  const Shape& weight = rule.operandShape(2);
  const bool transposed = rule.boolArg(7, false);
  const std::int64_t groups = rule.intArg(9, 1);
  const ConvFactors factors = addConvFactors(rule, x, grad, weight, groups, transposed);
  rule.setOperandDims(0, dataDims(factors.output, factors.out_channels));
  rule.setOperandDims(1, dataDims(factors.input, factors.in_channels));
  rule.setOperandDims(2, weightDims(factors));
  double flops = 0;
  if (rule.isComputed(0)) {
    rule.setOutputDims(0, dataDims(factors.input, factors.in_channels));
    flops += convFlops(x, grad, weight, transposed);
  }
  if (rule.isComputed(1)) {
    rule.setOutputDims(1, weightDims(factors));
    // As torch counts it: the weight gradient is a convolution over the batch of x with grad.
    const Shape& other = transposed ? x : grad;
    const Shape& moving = transposed ? grad : x;
    flops += 2 * static_cast<double>(moving[1]) * elementCount(other) *
             elementCount({weight.begin() + 2, weight.end()});
  }
  if (rule.isComputed(2)) {
    rule.setOutputDims(2, {factors.out_channels});
    if (factors.in_channel != kNoFactor) {
      rule.rule().outputs[2].unaffected = {factors.in_channel};
    }
    rule.addEdit({.kind = ArgEdit::Kind::kLocalShape, .arg = 3, .output = 2});
  }
  if (groups > 1) {
    rule.addEdit({.kind = ArgEdit::Kind::kScale, .arg = 9, .operand = 1, .dim = 1});
  }
  rule.addPartial({0});
  rule.setFlops(flops);
  return rule.finish();
}

}  // namespace

void addConvolutionRules(RuleRegistry& registry) {
  registry.add("aten.convolution.default", convolutionRule);
  registry.add("aten.convolution_backward.default", convolutionBackwardRule);
}

}  // namespace shardwright
