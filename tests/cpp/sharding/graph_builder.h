// Small graphs for tests, written op by op.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"

namespace shardwright::testing {

class GraphBuilder {
 public:
  ValueRef input(const std::string& name, std::vector<std::int64_t> shape,
                 InputKind kind = InputKind::kBatch) {
    Node node;
    node.op = "input";
    node.input =
        InputLabel{.kind = kind, .name = name, .parameter = "", .key = "", .per_microbatch = false};
    node.outputs = {{.shape = std::move(shape), .dtype = DType::kFloat32}};
    return add(name, std::move(node));
  }

  ValueRef op(const std::string& op, ArgList args, std::vector<std::int64_t> shape,
              DType dtype = DType::kFloat32) {
    Node node;
    node.op = op;
    node.args = std::move(args);
    node.outputs = {{.shape = std::move(shape), .dtype = dtype}};
    node.source = "train.py:41";
    return add("n" + std::to_string(nodes_.size()), std::move(node));
  }

  ValueRef view(ValueRef value, const std::vector<std::int64_t>& shape) {
    return op("aten.view.default", args(value, ints(shape)), shape);
  }

  // Puts a node into a part of the step and says which forward op it is or differentiates.
  ValueRef place(ValueRef value, Phase phase, std::int64_t forward_index = -1) {
    nodes_[value.node.index()].phase = phase;
    nodes_[value.node.index()].forward_index = forward_index;
    return value;
  }
  Node& node(ValueRef value) { return nodes_[value.node.index()]; }

  // Arguments one by one: values, integers, lists. (A braced list of Arg draws a false warning
  // about uninitialized strings from GCC 12.)
  template <typename... Values>
  static ArgList args(const Values&... values) {
    ArgList list;
    list.reserve(sizeof...(values));
    (list.emplace_back().value.emplace<Values>(values), ...);
    return list;
  }

  static ArgList ints(const std::vector<std::int64_t>& values) {
    ArgList list;
    for (const std::int64_t value : values) {
      list.emplace_back().value = value;
    }
    return list;
  }

  void updates(ValueRef input, ValueRef value) {
    outputs_.push_back({.value = value, .updates = input.node});
  }

  Graph build() { return Graph(std::move(nodes_), std::move(outputs_)); }

 private:
  ValueRef add(const std::string& name, Node node) {
    node.name = name;
    nodes_.push_back(std::move(node));
    return {NodeId(nodes_.size() - 1), 0};
  }

  std::vector<Node> nodes_;
  std::vector<GraphOutput> outputs_;
};

}  // namespace shardwright::testing
