#include "interop/split_sums.h"

#include <optional>
#include <string>
#include <utility>

#include "sharding/conversion_points.h"

namespace shardwright {
namespace {

class Splitter {
 public:
  Splitter(const Graph& graph, const std::vector<int>& layer_of_node)
      : graph_(graph), layer_of_node_(layer_of_node), is_returned_(graph.nodes().size(), false) {
    for (const GraphOutput& output : graph.outputs()) {
      is_returned_[output.value.node.index()] = true;
    }
  }

  SplitSums split() {
    std::vector<std::vector<ValueRef>> terms(graph_.nodes().size());
    std::vector<bool> dropped(graph_.nodes().size(), false);
    bool any = false;
    for (std::size_t index = 0; index < terms.size(); ++index) {
      if (!accumulatesMicrobatches(graph_.nodes()[index])) {
        continue;
      }
      const ValueRef sum = graph_.nodes()[index].operands()[0];
      const std::optional<NodeId> cast = castOf(sum);
      std::vector<NodeId> gone;
      collect(cast ? graph_.node(*cast).operands()[0] : sum, terms[index], gone);
      if (gone.empty()) {
        continue;
      }
      any = true;
      if (cast) {
        gone.push_back(*cast);
      }
      for (const NodeId node : gone) {
        dropped[node.index()] = true;
      }
    }
    if (!any) {
      return {std::make_shared<const Graph>(graph_), layer_of_node_};
    }
    return write(terms, dropped);
  }

 private:
  bool isPrivate(ValueRef value) const {
    return graph_.uses(value).size() == 1 && !is_returned_[value.node.index()];
  }

  std::optional<NodeId> castOf(ValueRef value) const {
    const bool is_cast = graph_.node(value.node).op == "aten._to_copy.default";
    return is_cast && isPrivate(value) ? std::optional(value.node) : std::nullopt;
  }

  // The two terms of a sum that nobody else reads.
  std::optional<std::pair<ValueRef, ValueRef>> addendsOf(ValueRef value) const {
    const Node& node = graph_.node(value.node);
    if (node.op != "aten.add.Tensor" || node.args.size() != 2 || !node.kwargs.empty() ||
        !isPrivate(value)) {
      return std::nullopt;
    }
    const ValueRef* left = node.args[0].asValue();
    const ValueRef* right = node.args[1].asValue();
    if (left == nullptr || right == nullptr ||
        graph_.meta(*left).shape != graph_.meta(*right).shape) {
      return std::nullopt;
    }
    return std::pair(*left, *right);
  }

  int layerOf(ValueRef value) const { return layer_of_node_[value.node.index()]; }

  // Terms of `value` of different layers, and the additions that they come out of.
  void collect(ValueRef value, std::vector<ValueRef>& terms, std::vector<NodeId>& gone) const {
    const auto addends = addendsOf(value);
    if (!addends || !spansLayers(*addends)) {
      terms.push_back(value);
      return;
    }
    gone.push_back(value.node);
    collect(addends->first, terms, gone);
    collect(addends->second, terms, gone);
  }

  bool spansLayers(const std::pair<ValueRef, ValueRef>& addends) const {
    if (layerOf(addends.first) != layerOf(addends.second)) {
      return true;
    }
    for (const ValueRef value : {addends.first, addends.second}) {
      const auto inner = addendsOf(value);
      if (inner && spansLayers(*inner)) {
        return true;
      }
    }
    return false;
  }

  NodeId add(Node node, int layer) {
    nodes_.push_back(std::move(node));
    layers_.push_back(layer);
    return NodeId(nodes_.size() - 1);
  }

  ValueRef renamed(ValueRef value) const { return {new_id_[value.node.index()], value.output}; }

  void rename(Arg& arg) const {
    if (const ValueRef* value = arg.asValue()) {
      arg.value = renamed(*value);
    } else if (auto* list = std::get_if<ArgList>(&arg.value)) {
      for (Arg& element : *list) {
        rename(element);
      }
    }
  }

  Node copyOf(const Node& node) const {
    Node copy = node;
    for (Arg& arg : copy.args) {
      rename(arg);
    }
    for (auto& [name, arg] : copy.kwargs) {
      rename(arg);
    }
    return copy;
  }

  // The sum over microbatches `id` as a sum of those of its terms; returns the node of the total.
  NodeId writeSum(NodeId id, const std::vector<ValueRef>& terms) {
    const Node& sum = graph_.node(id);
    const std::optional<NodeId> cast = castOf(sum.operands()[0]);
    std::vector<NodeId> totals;
    for (std::size_t number = 0; number < terms.size(); ++number) {
      const ValueRef term = terms[number];
      const std::string suffix = "_term" + std::to_string(number);
      const int layer = layerOf(term);
      ValueRef value = renamed(term);
      if (cast) {
        Node node = copyOf(graph_.node(*cast));
        node.name += suffix;
        node.args[0].value = value;
        node.phase = graph_.node(term.node).phase;
        value = {add(std::move(node), layer), 0};
      }
      Node node = sum;
      node.name += suffix;
      node.args[0].value = value;
      totals.push_back(add(std::move(node), layer));
    }
    NodeId total = totals[0];
    for (std::size_t number = 1; number < totals.size(); ++number) {
      Node node = sum;
      node.op = "aten.add.Tensor";
      node.args.resize(2);
      node.args[0].value = ValueRef{total, 0};
      node.args[1].value = ValueRef{totals[number], 0};
      if (number + 1 < totals.size()) {
        node.name += "_total" + std::to_string(number);
      }
      total = add(std::move(node), layer_of_node_[id.index()]);
    }
    return total;
  }

  SplitSums write(const std::vector<std::vector<ValueRef>>& terms,
                  const std::vector<bool>& dropped) {
    new_id_.resize(graph_.nodes().size());
    for (std::size_t index = 0; index < graph_.nodes().size(); ++index) {
      if (dropped[index]) {
        continue;
      }
      new_id_[index] = terms[index].size() > 1
                           ? writeSum(NodeId(index), terms[index])
                           : add(copyOf(graph_.nodes()[index]), layer_of_node_[index]);
    }
    std::vector<GraphOutput> outputs = graph_.outputs();
    for (GraphOutput& output : outputs) {
      output.value = renamed(output.value);
      if (output.updates) {
        output.updates = new_id_[output.updates->index()];
      }
    }
    return {std::make_shared<const Graph>(std::move(nodes_), std::move(outputs)),
            std::move(layers_)};
  }

  const Graph& graph_;
  const std::vector<int>& layer_of_node_;
  std::vector<bool> is_returned_;
  std::vector<Node> nodes_;
  std::vector<int> layers_;
  std::vector<NodeId> new_id_;  // by node of graph_
};

}  // namespace

SplitSums splitSums(const Graph& graph, const std::vector<int>& layer_of_node) {
  return Splitter(graph, layer_of_node).split();
}

}  // namespace shardwright
