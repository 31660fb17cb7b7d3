#include "intraop/model_memory.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/checked.h"
#include "cost/compute.h"

namespace shardwright {

using Form = ConversionStrategy::Form;

ModelMemory::ModelMemory(const ShardedGraph& graph, const std::vector<ConversionPoint>& conversions,
                         const LiveIntervals& intervals, int microbatches_in_flight)
    : graph_(&graph),
      conversions_(&conversions),
      intervals_(&intervals),
      num_waiting_(microbatches_in_flight - 1),
      sums_of_point_(conversions.size()) {
  const auto is_sum = [&](const ValueUse& use) {
    return !use.isResult() && accumulatesMicrobatches(graph.graph().node(use.node));
  };
  std::set<NodeId> of_points;
  for (std::size_t point = 0; point < conversions.size(); ++point) {
    for (const ValueUse& use : conversions[point].uses) {
      if (is_sum(use)) {
        of_points.insert(use.node);
        sums_of_point_[point].push_back(static_cast<std::int64_t>(use.node.index()));
      }
    }
  }
  for (std::size_t index = 0; index < graph.graph().nodes().size(); ++index) {
    const Node& node = graph.graph().nodes()[index];
    if (accumulatesMicrobatches(node) && !of_points.contains(NodeId(index))) {
      sums_of_value_[graph.root(node.operands()[0])].push_back(static_cast<std::int64_t>(index));
    }
  }
}

// A window that repeats its operand's elements (expand) takes no memory. Other windows (slices)
// are counted as if they were copies: their operand's buffer is counted until they are cut only.
bool ModelMemory::isBroadcast(NodeId node, int output) const {
  const ShardingRule& rule = graph_->rule(node);
  const auto index = static_cast<std::size_t>(output);
  if (rule.in_place || index >= rule.aliases.size() || rule.aliases[index] < 0) {
    return false;
  }
  const Graph& graph = graph_->graph();
  const ValueRef operand =
      graph.node(node).operands()[static_cast<std::size_t>(rule.aliases[index])];
  return graph.meta({node, output}).numElements() > graph.meta(operand).numElements();
}

// Slices of what is there once are there once.
bool ModelMemory::isPerMicrobatch(ValueRef value) const {
  const Node& node = graph_->graph().node(value.node);
  if (node.input) {
    return node.input->per_microbatch;
  }
  const ShardingRule& rule = graph_->rule(value.node);
  const auto output = static_cast<std::size_t>(value.output);
  if (output < rule.aliases.size() && rule.aliases[output] >= 0) {
    const auto operand = static_cast<std::size_t>(rule.aliases[output]);
    return isPerMicrobatch(graph_->root(node.operands()[operand]));
  }
  return !spansMicrobatches(node);
}

// `made`: when the buffer begins to be, which may be before the interval that this decision adds;
// what waits already before that has been counted.
void ModelMemory::add(std::vector<MemoryPiece>& pieces, LiveInterval interval, std::int64_t made,
                      std::vector<std::int64_t> bytes, bool per_microbatch) const {
  if (num_waiting_ > 0 && per_microbatch && intervals_->waitsForBackward(made, interval.end) &&
      !intervals_->waitsForBackward(made, interval.begin)) {
    std::vector<std::int64_t> waiting;
    waiting.reserve(bytes.size());
    for (const std::int64_t count : bytes) {
      waiting.push_back(checkedMul(count, num_waiting_));
    }
    pieces.push_back({intervals_->microbatches(), std::move(waiting)});
  }
  pieces.push_back({interval, std::move(bytes)});
}

void ModelMemory::addSums(std::vector<MemoryPiece>& pieces, const std::vector<std::int64_t>& ends,
                          const std::vector<std::int64_t>& bytes) const {
  for (const std::int64_t end : ends) {
    pieces.push_back({{0, end}, bytes});
  }
}

std::vector<MemoryPiece> ModelMemory::ofOp(
    NodeId node, const std::vector<std::vector<std::int64_t>>& output_bytes) const {
  std::vector<MemoryPiece> pieces;
  for (std::size_t output = 0; output < output_bytes.size(); ++output) {
    const ValueRef value{node, static_cast<int>(output)};
    const ValueLife& life = intervals_->life(value);
    if (life.owns_storage && !isBroadcast(node, value.output)) {
      add(pieces, {life.def, life.own_end}, life.def, output_bytes[output],
          num_waiting_ > 0 && isPerMicrobatch(value));
    }
    if (const auto sums = sums_of_value_.find(value); sums != sums_of_value_.end()) {
      addSums(pieces, sums->second, output_bytes[output]);
    }
  }
  return pieces;
}

std::vector<MemoryPiece> ModelMemory::ofConversion(
    int index, const std::vector<ConversionStrategy>& strategies,
    const std::vector<int>& mesh_shape) const {
  const ConversionPoint& point = (*conversions_)[static_cast<std::size_t>(index)];
  const Node& node = graph_->graph().node(point.value.node);
  const ValueLife& life = intervals_->life(point.value);
  const bool is_input = node.input.has_value();
  const std::int64_t end = intervals_->lastUse(index) + 1;
  const std::int64_t made = is_input ? intervals_->firstUse(index) : life.def + 1;
  const std::int64_t first_end = point.group == 0 ? made : intervals_->lastUse(index - 1) + 1;

  std::vector<std::int64_t> all(strategies.size());
  for (std::size_t strategy = 0; strategy < all.size(); ++strategy) {
    all[strategy] = localBytes(graph_->atoms(point.value), graph_->graph().meta(point.value).dtype,
                               strategies[strategy].spec, mesh_shape);
  }
  std::vector<MemoryPiece> pieces;
  const bool per_microbatch = num_waiting_ > 0 && (is_input || isPerMicrobatch(point.value));
  const auto addPiece = [&](std::int64_t begin, std::int64_t origin,
                            std::initializer_list<Form> forms) {
    std::vector<std::int64_t> bytes(all.size(), 0);
    bool any = false;
    for (std::size_t strategy = 0; strategy < all.size(); ++strategy) {
      if (std::ranges::find(forms, strategies[strategy].form) != forms.end()) {
        bytes[strategy] = all[strategy];
        any = true;
      }
    }
    if (any && begin < end) {
      add(pieces, {begin, end}, origin, std::move(bytes), per_microbatch);
    }
  };
  // Conversions of op outputs are made with the op, in its phase.
  const std::int64_t origin = is_input ? made : life.def;
  const std::int64_t first_origin =
      is_input && point.group == 1 ? intervals_->firstUse(index - 1) : origin;
  addPiece(made, origin, {Form::kConverted, Form::kCopy, Form::kOwn});
  addPiece(std::max(life.own_end, made), origin, {Form::kAlias});
  addPiece(std::max(first_end, made), first_origin, {Form::kKept});
  addSums(pieces, sums_of_point_[static_cast<std::size_t>(index)], all);
  return pieces;
}

}  // namespace shardwright
