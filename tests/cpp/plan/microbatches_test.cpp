// Cutting a step over time, on graphs small enough to follow by hand.

#include "plan/microbatches.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/small_graph.h"
#include "sharding/registry.h"

namespace shardwright {
namespace {

// x [8, 4] @ w [4, 3] = y, loss = sum(y), gradient of w = x^T @ g, w - gradient.
class LinearStep {
 public:
  LinearStep() {
    x = graph.input("x", {8, 4});
    w = graph.input("w", {4, 3}, InputKind::kParameter);
    y = graph.mm("y", x, w);
    g = graph.op("g", "aten.relu.default", {y}, {8, 3}, Phase::kBackward);
    xt = graph.op("xt", "aten.t.default", {x}, {4, 8}, Phase::kBackward);
    dw = graph.mm("dw", xt, g, Phase::kBackward);
    next = graph.op("next", "aten.sub.Tensor", {w, dw}, {4, 3}, Phase::kUpdate);
    graph.update(next, w);
  }

  SmallGraph graph;
  ValueRef x, w, y, g, xt, dw, next;
};

MicrobatchStep cut(const SmallGraph& small, ValueRef batch, int count) {
  const Graph graph = small.build();
  const ShardedGraph sharded(graph, builtinRules());
  MicrobatchOptions options;
  options.num_microbatches = count;
  options.split_inputs = {batch.node};
  return cutOverTime(sharded, options);
}

std::string codeOf(const SmallGraph& small, ValueRef batch, int count) {
  try {
    cut(small, batch, count);
  } catch (const Error& error) {
    return error.code();
  }
  return "";
}

TEST(Microbatches, SplitsActivationsAndAccumulatesGradients) {
  const LinearStep step;
  const MicrobatchStep found = cut(step.graph, step.x, 4);
  const auto node = [&](ValueRef value) { return found.nodes[value.node.index()]; };
  EXPECT_EQ(node(step.x).outputs[0], OverTime::kSplit);
  EXPECT_EQ(node(step.w).outputs[0], OverTime::kSame);
  EXPECT_EQ(node(step.y).outputs[0], OverTime::kSplit);
  EXPECT_EQ(node(step.y).output_shapes[0], (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(node(step.xt).output_shapes[0], (std::vector<std::int64_t>{4, 2}));
  EXPECT_EQ(node(step.dw).outputs[0], OverTime::kPending);
  EXPECT_EQ(node(step.dw).output_shapes[0], (std::vector<std::int64_t>{4, 3}));
  EXPECT_FALSE(node(step.dw).once);
  EXPECT_TRUE(node(step.next).once);
  ASSERT_EQ(found.accumulated.size(), 1U);
  EXPECT_EQ(found.accumulated[0], step.dw);
  EXPECT_EQ(found.joined_dims, (std::vector<int>{-1}));
  EXPECT_TRUE(found.whole.empty());
}

TEST(Microbatches, ScalesNothingAndRefusesWhatDoesNotDivide) {
  const LinearStep step;
  EXPECT_EQ(codeOf(step.graph, step.x, 8), "");
  EXPECT_EQ(codeOf(step.graph, step.x, 3), "E333");
}

TEST(Microbatches, RefusesSamplesThatMeet) {
  LinearStep step;
  const ValueRef yt = step.graph.op("yt", "aten.t.default", {step.y}, {3, 8});
  step.graph.result(step.graph.mm("gram", step.y, yt));
  EXPECT_EQ(codeOf(step.graph, step.x, 2), "E330");
}

TEST(Microbatches, JoinsResultsOfSamplesAndAddsUpNonLinearUsesFirst) {
  LinearStep step;
  // dw is pending in backward; relu of it needs it whole, so it runs once.
  const ValueRef shown =
      step.graph.op("shown", "aten.relu.default", {step.dw}, {4, 3}, Phase::kBackward);
  step.graph.result(shown);
  step.graph.result(step.y);
  const MicrobatchStep found = cut(step.graph, step.x, 2);
  EXPECT_TRUE(found.nodes[shown.node.index()].once);
  EXPECT_EQ(found.joined_dims, (std::vector<int>{-1, -1, 0}));
  EXPECT_EQ(found.accumulated.size(), 1U);
}

TEST(Microbatches, AsksForFunctionsOfTheBatchWhole) {
  LinearStep step;
  // Every sample is divided by a number that depends on all samples of the batch, but on no weight.
  const ValueRef squares =
      step.graph.mm("squares", step.graph.op("xt2", "aten.t.default", {step.x}, {4, 8}), step.x);
  const ValueRef scaled = step.graph.mm("scaled", step.x, squares);
  step.graph.result(scaled);
  const MicrobatchStep found = cut(step.graph, step.x, 2);
  ASSERT_EQ(found.whole.size(), 1U);
  EXPECT_EQ(found.whole[0], squares);
}

TEST(Microbatches, RefusesStateWithADimOfTheBatch) {
  LinearStep step;
  const ValueRef shift = step.graph.input("shift", {8, 3}, InputKind::kParameter);
  step.graph.result(step.graph.op("moved", "aten.add.Tensor", {step.y, shift}, {8, 3}));
  EXPECT_EQ(codeOf(step.graph, step.x, 2), "E330");
}

TEST(Microbatches, RefusesForwardAfterTheUpdate) {
  LinearStep step;
  step.graph.result(step.graph.mm("again", step.x, step.next));
  EXPECT_EQ(codeOf(step.graph, step.x, 2), "E332");
}

}  // namespace
}  // namespace shardwright
