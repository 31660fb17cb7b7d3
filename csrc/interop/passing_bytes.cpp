#include "interop/passing_bytes.h"

#include <algorithm>
#include <cstddef>

namespace shardwright {
namespace {

// How a value meets the layers [begin, end).
struct Meeting {
  bool has_source = false;
  bool has_target = false;
  int num_kept = 0;        // targets whose own bytes have it
  bool is_at_end = false;  // a target is the layer at an end, which counts what it receives
  bool passes = false;     // over a layer between source and target
};

Meeting meetingOf(const PassingValue& value, int begin, int end) {
  Meeting meeting;
  meeting.has_source = begin <= value.source && value.source < end;
  for (std::size_t index = 0; index < value.targets.size(); ++index) {
    const int target = value.targets[index];
    if (target < begin || target >= end) continue;
    meeting.has_target = true;
    const bool is_at_end = target == (value.phase == Phase::kBackward ? end - 1 : begin);
    meeting.num_kept += value.kept[index] || (is_at_end && !meeting.has_source) ? 1 : 0;
    meeting.is_at_end = meeting.is_at_end || is_at_end;
    meeting.passes =
        meeting.passes || target != value.source + (value.phase == Phase::kBackward ? -1 : 1);
  }
  return meeting;
}

double stepShare(const std::vector<PassingValue>& values, int begin, int end) {
  std::int64_t all = 0;
  std::int64_t from_others = 0;
  for (const PassingValue& value : values) {
    if (value.phase != Phase::kUpdate) continue;
    const bool is_inside = begin <= value.source && value.source < end;
    bool is_counted = is_inside;
    for (std::size_t index = 0; index < value.targets.size(); ++index) {
      const int target = value.targets[index];
      if (target < begin || target >= end || value.kept[index]) continue;
      all += value.bytes;
      if (!is_counted) from_others += value.bytes;
      is_counted = true;
    }
  }
  return all > 0 ? static_cast<double>(from_others) / static_cast<double>(all) : 0;
}

void addValue(const PassingValue& value, int begin, int end, PassingBytes& result) {
  const Meeting meeting = meetingOf(value, begin, end);
  if (!meeting.has_target) return;
  const bool is_kept = meeting.num_kept > 0;
  const auto add = [&](RangeTable<std::int64_t>& table, int times) {
    table.at(begin, end) += times * value.bytes;
  };
  if (value.phase == Phase::kForward) {
    add(result.repeated, std::max(0, meeting.num_kept - 1));
    add(result.activations, is_kept || meeting.has_source ? 0 : 1);
  } else if (meeting.has_source) {
    add(result.inner, meeting.passes && !is_kept ? 1 : 0);
  } else {
    add(result.gradients, is_kept ? 0 : 1);
    add(result.first_gradients, meeting.is_at_end ? 0 : 1);
  }
}

bool isKept(const LayerClass& layer, const std::vector<NodeId>& origin,
            const std::vector<bool>& kept, ValueRef value) {
  for (std::size_t index = 0; index < kept.size(); ++index) {
    if (kept[index] && origin[layer.received[index].input.index()] == value.node) return true;
  }
  return false;
}

}  // namespace

std::vector<PassingValue> passingValues(const LayerGraphs& graphs,
                                        const std::vector<std::vector<bool>>& kept) {
  std::vector<PassingValue> values;
  for (const CrossingValue& value : graphs.crossings) {
    PassingValue& passing = values.emplace_back();
    passing.source = value.source;
    passing.targets = value.targets;
    for (const int target : value.targets) {
      const Layer& layer = graphs.layers[static_cast<std::size_t>(target)];
      const auto number = static_cast<std::size_t>(layer.layer_class);
      passing.kept.push_back(
          isKept(graphs.classes[number], layer.origin, kept[number], value.value));
    }
    passing.phase = value.phase;
    passing.bytes = value.bytes;
  }
  return values;
}

PassingBytes passingBytes(int num_layers, const std::vector<PassingValue>& values) {
  const RangeTable<std::int64_t> none(num_layers, 0);
  PassingBytes result{none, none, none, none, none, RangeTable<double>(num_layers, 0)};
  for (int begin = 0; begin < num_layers; ++begin) {
    for (int end = begin + 1; end <= num_layers; ++end) {
      for (const PassingValue& value : values) {
        if (value.phase != Phase::kUpdate) addValue(value, begin, end, result);
      }
      result.step_share.at(begin, end) = stepShare(values, begin, end);
    }
  }
  return result;
}

}  // namespace shardwright
