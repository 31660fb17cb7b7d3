#include "interop/layer_graphs.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "interop/layer_list.h"
#include "interop/split_sums.h"

namespace shardwright {
namespace {

using Kind = LayerEntry::Kind;

// Whether one shape comes out of the other by splitting dims: the order of elements says the same
// of both. [4, 6] and [2, 2, 6] do, [4, 6] and [6, 4] do not.
bool areNested(const std::vector<std::int64_t>& a, const std::vector<std::int64_t>& b) {
  const auto extents = [](const std::vector<std::int64_t>& shape) {
    std::vector<std::int64_t> result;
    std::int64_t extent = 1;
    for (std::size_t dim = shape.size(); dim-- > 0;) {
      extent *= shape[dim];
      if (result.empty() || result.back() != extent) {
        result.push_back(extent);
      }
    }
    return result;
  };
  const std::vector<std::int64_t> of_a = extents(a);
  const std::vector<std::int64_t> of_b = extents(b);
  return std::ranges::includes(of_a, of_b) || std::ranges::includes(of_b, of_a);
}

class Cutter {
 public:
  Cutter(const Graph& graph, const std::vector<int>& layer_of_node, bool splits_backward)
      : sums_(splitSums(graph, layer_of_node)),
        whole_(*sums_.graph),
        layer_(sums_.layer_of_node),
        splits_backward_(splits_backward),
        rank_(layer_.size()),
        stamp_(layer_.size(), kEveryLayer),
        early_in_(layer_.size(), kEveryLayer) {
    num_layers_ = 1 + *std::ranges::max_element(layer_of_node);
    num_layers_ = std::max(num_layers_, 1);
  }

  LayerGraphs cut() {
    placeOutputs();
    std::vector<std::vector<NodeId>> own(static_cast<std::size_t>(num_layers_));
    for (std::size_t index = 0; index < layer_.size(); ++index) {
      if (layer_[index] != kEveryLayer) {
        own[static_cast<std::size_t>(layer_[index])].push_back(NodeId(index));
      }
    }
    lists_.resize(own.size());
    received_.resize(own.size());
    for (std::size_t layer = 0; layer < own.size(); ++layer) {
      collect(static_cast<int>(layer), own[layer]);
    }
    result_.whole = sums_.graph;
    result_.layer_of_node = layer_;
    findCrossings();
    for (std::size_t layer = 0; layer < own.size(); ++layer) {
      finishList(static_cast<int>(layer));
    }
    findBoundaries();
    classify();
    return std::move(result_);
  }

 private:
  bool isInput(NodeId node) const { return whole_.node(node).input.has_value(); }

  [[noreturn]] void refuse(ValueRef value, int layer, Phase phase) const {
    const Node& node = whole_.node(value.node);
    throw Error(ErrorKind::kInternal, "E944", "a layer needs what a later part of the step makes.",
                {.values = {node.name + " of layer " + std::to_string(layer_[value.node.index()]) +
                            ", in " + phaseName(phase) + " of layer " + std::to_string(layer)},
                 .where = node.source,
                 .advice = "report this with the model; other layers may do"});
  }

  void placeOutputs() {
    outputs_.resize(static_cast<std::size_t>(num_layers_));
    for (std::size_t number = 0; number < whole_.outputs().size(); ++number) {
      const GraphOutput& output = whole_.outputs()[number];
      const int maker = layer_[output.value.node.index()];
      int layer = maker;
      if (output.updates) {
        layer = layer_[output.updates->index()];
        if (maker != layer && maker != kEveryLayer) {
          refuse(output.value, layer, Phase::kUpdate);
        }
      }
      outputs_[static_cast<std::size_t>(std::max(layer, 0))].push_back(number);
    }
  }

  // Marks `node` as part of the layer at hand, needed in phase `phase` or later.
  void need(NodeId node, Phase phase, int layer, std::vector<NodeId>& members) {
    const Phase own = isInput(node) ? Phase::kForward : whole_.node(node).phase;
    Phase& rank = rank_[node.index()];
    if (stamp_[node.index()] != layer) {
      stamp_[node.index()] = layer;
      rank = std::min(own, phase);
      members.push_back(node);
    } else {
      rank = std::min(rank, phase);
    }
  }

  // When layer `layer` gets `value` of another one to read it in phase `phase`.
  Phase whenReceived(ValueRef value, int layer, Phase phase) const {
    const int source = layer_[value.node.index()];
    if (phase == Phase::kUpdate || isInput(value.node)) {
      return Phase::kUpdate;
    }
    if (whole_.node(value.node).phase == Phase::kForward && source < layer) {
      return Phase::kForward;
    }
    if (phase == Phase::kBackward && source > layer) {
      return Phase::kBackward;
    }
    refuse(value, layer, phase);
  }

  // Own nodes of a layer and the nodes of no layer that they need; what it gets from others.
  void collect(int layer, const std::vector<NodeId>& own) {
    std::vector<NodeId> members;
    for (const NodeId node : own) {
      need(node, Phase::kUpdate, layer, members);
    }
    for (const std::size_t number : outputs_[static_cast<std::size_t>(layer)]) {
      const GraphOutput& output = whole_.outputs()[number];
      need(output.value.node, Phase::kUpdate, layer, members);
      if (output.updates) {
        need(*output.updates, Phase::kUpdate, layer, members);
      }
    }
    // First who is in, then, from the last node on, in which phase it must be there.
    for (std::size_t next = 0; next < members.size(); ++next) {
      for (const ValueRef operand : whole_.node(members[next]).operands()) {
        if (isHere(operand, layer)) {
          need(operand.node, Phase::kUpdate, layer, members);
        }
      }
    }
    std::ranges::sort(members);
    ReceivedPhases& received = received_[static_cast<std::size_t>(layer)];
    for (std::size_t position = members.size(); position-- > 0;) {
      const Phase phase = rank_[members[position].index()];
      for (const ValueRef operand : whole_.node(members[position]).operands()) {
        if (isHere(operand, layer)) {
          rank_[operand.node.index()] = std::min(rank_[operand.node.index()], phase);
          continue;
        }
        const Phase when = whenReceived(operand, layer, phase);
        const auto [known, added] = received.emplace(operand, when);
        if (!added) {
          known->second = std::min(known->second, when);
        }
      }
    }
    LayerList& list = lists_[static_cast<std::size_t>(layer)];
    for (const NodeId node : members) {
      list.entries.push_back({isInput(node) ? Kind::kInput : Kind::kCall,
                              {node, 0},
                              isInput(node) ? Phase::kForward : rank_[node.index()]});
    }
    for (const auto& [value, phase] : received) {
      list.entries.push_back({Kind::kReceived, value, Phase::kForward});
    }
    list.outputs = outputs_[static_cast<std::size_t>(layer)];
  }

  bool isHere(ValueRef value, int layer) const {
    const int of = layer_[value.node.index()];
    return of == kEveryLayer || of == layer;
  }

  void findCrossings() {
    std::map<std::pair<int, ValueRef>, CrossingValue> crossings;
    for (std::size_t layer = 0; layer < received_.size(); ++layer) {
      for (const auto& [value, phase] : received_[layer]) {
        const int source = layer_[value.node.index()];
        CrossingValue& crossing = crossings[{source, value}];
        if (crossing.targets.empty()) {
          crossing = {value, phase, source, {}, whole_.meta(value).bytes(), false};
        }
        crossing.phase = std::min(crossing.phase, phase);
        crossing.targets.push_back(static_cast<int>(layer));
      }
    }
    for (auto& [key, crossing] : crossings) {
      if (crossing.phase != Phase::kUpdate) {
        lists_[static_cast<std::size_t>(crossing.source)].entries.push_back(
            {Kind::kSend, crossing.value, crossing.phase});
      }
      result_.crossings.push_back(std::move(crossing));
    }
  }

  // Marks of backward what nothing follows from that other layers get.
  void markLate(LayerList& list, int layer) {
    const auto isBackward = [](const LayerEntry& entry, Kind kind) {
      return entry.kind == kind && entry.phase == Phase::kBackward;
    };
    for (const LayerEntry& entry : list.entries) {
      if (isBackward(entry, Kind::kSend)) early_in_[entry.value.node.index()] = layer;
    }
    for (auto entry = list.entries.rbegin(); entry != list.entries.rend(); ++entry) {
      if (!isBackward(*entry, Kind::kCall)) continue;
      entry->is_late = early_in_[entry->value.node.index()] != layer;
      if (entry->is_late) continue;
      for (const ValueRef operand : whole_.node(entry->value.node).operands()) {
        early_in_[operand.node.index()] = layer;
      }
    }
  }

  // Puts the entries in the order of the layer's graph.
  void finishList(int layer) {
    LayerList& list = lists_[static_cast<std::size_t>(layer)];
    if (splits_backward_) markLate(list, layer);
    const auto place = [](const LayerEntry& entry) {
      const int part = entry.kind == Kind::kInput      ? 0
                       : entry.kind == Kind::kReceived ? 1
                                                       : 2 + static_cast<int>(entry.phase);
      return std::tuple(part, entry.is_late, entry.value.node, entry.kind == Kind::kSend,
                        entry.value.output);
    };
    std::ranges::sort(list.entries, {}, place);
  }

  void findBoundaries() {
    result_.boundaries.resize(static_cast<std::size_t>(num_layers_));
    std::vector<std::int64_t> largest(result_.boundaries.size(), -1);
    const auto boundaryOf = [&](int layer) -> LayerBoundary& {
      return result_.boundaries[static_cast<std::size_t>(layer)];
    };
    const auto goesTo = [](const CrossingValue& crossing, int layer) {
      return std::ranges::binary_search(crossing.targets, layer);
    };
    std::vector<CrossingValue*> mains(result_.boundaries.size(), nullptr);
    for (CrossingValue& crossing : result_.crossings) {
      const int layer = crossing.source + 1;
      if (crossing.phase == Phase::kForward && goesTo(crossing, layer) &&
          crossing.bytes >= largest[static_cast<std::size_t>(layer)]) {
        largest[static_cast<std::size_t>(layer)] = crossing.bytes;
        boundaryOf(layer).main = crossing.value;
        mains[static_cast<std::size_t>(layer)] = &crossing;
      }
    }
    std::vector<CrossingValue*> gradients(result_.boundaries.size(), nullptr);
    for (CrossingValue& crossing : result_.crossings) {
      const int layer = crossing.source;
      if (crossing.phase != Phase::kBackward || !boundaryOf(layer).main ||
          !goesTo(crossing, layer - 1) ||
          whole_.node(crossing.value.node).phase != Phase::kBackward) {
        continue;
      }
      const TensorMeta& main = whole_.meta(*boundaryOf(layer).main);
      const TensorMeta& meta = whole_.meta(crossing.value);
      CrossingValue*& gradient = gradients[static_cast<std::size_t>(layer)];
      if (isFloating(meta.dtype) && meta.numElements() == main.numElements() &&
          areNested(meta.shape, main.shape) &&
          (gradient == nullptr || crossing.bytes >= gradient->bytes)) {
        gradient = &crossing;
        boundaryOf(layer).gradient = crossing.value;
      }
    }
    for (const auto& list : {mains, gradients}) {
      for (CrossingValue* crossing : list) {
        if (crossing != nullptr) {
          crossing->is_main = true;
        }
      }
    }
  }

  void classify() {
    LayerWriter writer(whole_);
    std::unordered_map<std::string, int> class_of_signature;
    for (std::size_t number = 0; number < lists_.size(); ++number) {
      const LayerList& list = lists_[number];
      writer.begin(list);
      const auto find = [&](Kind kind, std::size_t boundary, bool is_gradient) {
        if (boundary >= result_.boundaries.size()) {
          return std::int64_t{-1};
        }
        const LayerBoundary& at = result_.boundaries[boundary];
        const std::optional<ValueRef>& value = is_gradient ? at.gradient : at.main;
        return value ? writer.entryOf(kind, *value) : std::int64_t{-1};
      };
      const std::vector<std::int64_t> ports = {
          find(Kind::kReceived, number, false), find(Kind::kSend, number + 1, false),
          find(Kind::kReceived, number + 1, true), find(Kind::kSend, number, true)};
      std::string signature = writer.signature();
      for (const std::int64_t port : ports) {
        signature += " " + std::to_string(port);
      }
      for (const auto& [value, phase] : received_[number]) {
        signature += phaseName(phase);
      }
      const auto [known, added] = class_of_signature.emplace(
          std::move(signature), static_cast<int>(result_.classes.size()));
      if (added) {
        const auto nodeAt = [](std::int64_t entry) {
          return entry < 0 ? std::nullopt : std::optional(NodeId(static_cast<std::size_t>(entry)));
        };
        LayerClass made{std::make_shared<const Graph>(writer.graph()),
                        static_cast<int>(number),
                        nodeAt(ports[0]),
                        nodeAt(ports[1]),
                        nodeAt(ports[2]),
                        nodeAt(ports[3]),
                        {}};
        for (const auto& [value, phase] : received_[number]) {
          made.received.push_back({*nodeAt(writer.entryOf(Kind::kReceived, value)), phase});
        }
        result_.classes.push_back(std::move(made));
      }
      Layer layer{known->second, {}};
      for (const LayerEntry& entry : list.entries) {
        layer.origin.push_back(entry.value.node);
      }
      result_.layers.push_back(std::move(layer));
    }
  }

  SplitSums sums_;
  const Graph& whole_;
  const std::vector<int>& layer_;
  bool splits_backward_;
  int num_layers_ = 1;
  std::vector<std::vector<std::size_t>> outputs_;  // by layer
  std::vector<Phase> rank_;    // by node: phase in which the layer of its stamp needs it
  std::vector<int> stamp_;     // by node: the last layer that had it
  std::vector<int> early_in_;  // by node: the last layer in whose backward it is not late
  std::vector<LayerList> lists_;
  std::vector<ReceivedPhases> received_;
  LayerGraphs result_;
};

}  // namespace

LayerGraphs makeLayerGraphs(const Graph& graph, const std::vector<int>& layer_of_node,
                            bool splits_backward) {
  return Cutter(graph, layer_of_node, splits_backward).cut();
}

}  // namespace shardwright
