#include "interop/layer_graphs.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/error.h"
#include "interop/chain_graph.h"
#include "plan/small_graph.h"

namespace shardwright {
namespace {

constexpr Phase kBackward = Phase::kBackward;
constexpr Phase kUpdate = Phase::kUpdate;

std::vector<std::string> namesOf(const Graph& graph) {
  std::vector<std::string> names;
  for (const Node& node : graph.nodes()) {
    names.push_back(node.name);
  }
  return names;
}

TEST(LayerGraphs, LayerHasItsNodesAndWhatItReceivesAndMarksWhatItSends) {
  const LayerGraphs cut = Chain(4).cut();
  ASSERT_EQ(cut.layers.size(), 4U);
  const LayerClass& middle = cut.classes[static_cast<std::size_t>(cut.layers[1].layer_class)];
  EXPECT_EQ(middle.first_layer, 1);
  EXPECT_EQ(namesOf(*middle.graph),
            (std::vector<std::string>{"w1", "a0_received", "g2_received", "n2_received", "h1", "a1",
                                      "a1_sent", "d1", "t1", "u1", "g1", "g1_sent", "s1", "new1"}));
  const auto nameOf = [&](std::optional<NodeId> node) { return middle.graph->node(*node).name; };
  EXPECT_EQ(nameOf(middle.main_in), "a0_received");
  EXPECT_EQ(nameOf(middle.main_out), "a1_sent");
  EXPECT_EQ(nameOf(middle.grad_in), "g2_received");
  EXPECT_EQ(nameOf(middle.grad_out), "g1_sent");
  ASSERT_EQ(middle.received.size(), 3U);
  EXPECT_EQ(middle.received[2].phase, Phase::kUpdate);
  // Outputs: the new parameter and two sends; the sum of gradients crosses in the update unmarked.
  ASSERT_EQ(middle.graph->outputs().size(), 3U);
  EXPECT_EQ(middle.graph->outputs()[0].updates, NodeId(0));
}

TEST(LayerGraphs, EqualLayersAreOneClass) {
  const LayerGraphs cut = Chain(5).cut();
  EXPECT_EQ(cut.layers[1].layer_class, cut.layers[2].layer_class);
  EXPECT_EQ(cut.layers[2].layer_class, cut.layers[3].layer_class);
  // The first has no entry, the last no exit.
  EXPECT_EQ(cut.classes.size(), 3U);
  const Graph& whole = *cut.whole;
  EXPECT_EQ(whole.node(cut.layers[2].origin[4]).name, "h2");
  EXPECT_EQ(whole.node(cut.layers[3].origin[4]).name, "h3");
}

TEST(LayerGraphs, SkipConnectionIsACrossingValueThatIsNotMain) {
  const LayerGraphs cut = Chain(4, true).cut();
  std::map<std::string, const CrossingValue*> by_name;
  for (const CrossingValue& crossing : cut.crossings) {
    by_name[cut.whole->node(crossing.value.node).name] = &crossing;
  }
  // a0 [8, 4] goes to layers 1 (as its main value) and 3.
  ASSERT_TRUE(by_name.contains("a0"));
  EXPECT_EQ(by_name["a0"]->targets, (std::vector<int>{1, 3}));
  EXPECT_EQ(by_name["a0"]->bytes, 8 * 4 * 4);
  EXPECT_TRUE(by_name["a0"]->is_main);
  EXPECT_EQ(by_name["a2"]->targets, (std::vector<int>{3}));
  EXPECT_EQ(by_name["g1"]->phase, Phase::kBackward);
  EXPECT_EQ(by_name["s3"]->phase, Phase::kUpdate);
  EXPECT_EQ(cut.boundaries[3].main, by_name["a2"]->value);
  EXPECT_EQ(cut.boundaries[3].gradient, by_name["g3"]->value);
}

// Of a layer in the middle all but its gradient u of the weight leads to the gradient that it
// sends; the first layer sends none.
TEST(LayerGraphs, WhatNoGradientForOthersFollowsFromIsLate) {
  const Chain chain(3);
  const LayerGraphs cut = makeLayerGraphs(chain.graph.build(), chain.layers, true);
  const auto lateOf = [&](std::size_t layer) {
    std::vector<std::string> late;
    for (const Node& node :
         cut.classes[static_cast<std::size_t>(cut.layers[layer].layer_class)].graph->nodes()) {
      if (node.is_late) late.push_back(node.name);
    }
    return late;
  };
  EXPECT_EQ(lateOf(0), (std::vector<std::string>{"d0", "t0", "u0", "g0"}));
  EXPECT_EQ(lateOf(1), (std::vector<std::string>{"u1"}));
  const LayerClass& middle = cut.classes[static_cast<std::size_t>(cut.layers[1].layer_class)];
  EXPECT_EQ(namesOf(*middle.graph),
            (std::vector<std::string>{"w1", "a0_received", "g2_received", "n1_received", "h1", "a1",
                                      "a1_sent", "d1", "t1", "g1", "g1_sent", "u1", "s1", "new1"}));
  for (const Node& node : chain.cut().classes[0].graph->nodes()) EXPECT_FALSE(node.is_late);
}

// A tied weight: used in layers 0 and 1, its gradients added before their sum over microbatches.
TEST(LayerGraphs, TiedGradientsAreSummedPerLayer) {
  SmallGraph graph;
  std::vector<int> layers;
  const auto add = [&](ValueRef value, int layer) {
    layers.push_back(layer);
    return value;
  };
  const ValueRef w = add(graph.input("w", {4, 4}, InputKind::kParameter), 0);
  const ValueRef x = add(graph.input("x", {8, 4}), kEveryLayer);
  const ValueRef h = add(graph.mm("h", x, w), 0);
  const ValueRef y = add(graph.mm("y", h, w), 1);
  const ValueRef d = add(graph.op("d", "aten.relu.default", {y}, {8, 4}, kBackward), 1);
  const ValueRef p = add(graph.op("p", "aten.relu.default", {w}, {4, 4}, kBackward), 1);
  const ValueRef e = add(graph.mm("e", d, p, kBackward), 0);
  const ValueRef q = add(graph.op("q", "aten.relu.default", {w}, {4, 4}, kBackward), 0);
  const ValueRef sum = add(graph.op("sum", "aten.add.Tensor", {p, q}, {4, 4}, kBackward), 0);
  const ValueRef total =
      add(graph.op("total", "shardwright.accumulate.default", {sum}, {4, 4}, kUpdate), 0);
  const ValueRef fresh = add(graph.op("fresh", "aten.add.Tensor", {w, total}, {4, 4}, kUpdate), 0);
  graph.update(fresh, w);
  graph.result(e);
  const LayerGraphs cut = makeLayerGraphs(graph.build(), layers);
  bool found = false;
  for (const CrossingValue& crossing : cut.crossings) {
    const std::string& name = cut.whole->node(crossing.value.node).name;
    if (name == "total_term0") {
      found = true;
      EXPECT_EQ(crossing.source, 1);
      EXPECT_EQ(crossing.phase, Phase::kUpdate);
    }
    if (name == "w") {
      EXPECT_EQ(crossing.phase, Phase::kUpdate);
      EXPECT_EQ(crossing.targets, (std::vector<int>{1}));
    }
  }
  EXPECT_TRUE(found);
  // The total is the sum of the two sums.
  for (const Node& node : cut.whole->nodes()) {
    EXPECT_NE(node.name, "sum");
    if (node.name == "total") {
      EXPECT_EQ(node.op, "aten.add.Tensor");
    }
  }
}

TEST(LayerGraphs, NodesOfNoLayerAreComputedInEachThatNeedsThem) {
  SmallGraph graph;
  const ValueRef x = graph.input("x", {8, 4});
  const ValueRef mask = graph.op("mask", "aten.relu.default", {x}, {8, 4});
  const ValueRef a = graph.op("a", "aten.add.Tensor", {x, mask}, {8, 4});
  const ValueRef b = graph.op("b", "aten.add.Tensor", {a, mask}, {8, 4});
  graph.result(b);
  const LayerGraphs cut = makeLayerGraphs(graph.build(), {kEveryLayer, kEveryLayer, 0, 1});
  EXPECT_EQ(namesOf(*cut.classes[1].graph),
            (std::vector<std::string>{"x", "a_received", "mask", "b"}));
  ASSERT_EQ(cut.crossings.size(), 1U);
}

TEST(LayerGraphs, ForwardValueOfALaterLayerIsRefused) {
  SmallGraph graph;
  const ValueRef x = graph.input("x", {8, 4});
  const ValueRef a = graph.op("a", "aten.relu.default", {x}, {8, 4});
  graph.result(graph.op("b", "aten.relu.default", {a}, {8, 4}));
  try {
    makeLayerGraphs(graph.build(), {kEveryLayer, 1, 0});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), "E944");
  }
}

TEST(LayerGraphs, ThousandLayersAreCutQuicklyAndAlike) {
  const LayerGraphs cut = Chain(1000).cut();
  EXPECT_EQ(cut.classes.size(), 3U);
  EXPECT_EQ(cut.layers.size(), 1000U);
}

}  // namespace
}  // namespace shardwright
