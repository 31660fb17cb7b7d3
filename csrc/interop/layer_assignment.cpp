#include "interop/layer_assignment.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

#include "base/error.h"

namespace shardwright {
namespace {

constexpr std::int32_t kUnknown = -2;

bool isStored(InputKind kind) {
  return kind == InputKind::kParameter || kind == InputKind::kBuffer;
}

std::vector<bool> updatedInputs(const Graph& graph) {
  std::vector<bool> updated(graph.nodes().size(), false);
  for (const GraphOutput& output : graph.outputs()) {
    if (output.updates) updated[output.updates->index()] = true;
  }
  return updated;
}

[[noreturn]] void rejectStart(const std::string& start, const std::string& previous) {
  std::vector<std::string> values = {"no op of forward, and none in a module, is called '" + start +
                                     "'"};
  if (!previous.empty()) {
    values = {"'" + start + "' leaves a stage without ops of forward, after '" + previous + "'"};
  }
  throw Error(
      ErrorKind::kConfig, "E527", "no stage begins where it was asked for.",
      {.values = std::move(values),
       .advice = "names of modules as in named_modules(), or of ops of forward in the captured "
                 "graph, in the order in which forward runs them"});
}

class Assigner {
 public:
  Assigner(const Graph& graph, const std::vector<NodeId>& begins)
      : graph_(graph), begins_(begins), layers_(graph.nodes().size(), kUnknown) {}

  std::vector<std::int32_t> run() {
    const std::vector<bool> every = nodesOfEveryLayer(graph_);
    for (std::size_t n = 0; n < every.size(); ++n) {
      if (every[n]) layers_[n] = kEveryLayer;
    }
    assignForward();
    assignBackward();
    assignInputs();
    assignUpdate();
    return std::move(layers_);
  }

 private:
  const Node& node(std::size_t n) const { return graph_.node(NodeId(n)); }
  std::int32_t layerOf(ValueRef value) const { return layers_[value.node.index()]; }
  bool isCall(ValueRef value, Phase phase) const {
    const Node& maker = graph_.node(value.node);
    return !maker.input && maker.phase == phase;
  }
  // Nodes of a phase that have no layer yet.
  bool isOpen(std::size_t n, Phase phase) const {
    return layers_[n] == kUnknown && !node(n).input && node(n).phase == phase;
  }

  void assignForward() {
    std::int32_t layer = 0;
    for (std::size_t n = 0; n < layers_.size(); ++n) {
      while (static_cast<std::size_t>(layer) < begins_.size() &&
             begins_[static_cast<std::size_t>(layer)].index() <= n) {
        ++layer;
      }
      if (!isOpen(n, Phase::kForward)) continue;
      for (const ValueRef operand : node(n).operands()) {
        if (isCall(operand, Phase::kBackward) && layerOf(operand) != kEveryLayer) {
          throw Error(ErrorKind::kPlan, "E334",
                      "the step cannot run in stages: forward follows backward.",
                      {.values = {"node: " + node(n).name + ", " + node(n).op},
                       .where = node(n).source,
                       .advice = "one forward and one backward per step; num_microbatches cuts the "
                                 "batch"});
        }
      }
      layers_[n] = layer;
      if (node(n).forward_index >= 0) forward_.emplace_back(node(n).forward_index, layer);
    }
    // Of the nodes that one recorded op became the first counts.
    std::ranges::stable_sort(forward_, {}, &std::pair<std::int64_t, std::int32_t>::first);
  }

  // Of the forward op with this index; where none is left, of the last before it.
  std::int32_t layerOfIndex(std::int64_t index) const {
    auto found = std::ranges::lower_bound(forward_, index, {},
                                          &std::pair<std::int64_t, std::int32_t>::first);
    if (found != forward_.end() && found->first == index) return found->second;
    return found == forward_.begin() ? 0 : std::prev(found)->second;
  }

  void assignBackward() {
    for (std::size_t n = 0; n < layers_.size(); ++n) {
      if (!isOpen(n, Phase::kBackward)) continue;
      // The gradient has come as far as this.
      auto bound = static_cast<std::int32_t>(begins_.size());
      bool reads_gradients = false;
      std::int32_t read = kUnknown;
      for (const ValueRef operand : node(n).operands()) {
        if (layerOf(operand) < 0) continue;  // of every layer, or an input
        if (isCall(operand, Phase::kBackward)) {
          bound = std::min(bound, layerOf(operand));
          reads_gradients = true;
        } else {
          read = std::max(read, layerOf(operand));
        }
      }
      if (node(n).forward_index >= 0) {
        layers_[n] = std::min(bound, std::max(read, layerOfIndex(node(n).forward_index)));
      } else {
        layers_[n] = reads_gradients || read < 0 ? bound : std::min(bound, read);
      }
    }
  }

  void assignInputs() {
    std::unordered_map<std::string, std::int32_t> parameters;
    for (std::size_t n = 0; n < layers_.size(); ++n) {
      if (!node(n).input || !isStored(node(n).input->kind)) continue;
      if (layers_[n] == kUnknown) layers_[n] = layerOfFirstReader(n);
      parameters.emplace(node(n).input->name, layers_[n]);
    }
    for (std::size_t n = 0; n < layers_.size(); ++n) {
      if (!node(n).input || layers_[n] != kUnknown) continue;
      const auto found = parameters.find(node(n).input->parameter);
      layers_[n] = found == parameters.end() ? 0 : std::max(found->second, 0);
    }
  }

  std::int32_t layerOfFirstReader(std::size_t n) const {
    for (const Phase phase : {Phase::kForward, Phase::kBackward}) {
      std::int32_t first = std::numeric_limits<std::int32_t>::max();
      for (const Use& use : graph_.uses({NodeId(n), 0})) {
        const std::int32_t layer = layers_[use.node.index()];
        if (graph_.node(use.node).phase == phase && layer >= 0) first = std::min(first, layer);
      }
      if (first != std::numeric_limits<std::int32_t>::max()) return first;
    }
    return 0;
  }

  void assignUpdate() {
    for (const GraphOutput& output : graph_.outputs()) {
      if (output.updates && isCall(output.value, Phase::kUpdate)) {
        layers_[output.value.node.index()] = layers_[output.updates->index()];
      }
    }
    std::vector<std::int64_t> bytes(begins_.size() + 1, 0);
    for (std::size_t n = 0; n < layers_.size(); ++n) {
      if (!isOpen(n, Phase::kUpdate)) continue;
      std::vector<ValueRef> operands = node(n).operands();
      std::ranges::sort(operands);
      operands.erase(std::ranges::unique(operands).begin(), operands.end());
      for (const ValueRef operand : operands) {
        if (layerOf(operand) >= 0) {
          bytes[static_cast<std::size_t>(layerOf(operand))] += graph_.meta(operand).bytes();
        }
      }
      std::int32_t heaviest = kEveryLayer;
      for (const ValueRef operand : operands) {
        const std::int32_t layer = layerOf(operand);
        if (layer < 0 || layer == heaviest) continue;
        const std::int64_t here = bytes[static_cast<std::size_t>(layer)];
        const std::int64_t most = heaviest < 0 ? -1 : bytes[static_cast<std::size_t>(heaviest)];
        if (here > most || (here == most && layer < heaviest)) heaviest = layer;
      }
      for (const ValueRef operand : operands) {
        if (layerOf(operand) >= 0) bytes[static_cast<std::size_t>(layerOf(operand))] = 0;
      }
      layers_[n] = heaviest;
    }
  }

  const Graph& graph_;
  const std::vector<NodeId>& begins_;
  std::vector<std::int32_t> layers_;
  std::vector<std::pair<std::int64_t, std::int32_t>> forward_;  // (forward_index, layer), sorted
};

}  // namespace

std::vector<bool> nodesOfEveryLayer(const Graph& graph) {
  const std::vector<bool> updated = updatedInputs(graph);
  std::vector<bool> every(graph.nodes().size(), false);
  std::vector<bool> of_batch(every.size(), false);
  std::vector<bool> of_stored(every.size(), false);
  for (std::size_t n = 0; n < every.size(); ++n) {
    const Node& node = graph.node(NodeId(n));
    if (node.input) {
      const InputKind kind = node.input->kind;
      of_batch[n] = kind == InputKind::kBatch;
      of_stored[n] = isStored(kind);
      every[n] = kind != InputKind::kOptimizerState && !(of_stored[n] && updated[n]);
      continue;
    }
    bool all = true;
    for (const ValueRef operand : node.operands()) {
      const std::size_t from = operand.node.index();
      all = all && every[from];
      of_batch[n] = of_batch[n] || of_batch[from];
      of_stored[n] = of_stored[n] || of_stored[from];
    }
    every[n] = all && !(of_batch[n] && of_stored[n]);
  }
  return every;
}

std::vector<NodeId> layerBegins(const Graph& graph, const std::vector<std::string>& starts) {
  const std::vector<bool> every = nodesOfEveryLayer(graph);
  std::unordered_map<std::string, NodeId> ops;
  std::unordered_map<std::string, NodeId> modules;
  std::vector<std::int32_t> own_before(every.size() + 1, 0);  // forward ops of one layer before
  for (std::size_t n = 0; n < every.size(); ++n) {
    const Node& node = graph.node(NodeId(n));
    const bool is_forward = !node.input && node.phase == Phase::kForward;
    own_before[n + 1] = own_before[n] + (is_forward && !every[n] ? 1 : 0);
    if (!is_forward) continue;
    ops.emplace(node.name, NodeId(n));
    if (every[n] || node.module_path.empty()) continue;
    for (std::size_t end = node.module_path.size(); end != std::string::npos && end > 0;
         end = node.module_path.rfind('.', end - 1)) {
      // Where the module is known, so are those around it.
      if (!modules.emplace(node.module_path.substr(0, end), NodeId(n)).second) break;
    }
  }
  std::vector<NodeId> begins;
  for (const std::string& start : starts) {
    auto found = ops.find(start);
    if (found == ops.end()) {
      found = modules.find(start);
      if (found == modules.end()) rejectStart(start, "");
    }
    const std::int32_t before = begins.empty() ? 0 : own_before[begins.back().index()];
    const std::int32_t here = own_before[found->second.index()];
    if (here <= before || here == own_before.back()) {
      rejectStart(start, begins.empty() ? "the step" : starts[begins.size() - 1]);
    }
    begins.push_back(found->second);
  }
  return begins;
}

std::vector<std::int32_t> assignLayers(const Graph& graph, const std::vector<NodeId>& begins) {
  return Assigner(graph, begins).run();
}

}  // namespace shardwright
