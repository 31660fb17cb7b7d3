// Builds small step graphs by hand for the tests of search and plans.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"

namespace shardwright {

class SmallGraph {
 public:
  ValueRef input(const std::string& name, std::vector<std::int64_t> shape,
                 InputKind kind = InputKind::kBatch) {
    Node node;
    node.name = name;
    node.op = "input";
    node.outputs = {{std::move(shape), DType::kFloat32}};
    node.input = InputLabel{kind, name, "", "", false};
    return add(std::move(node));
  }

  ValueRef op(const std::string& name, const std::string& op, std::vector<ValueRef> operands,
              std::vector<std::int64_t> shape, Phase phase = Phase::kForward) {
    Node node;
    node.name = name;
    node.op = op;
    for (const ValueRef& operand : operands) {
      node.args.emplace_back(operand);
    }
    node.outputs = {{std::move(shape), DType::kFloat32}};
    node.phase = phase;
    node.source = "train.py:7";
    return add(std::move(node));
  }

  ValueRef mm(const std::string& name, ValueRef a, ValueRef b, Phase phase = Phase::kForward) {
    const std::int64_t rows = nodes_[a.node.index()].outputs[0].shape[0];
    const std::int64_t cols = nodes_[b.node.index()].outputs[0].shape[1];
    return op(name, "aten.mm.default", {a, b}, {rows, cols}, phase);
  }

  void result(ValueRef value) { outputs_.push_back({value, std::nullopt}); }
  void update(ValueRef value, ValueRef input) { outputs_.push_back({value, input.node}); }

  // Puts an op of backward into its late part.
  void setLate(ValueRef value) { nodes_[value.node.index()].is_late = true; }

  Graph build() const { return Graph(nodes_, outputs_); }
  // With an input that comes anew for each microbatch, from another stage.
  Graph buildReceiving(ValueRef input) {
    nodes_[input.node.index()].input->per_microbatch = true;
    return build();
  }

 private:
  ValueRef add(Node node) {
    nodes_.push_back(std::move(node));
    return {NodeId(nodes_.size() - 1), 0};
  }

  std::vector<Node> nodes_;
  std::vector<GraphOutput> outputs_;
};

}  // namespace shardwright
