#include "interop/forward_layers.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "interop/layer_assignment.h"
#include "interop/layer_clustering.h"

namespace shardwright {
namespace {

// FNV-1a over words.
class Signature {
 public:
  void add(std::uint64_t word) {
    for (int shift = 0; shift < 64; shift += 8) {
      hash_ = (hash_ ^ ((word >> shift) & 0xff)) * 0x100000001b3ULL;
    }
  }
  void add(std::string_view text) {
    add(static_cast<std::uint64_t>(text.size()));
    for (const char c : text) add(static_cast<std::uint64_t>(static_cast<unsigned char>(c)));
  }
  void add(const TensorMeta& meta) {
    add(static_cast<std::uint64_t>(meta.dtype));
    add(static_cast<std::uint64_t>(meta.shape.size()));
    for (const std::int64_t size : meta.shape) add(static_cast<std::uint64_t>(size));
  }
  // Tensors count by their kind of place only; `integers` says whether integers count.
  void add(const Arg& arg, bool integers) {
    add(static_cast<std::uint64_t>(arg.value.index()));
    if (const ArgList* list = arg.asList()) {
      add(static_cast<std::uint64_t>(list->size()));
      for (const Arg& element : *list) add(element, integers);
    } else if (const bool* flag = std::get_if<bool>(&arg.value)) {
      add(static_cast<std::uint64_t>(*flag));
    } else if (const std::int64_t* integer = std::get_if<std::int64_t>(&arg.value)) {
      if (integers) add(static_cast<std::uint64_t>(*integer));
    } else if (const double* number = std::get_if<double>(&arg.value)) {
      add(std::bit_cast<std::uint64_t>(*number));
    } else if (const std::string* text = std::get_if<std::string>(&arg.value)) {
      add(std::string_view(*text));
    }
  }
  std::uint64_t hash() const { return hash_; }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325ULL;
};

void addNode(Signature& signature, const Graph& graph, const Node& node) {
  bool is_random = false;  // its integers name a stream, another one for each call
  signature.add(std::string_view(node.op));
  for (const ValueRef operand : node.operands()) {
    const auto& label = graph.node(operand.node).input;
    is_random = is_random || (label && label->kind == InputKind::kRng);
    signature.add(graph.meta(operand));
  }
  for (const Arg& arg : node.args) signature.add(arg, !is_random);
  for (const auto& [name, arg] : node.kwargs) {
    signature.add(std::string_view(name));
    signature.add(arg, !is_random);
  }
  for (const TensorMeta& output : node.outputs) signature.add(output);
}

class Table {
 public:
  Table(const Graph& graph, const RuleRegistry& registry) : graph_(graph) {
    const std::vector<bool> every = nodesOfEveryLayer(graph);
    std::int64_t group = -1;
    int marks = 0;
    Signature signature;
    for (std::size_t n = 0; n < every.size(); ++n) {
      const NodeId id(n);
      const Node& node = graph.node(id);
      if (every[n] || node.input || node.phase != Phase::kForward) continue;
      const bool is_marked = node.layer_marks > marks;
      if (ops.empty() || node.forward_index < 0 || node.forward_index != group || is_marked) {
        if (is_marked && !ops.empty()) forced.push_back(static_cast<std::int32_t>(ops.size()));
        ops.emplace_back();
        firsts.push_back(id);
        signature = {};
      }
      group = node.forward_index;
      marks = std::max(marks, node.layer_marks);
      ops.back().flops =
          checkedAdd(ops.back().flops,
                     static_cast<std::int64_t>(std::llround(registry.rule(graph, id).flops)));
      addNode(signature, graph, node);
      ops.back().signature = signature.hash();
      for (const ValueRef operand : node.operands()) {
        const std::int32_t value = valueOf(operand);
        const bool is_inner = values[static_cast<std::size_t>(value)].producer ==
                              static_cast<std::int32_t>(ops.size() - 1);
        if (!is_inner) ops.back().operands.push_back(value);
      }
      for (int output = 0; output < static_cast<int>(node.outputs.size()); ++output) {
        makeValue({id, output}, static_cast<std::int32_t>(ops.size() - 1));
      }
    }
  }

  std::vector<ClusterOp> ops;
  std::vector<ClusterValue> values;
  std::vector<NodeId> firsts;        // first node of each op
  std::vector<std::int32_t> forced;  // ops in front of which a mark stands

 private:
  std::int32_t makeValue(ValueRef value, std::int32_t producer) {
    const auto index = static_cast<std::int32_t>(values.size());
    values.push_back({producer, graph_.meta(value).bytes()});
    index_.emplace(value, index);
    return index;
  }
  std::int32_t valueOf(ValueRef value) {
    const auto found = index_.find(value);
    return found == index_.end() ? makeValue(value, -1) : found->second;
  }

  const Graph& graph_;
  std::map<ValueRef, std::int32_t> index_;
};

LayerClustering cluster(const Table& table, const LayerOptions& options) {
  ClusterOptions wider{.num_layers = options.num_layers,
                       .most_layers = options.most_layers,
                       .forced_begins = table.forced};
  const int num_ops = static_cast<int>(table.ops.size());
  const int num_layers = options.num_layers.value_or(0);
  // With num_layers times the average a layer may have all FLOPs, so that some cut is allowed.
  const bool can_be_cut =
      num_layers > static_cast<int>(table.forced.size()) && num_layers <= num_ops;
  while (true) {
    try {
      return clusterLayers(table.ops, table.values, wider);
    } catch (const Error& error) {
      if (error.code() != "E222" || !can_be_cut || wider.flop_tolerance >= num_layers) throw;
      wider.flop_tolerance = 1 + 2 * wider.flop_tolerance;
    }
  }
}

}  // namespace

ForwardLayers findLayers(const Graph& graph, const RuleRegistry& registry,
                         const LayerOptions& options) {
  const Table table(graph, registry);
  const LayerClustering clustering = cluster(table, options);
  ForwardLayers layers;
  layers.flops = clustering.flops;
  layers.entering_bytes = clustering.entering_bytes;
  layers.class_of_layer = clustering.class_of_layer;
  for (std::size_t layer = 1; layer < clustering.begins.size(); ++layer) {
    layers.begins.push_back(table.firsts[static_cast<std::size_t>(clustering.begins[layer])]);
  }
  layers.layer_of_node = assignLayers(graph, layers.begins);
  return layers;
}

}  // namespace shardwright
