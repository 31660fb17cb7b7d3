// Ops on windows of images: each image and channel by itself, the spatial dims whole.
#include <algorithm>

#include "sharding/rules/families.h"
#include "sharding/rules/rule_builder.h"

namespace shardwright {
namespace {

// All tensors are [batch, channels, spatial dims...] or without the batch; the last `num_spatial`
// dims stay whole. `whole_channels` keeps the channels whole too, which then may change in number.
struct WindowOp {
  int num_spatial = 2;
  bool is_linear = true;
  bool whole_channels = false;
  int shape_arg = -1;  // argument that gives the shape of the result, batch and channels included
};

ShardingRule windowRule(const Graph& graph, const Node& node, const WindowOp& op) {
  RuleBuilder rule(graph, node);
  const Shape& shape = rule.operandShape(0);
  const std::size_t num_whole =
      static_cast<std::size_t>(op.num_spatial) + (op.whole_channels ? 1 : 0);
  std::vector<int> leading;
  for (std::size_t d = 0; d + num_whole < shape.size(); ++d) {
    leading.push_back(rule.addFactor(shape[d]));
  }
  const auto withWindows = [&](const Shape& own) {
    std::vector<int> factors = leading;
    for (std::size_t d = leading.size(); d < own.size(); ++d) {
      factors.push_back(rule.addBlocked(own[d]));
    }
    return factors;
  };
  double largest = 0;
  for (int i = 0; i < rule.numOperands(); ++i) {
    rule.setOperand(i, withWindows(rule.operandShape(i)));
    largest = std::max(largest, elementCount(rule.operandShape(i)));
  }
  for (int output = 0; output < rule.numOutputs(); ++output) {
    rule.setOutput(output, withWindows(rule.outputShape(output)));
    largest = std::max(largest, elementCount(rule.outputShape(output)));
  }
  if (op.shape_arg >= 0) {
    rule.addEdit({.kind = ArgEdit::Kind::kLocalShape, .arg = op.shape_arg});
  }
  if (op.is_linear) {
    rule.addPartial({0});
  }
  rule.setFlops(largest);
  return rule.finish();
}

RuleMaker windows(const WindowOp& op) {
  return [op](const Graph& graph, const Node& node) { return windowRule(graph, node, op); };
}

}  // namespace

void addPoolingRules(RuleRegistry& registry) {
  registry.add("aten.max_pool2d_with_indices.default", windows({.is_linear = false}));
  for (const char* op :
       {"aten.max_pool2d_with_indices_backward.default", "aten.avg_pool2d.default",
        "aten.avg_pool2d_backward.default", "aten._adaptive_avg_pool2d.default",
        "aten._adaptive_avg_pool2d_backward.default", "aten.reflection_pad2d.default",
        "aten.reflection_pad2d_backward.default", "aten.replication_pad2d.default",
        "aten.replication_pad2d_backward.default", "aten.upsample_nearest2d.default",
        "aten.upsample_bilinear2d.default"}) {
    registry.add(op, windows({}));
  }
  for (const char* op :
       {"aten.upsample_nearest2d_backward.default", "aten.upsample_bilinear2d_backward.default"}) {
    registry.add(op, windows({.shape_arg = 2}));
  }
  for (const char* op : {"aten.pixel_shuffle.default", "aten.pixel_unshuffle.default"}) {
    registry.add(op, windows({.whole_channels = true}));
  }
}

}  // namespace shardwright
