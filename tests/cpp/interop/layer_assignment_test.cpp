// Layers of whole steps worked out by hand.
#include "interop/layer_assignment.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "interop/forward_layers.h"
#include "sharding/graph_builder.h"

namespace shardwright {
namespace {

using testing::GraphBuilder;

std::string codeOf(const Graph& graph, const std::vector<std::string>& starts) {
  try {
    assignLayers(graph, layerBegins(graph, starts));
  } catch (const Error& error) {
    return error.code();
  }
  return "";
}

std::int32_t layerOf(const std::vector<std::int32_t>& layers, ValueRef value) {
  return layers[value.node.index()];
}

// Embedding, one product, and a head that is the embedding's weight again.
struct TiedStep {
  TiedStep() {
    mask = b.op("aten.ne.Scalar", args(tokens), {4});
    table = b.op("aten.cos.default", args(frequencies), {8});
    first =
        b.place(b.op("aten.embedding.default", args(weight, tokens), {4, 8}), Phase::kForward, 10);
    scaled = b.place(b.op("aten.mul.Tensor", args(first, frozen), {4, 8}), Phase::kForward, 11);
    product = b.place(b.op("aten.mm.default", args(scaled, matrix), {4, 8}), Phase::kForward, 20);
    b.node(product).module_path = "middle.linear";
    head = b.place(b.op("aten.mm.default", args(product, weight), {4, 8}), Phase::kForward, 30);
    b.node(head).module_path = "head";
    loss = b.place(b.op("aten.sum.default", args(head, mask), {}), Phase::kForward, 31);

    head_grad = backward("aten.expand.default", args(loss), {4, 8}, 31);
    tied_grad = backward("aten.mm.default", args(head_grad, product), {8, 8}, 30);
    product_grad = backward("aten.mm.default", args(head_grad, weight), {4, 8}, 30);
    matrix_grad = backward("aten.mm.default", args(product_grad, scaled), {8, 8}, 20);
    scaled_grad = backward("aten.mm.default", args(product_grad, matrix), {4, 8}, 20);
    first_grad = backward("aten.mul.Tensor", args(scaled_grad, frozen), {4, 8}, 11);
    embedding_grad =
        backward("aten.embedding_dense_backward.default", args(first_grad, tokens), {8, 8}, 10);
    sum = backward("aten.add.Tensor", args(tied_grad, embedding_grad), {8, 8}, -1);

    norm = update("aten.norm.default", args(sum, matrix_grad), {});
    step = update("aten.mul.Tensor", args(lr, lr), {});
    weight_momentum = update("aten.add.Tensor", args(momentum, sum), {8, 8});
    new_weight = update("aten.sub.Tensor", args(weight, weight_momentum, norm, step), {8, 8});
    new_matrix = update("aten.sub.Tensor", args(matrix, matrix_grad, step), {8, 8});
    b.updates(weight, new_weight);
    b.updates(matrix, new_matrix);
    b.updates(momentum, weight_momentum);
  }

  template <typename... Values>
  static ArgList args(const Values&... values) {
    return GraphBuilder::args(values...);
  }
  ValueRef backward(const std::string& op, ArgList args, std::vector<std::int64_t> shape,
                    std::int64_t index) {
    return b.place(b.op(op, std::move(args), std::move(shape)), Phase::kBackward, index);
  }
  ValueRef update(const std::string& op, ArgList args, std::vector<std::int64_t> shape) {
    return b.place(b.op(op, std::move(args), std::move(shape)), Phase::kUpdate);
  }

  GraphBuilder b;
  ValueRef tokens = b.input("tokens", {4});
  ValueRef lr = b.input("lr", {}, InputKind::kHyper);
  ValueRef weight = b.input("weight", {8, 8}, InputKind::kParameter);
  ValueRef matrix = b.input("matrix", {8, 8}, InputKind::kParameter);
  ValueRef frozen = b.input("frozen", {8}, InputKind::kParameter);
  ValueRef frequencies = b.input("frequencies", {8}, InputKind::kBuffer);
  ValueRef momentum = state("weight.momentum", "weight");
  ValueRef matrix_state = state("matrix.momentum", "matrix");
  ValueRef mask, table, first, scaled, product, head, loss;
  ValueRef head_grad, tied_grad, product_grad, matrix_grad, scaled_grad, first_grad;
  ValueRef embedding_grad, sum, norm, step, weight_momentum, new_weight, new_matrix;

 private:
  ValueRef state(const std::string& name, const std::string& parameter) {
    const ValueRef value = b.input(name, {8, 8}, InputKind::kOptimizerState);
    b.node(value).input->parameter = parameter;
    return value;
  }
};

TEST(LayerAssignment, EveryNodeOfATiedStep) {
  TiedStep s;
  const Graph graph = s.b.build();
  const std::vector<std::int32_t> layers =
      assignLayers(graph, layerBegins(graph, {"middle", "head"}));
  for (const ValueRef value : {s.tokens, s.lr, s.frozen, s.frequencies, s.mask, s.table, s.step}) {
    EXPECT_EQ(layerOf(layers, value), kEveryLayer) << graph.node(value.node).name;
  }
  for (const ValueRef value : {s.weight, s.momentum, s.first, s.scaled, s.first_grad, s.sum,
                               s.embedding_grad, s.weight_momentum, s.new_weight}) {
    EXPECT_EQ(layerOf(layers, value), 0) << graph.node(value.node).name;
  }
  for (const ValueRef value :
       {s.matrix, s.matrix_state, s.product, s.matrix_grad, s.scaled_grad, s.new_matrix}) {
    EXPECT_EQ(layerOf(layers, value), 1) << graph.node(value.node).name;
  }
  for (const ValueRef value : {s.head, s.loss, s.head_grad, s.tied_grad, s.product_grad}) {
    EXPECT_EQ(layerOf(layers, value), 2) << graph.node(value.node).name;
  }
  // 256 bytes of each: the first.
  EXPECT_EQ(layerOf(layers, s.norm), 0);
}

TEST(LayerAssignment, OpsAndModulesBeginLayers) {
  TiedStep s;
  const Graph graph = s.b.build();
  const std::string product = graph.node(s.product.node).name;
  EXPECT_EQ(layerBegins(graph, {product, "head"}),
            layerBegins(graph, {"middle.linear", graph.node(s.head.node).name}));
  EXPECT_EQ(codeOf(graph, {"middle", "head"}), "");
  EXPECT_EQ(codeOf(graph, {"nothing"}), "E527");
  EXPECT_EQ(codeOf(graph, {"head", "middle"}), "E527");
  EXPECT_EQ(codeOf(graph, {"middle", product}), "E527");
  EXPECT_EQ(codeOf(graph, {graph.node(s.first.node).name}), "E527");      // nothing before it
  EXPECT_EQ(codeOf(graph, {graph.node(s.head_grad.node).name}), "E527");  // of backward
}

TEST(LayerAssignment, WhatForwardLeftOutIsReplacedByTheOpBefore) {
  TiedStep s;
  s.b.node(s.first_grad).forward_index = 15;  // of an op that is not there: after scaled (11)
  const Graph graph = s.b.build();
  const std::vector<std::int32_t> layers =
      assignLayers(graph, {s.scaled.node, s.product.node, s.head.node});
  EXPECT_EQ(layerOf(layers, s.first_grad), 1);
}

TEST(LayerAssignment, BackwardStaysBehindWhatItReads) {
  TiedStep s;
  // Says of itself that it is of layer 1, but reads a value of layer 2: as an op that was taken
  // apart into nodes of both.
  s.b.node(s.tied_grad).args = TiedStep::args(s.head_grad, s.head);
  s.b.node(s.tied_grad).forward_index = 20;
  // Says that it is of layer 2, but the gradient it reads has come to layer 1.
  s.b.node(s.first_grad).forward_index = 31;
  const Graph graph = s.b.build();
  const std::vector<std::int32_t> layers =
      assignLayers(graph, layerBegins(graph, {"middle", "head"}));
  EXPECT_EQ(layerOf(layers, s.tied_grad), 2);
  EXPECT_EQ(layerOf(layers, s.product_grad), 2);
  EXPECT_EQ(layerOf(layers, s.matrix_grad), 1);
  EXPECT_EQ(layerOf(layers, s.first_grad), 1);
}

TEST(LayerAssignment, ForwardAfterBackwardIsRefused) {
  GraphBuilder b;
  const ValueRef weight = b.input("weight", {4}, InputKind::kParameter);
  const ValueRef y = b.op("aten.exp.default", GraphBuilder::args(weight), {4});
  const ValueRef grad =
      b.place(b.op("aten.mul.Tensor", GraphBuilder::args(y), {4}), Phase::kBackward, 0);
  const ValueRef again = b.op("aten.exp.default", GraphBuilder::args(grad), {4});
  b.updates(weight, b.place(b.op("aten.sub.Tensor", GraphBuilder::args(weight, again), {4}),
                            Phase::kUpdate));
  const Graph graph = b.build();
  EXPECT_EQ(codeOf(graph, {}), "E334");
}

// A chain of products with a narrow value after every second one.
Graph chain(int num_pairs, std::vector<int> marks = {}) {
  GraphBuilder b;
  ValueRef x = b.input("x", {64, 8});
  for (int k = 0; k < num_pairs; ++k) {
    const ValueRef up = b.input("up" + std::to_string(k), {8, 32}, InputKind::kParameter);
    const ValueRef down = b.input("down" + std::to_string(k), {32, 8}, InputKind::kParameter);
    const ValueRef wide = b.op("aten.mm.default", GraphBuilder::args(x, up), {64, 32});
    x = b.op("aten.mm.default", GraphBuilder::args(wide, down), {64, 8});
    for (const ValueRef value : {wide, x}) {
      for (std::size_t m = 0; m < marks.size(); ++m) {
        if (marks[m] <= 2 * k + (value == x ? 1 : 0)) {
          b.node(value).layer_marks = static_cast<int>(m) + 1;
        }
      }
    }
    b.updates(up, up);
    b.updates(down, down);
  }
  return b.build();
}

TEST(ForwardLayers, PairsOfProductsAreLayersOfOneClass) {
  const Graph graph = chain(4);
  const ForwardLayers layers = findLayers(graph, builtinRules());
  ASSERT_EQ(layers.begins.size(), 3U);
  EXPECT_EQ(layers.flops, std::vector<std::int64_t>(4, 2LL * 2 * 64 * 8 * 32));
  // The first pair reads the batch, and so no value of another layer.
  EXPECT_EQ(layers.entering_bytes,
            (std::vector<std::int64_t>{0, 64 * 8 * 4, 64 * 8 * 4, 64 * 8 * 4}));
  EXPECT_EQ(layers.class_of_layer, (std::vector<std::int32_t>{0, 1, 1, 1}));
  EXPECT_EQ(findLayers(graph, builtinRules(), {.num_layers = 2}).begins.size(), 1U);
  EXPECT_EQ(findLayers(graph, builtinRules(), {.num_layers = 8}).begins.size(), 7U);
  EXPECT_THROW(findLayers(graph, builtinRules(), {.num_layers = 9}), Error);
}

TEST(ForwardLayers, MarksAreTheCut) {
  // In front of the second product, and of the fourth and fifth.
  const Graph graph = chain(3, {1, 3, 4});
  const ForwardLayers layers = findLayers(graph, builtinRules());
  std::vector<std::string> ops;
  for (const NodeId begin : layers.begins) ops.push_back(graph.node(begin).name);
  // Inputs and ops alternate: x, up0, down0, n3, n4, up1, down1, n7, n8, up2, down2, n11, n12.
  EXPECT_EQ(ops, (std::vector<std::string>{"n4", "n8", "n11"}));
  EXPECT_EQ(findLayers(graph, builtinRules(), {.num_layers = 5}).begins.size(), 4U);
  EXPECT_THROW(findLayers(graph, builtinRules(), {.num_layers = 3}), Error);
}

TEST(ForwardLayers, NodesOfOneRecordedOpStayTogether) {
  GraphBuilder b;
  ValueRef x = b.input("x", {4, 4});
  const ValueRef weight = b.input("weight", {4, 4}, InputKind::kParameter);
  b.updates(weight, weight);
  std::vector<ValueRef> products;
  for (int k = 0; k < 4; ++k) {
    x = b.place(b.op("aten.mm.default", GraphBuilder::args(x, weight), {4, 4}), Phase::kForward,
                k / 2);
    products.push_back(x);
  }
  const Graph graph = b.build();
  EXPECT_EQ(findLayers(graph, builtinRules(), {.num_layers = 2}).begins,
            std::vector<NodeId>{products[2].node});
  EXPECT_THROW(findLayers(graph, builtinRules(), {.num_layers = 3}), Error);
}

}  // namespace
}  // namespace shardwright
