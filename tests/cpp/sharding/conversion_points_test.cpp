#include "sharding/conversion_points.h"

#include <gtest/gtest.h>

#include "plan/small_graph.h"
#include "sharding/registry.h"

namespace shardwright {
namespace {

std::vector<ConversionPoint> pointsOf(const Graph& graph) {
  return conversionPoints(ShardedGraph(graph, builtinRules()));
}

TEST(ConversionPoints, ValueWithOneUseConvertsPrivately) {
  SmallGraph graph;
  const ValueRef x = graph.input("x", {8, 8});
  const ValueRef w = graph.input("w", {8, 8}, InputKind::kParameter);
  graph.result(graph.mm("y", x, w));
  EXPECT_TRUE(pointsOf(graph.build()).empty());
}

TEST(ConversionPoints, OneForwardUseSharesThePointOfTheBackwardUses) {
  SmallGraph graph;
  const ValueRef x = graph.input("x", {8, 8});
  const ValueRef w = graph.input("w", {8, 8}, InputKind::kParameter);
  const ValueRef y = graph.mm("y", x, w);
  graph.result(graph.mm("dx", y, w, Phase::kBackward));
  const std::vector<ConversionPoint> points = pointsOf(graph.build());
  ASSERT_EQ(points.size(), 2U);  // of w; and y, saved for backward
  EXPECT_EQ(points[0].value, w);
  EXPECT_EQ(points[0].group, 0);
  EXPECT_EQ(points[0].uses.size(), 2U);
  EXPECT_EQ(points[0].phase, Phase::kForward);
  EXPECT_EQ(points[1].value, y);
  EXPECT_EQ(points[1].phase, Phase::kBackward);
}

TEST(ConversionPoints, TwoForwardUsesMakeBackwardAGroupOfItsOwn) {
  SmallGraph graph;
  const ValueRef x = graph.input("x", {8, 8});
  const ValueRef w = graph.input("w", {8, 8}, InputKind::kParameter);
  const ValueRef y = graph.mm("y", graph.mm("z", x, w), w);
  graph.result(graph.mm("dx", y, w, Phase::kBackward));
  const std::vector<ConversionPoint> points = pointsOf(graph.build());
  ASSERT_EQ(points.size(), 3U);
  EXPECT_EQ(points[0].value, w);
  EXPECT_EQ(points[0].uses.size(), 2U);
  EXPECT_EQ(points[1].value, w);
  EXPECT_EQ(points[1].group, 1);
  EXPECT_EQ(points[1].uses.size(), 1U);
  EXPECT_EQ(points[1].phase, Phase::kBackward);
}

TEST(ConversionPoints, UsesThroughViewsCountForTheRoot) {
  SmallGraph graph;
  const ValueRef x = graph.input("x", {8, 4});
  const ValueRef t = graph.op("t", "aten.t.default", {x}, {4, 8});
  graph.result(graph.mm("y", x, t));
  const std::vector<ConversionPoint> points = pointsOf(graph.build());
  ASSERT_EQ(points.size(), 1U);
  EXPECT_EQ(points[0].value, x);
  EXPECT_EQ(points[0].uses.size(), 2U);
}

TEST(ConversionPoints, NewValueIsWrittenBackAfterTheLastReaderOfTheOld) {
  SmallGraph graph;
  const ValueRef w = graph.input("w", {8, 8}, InputKind::kParameter);
  const ValueRef next = graph.op("next", "aten.neg.default", {w}, {8, 8}, Phase::kUpdate);
  const ValueRef late = graph.op("late", "aten.exp.default", {w}, {8, 8}, Phase::kUpdate);
  graph.update(next, w);
  graph.result(late);
  const Graph built = graph.build();
  const ShardedGraph sharded(built, builtinRules());
  const std::vector<std::vector<ValueUses>> all = valueUses(sharded);
  const std::vector<ValueUse>& uses = all[next.node.index()][0].converting;
  ASSERT_EQ(uses.size(), 1U);
  EXPECT_EQ(uses[0].result, 0);
  EXPECT_EQ(uses[0].node, late.node);
  // What the user gets is read when the step is over.
  EXPECT_FALSE(all[late.node.index()][0].converting[0].node.isValid());
}

}  // namespace
}  // namespace shardwright
