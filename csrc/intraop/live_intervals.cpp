#include "intraop/live_intervals.h"

#include <algorithm>

namespace shardwright {
namespace {

// What is added up over microbatches is read as soon as it is made, into a sum that is there
// anyway.
std::int64_t timeOf(const ShardedGraph& graph, const ValueUse& use) {
  if (!use.node.isValid()) {
    return static_cast<std::int64_t>(graph.graph().nodes().size()) - 1;
  }
  const Node& node = graph.graph().node(use.node);
  const bool adds = !use.isResult() && accumulatesMicrobatches(node);
  const NodeId reader = adds ? graph.root(node.operands()[0]).node : use.node;
  return static_cast<std::int64_t>(reader.index());
}

std::int64_t lastTime(const ShardedGraph& graph, const std::vector<ValueUse>& uses) {
  std::int64_t last = 0;
  for (const ValueUse& use : uses) {
    last = std::max(last, timeOf(graph, use));
  }
  return last;
}

}  // namespace

LiveIntervals::LiveIntervals(const ShardedGraph& sharded,
                             const std::vector<ConversionPoint>& conversions) {
  const Graph& graph = sharded.graph();
  const std::int64_t num_times = static_cast<std::int64_t>(graph.nodes().size());
  const std::vector<std::vector<ValueUses>> uses = valueUses(sharded);
  lives_.resize(graph.nodes().size());
  std::vector<std::vector<bool>> has_point(graph.nodes().size());
  for (std::size_t index = 0; index < lives_.size(); ++index) {
    lives_[index].resize(graph.nodes()[index].outputs.size());
    has_point[index].resize(graph.nodes()[index].outputs.size(), false);
  }
  for (const ConversionPoint& point : conversions) {
    has_point[point.value.node.index()][static_cast<std::size_t>(point.value.output)] = true;
    spans_.push_back({timeOf(sharded, point.uses.front()), lastTime(sharded, point.uses)});
  }

  // Functions of the batch alone may come first although they are of backward.
  std::int64_t last_forward = -1;
  for (std::size_t index = 0; index < lives_.size(); ++index) {
    const Node& node = graph.nodes()[index];
    if (!node.input && node.phase == Phase::kForward) {
      last_forward = static_cast<std::int64_t>(index);
    } else if (!node.input && node.phase == Phase::kBackward) {
      backward_begin_ = last_forward + 1;
      microbatches_.end = static_cast<std::int64_t>(index) + 1;
      if (node.is_late && late_begin_ == 0) late_begin_ = static_cast<std::int64_t>(index);
    }
  }

  // Values that take over another's buffer stretch it to the last of their uses.
  std::vector<std::vector<std::int64_t>> shared_end(lives_.size());
  for (std::size_t index = 0; index < lives_.size(); ++index) {
    shared_end[index].resize(lives_[index].size(), 0);
  }
  const auto endOf = [&](ValueRef value) -> std::int64_t& {
    return shared_end[value.node.index()][static_cast<std::size_t>(value.output)];
  };
  for (std::size_t index = 0; index < lives_.size(); ++index) {
    const NodeId node(index);
    if (sharded.isView(node)) {
      continue;
    }
    for (std::size_t output = 0; output < lives_[index].size(); ++output) {
      const ValueRef value{node, static_cast<int>(output)};
      const ValueUses& value_uses = uses[index][output];
      const ValueRef storage = bufferOwner(sharded, value);
      std::int64_t end = static_cast<std::int64_t>(index) + 1;
      for (const ValueUse& use : value_uses.in_place) {
        end = std::max(end, timeOf(sharded, use) + 1);
      }
      if (storage != value) {
        for (const ValueUse& use : value_uses.converting) {
          end = std::max(end, timeOf(sharded, use) + 1);
        }
      }
      endOf(storage) = std::max(endOf(storage), end);
    }
  }

  for (std::size_t index = 0; index < lives_.size(); ++index) {
    const NodeId node(index);
    if (sharded.isView(node)) {
      continue;
    }
    const bool is_input = graph.nodes()[index].input.has_value();
    for (std::size_t output = 0; output < lives_[index].size(); ++output) {
      const ValueRef value{node, static_cast<int>(output)};
      const ValueRef storage = bufferOwner(sharded, value);
      ValueLife& life = lives_[index][output];
      life.def = is_input ? 0 : static_cast<std::int64_t>(index);
      life.owns_storage = storage == value;
      life.own_end = endOf(storage);
      if (graph.node(storage.node).input) {
        life.own_end = num_times;
      }
      const std::vector<ValueUse>& converting = uses[index][output].converting;
      if (!has_point[index][output] && !converting.empty()) {
        life.own_end = std::max(life.own_end, lastTime(sharded, converting) + 1);
      }
      life.outlives_conversion = has_point[index][output] && life.own_end > life.def + 1;
    }
  }
}

}  // namespace shardwright
