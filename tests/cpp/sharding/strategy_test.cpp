#include "sharding/strategy.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "sharding/graph_builder.h"

namespace shardwright {
namespace {

using testing::GraphBuilder;

struct Product {
  explicit Product(std::int64_t m = 8, std::int64_t k = 8, std::int64_t n = 8)
      : graph(makeGraph(m, k, n)), sharded(graph, builtinRules()) {}

  static Graph makeGraph(std::int64_t m, std::int64_t k, std::int64_t n) {
    GraphBuilder builder;
    const ValueRef x = builder.input("x", {m, k});
    const ValueRef w = builder.input("w", {k, n}, InputKind::kParameter);
    builder.op("aten.mm.default", GraphBuilder::args(x, w), {m, n});
    return builder.build();
  }

  std::vector<Strategy> strategies(const std::vector<int>& mesh) const {
    return enumerateStrategies(sharded, NodeId(2), mesh);
  }

  Graph graph;
  ShardedGraph sharded;
};

Placement shard(int atom, int order = 0) {
  Placement placement;
  placement.kind = Placement::Kind::kShard;
  placement.atom = static_cast<std::int16_t>(atom);
  placement.order = static_cast<std::int8_t>(order);
  return placement;
}

Placement pending() {
  Placement placement;
  placement.kind = Placement::Kind::kPartial;
  return placement;
}

// Replicated, one for each of m, k and n, and one pending sum through either factor.
TEST(Strategies, OneAxisOverAProduct) {
  const std::vector<Strategy> strategies = Product().strategies({4});
  ASSERT_EQ(strategies.size(), 6U);
  EXPECT_EQ(strategies[0].axis_choice, std::vector<int>{Strategy::kReplicated});
  EXPECT_EQ(strategies[0].compute_shards, 1);

  EXPECT_EQ(strategies[1].operands[0], ShardingSpec{shard(0)});
  EXPECT_EQ(strategies[1].operands[1], ShardingSpec{Placement{}});
  EXPECT_EQ(strategies[1].outputs[0], ShardingSpec{shard(0)});
  EXPECT_EQ(strategies[1].compute_shards, 4);

  EXPECT_EQ(strategies[2].operands[0], ShardingSpec{shard(1)});
  EXPECT_EQ(strategies[2].operands[1], ShardingSpec{shard(0)});
  EXPECT_EQ(strategies[2].outputs[0], ShardingSpec{pending()});

  EXPECT_EQ(strategies[4].axis_choice, std::vector<int>{Strategy::kFirstPartial});
  EXPECT_EQ(strategies[4].operands[0], ShardingSpec{pending()});
  EXPECT_EQ(strategies[4].operands[1], ShardingSpec{Placement{}});
  EXPECT_EQ(strategies[4].outputs[0], ShardingSpec{pending()});
  EXPECT_EQ(strategies[4].compute_shards, 1);
}

// 6 x 6 choices, and each of the 3 factors shared by both axes comes in two orders.
TEST(Strategies, TwoAxesShareAFactorInBothOrders) {
  const std::vector<Strategy> strategies = Product().strategies({2, 4});
  EXPECT_EQ(strategies.size(), 39U);
  std::vector<ShardingSpec> both;
  for (const Strategy& strategy : strategies) {
    if (strategy.axis_choice[0] == 0 && strategy.axis_choice[1] == 0) {
      both.push_back(strategy.outputs[0]);
      EXPECT_EQ(strategy.compute_shards, 8);
    }
  }
  EXPECT_EQ(both,
            (std::vector<ShardingSpec>{{shard(0, 0), shard(0, 1)}, {shard(0, 1), shard(0, 0)}}));
}

// m = 6 and n = 9 do not divide by 4 (k = 8 does), m = 6 divides by 2 but not by 2 x 4.
TEST(Strategies, ShardsAreEven) {
  EXPECT_EQ(Product(6, 8, 9).strategies({4}).size(), 4U);
  for (const Strategy& strategy : Product(6, 8, 9).strategies({2, 4})) {
    EXPECT_TRUE(strategy.axis_choice[1] != 0) << "the axis of 4 on m";
  }
}

TEST(Strategies, AxesOfOneRankStayReplicated) {
  EXPECT_EQ(Product().strategies({1, 4}).size(), 6U);
  EXPECT_EQ(Product().strategies({1}).size(), 1U);
}

// Row maximum of [8, 8]: the maximum over a sharded dim is pending as a maximum.
TEST(Strategies, ExtremaArePendingExtrema) {
  GraphBuilder builder;
  const ValueRef x = builder.input("x", {8, 8});
  const ValueRef y =
      builder.op("aten.amax.default", GraphBuilder::args(x, GraphBuilder::ints({1})), {8});
  const Graph graph = builder.build();
  const ShardedGraph sharded(graph, builtinRules());
  const std::vector<Strategy> strategies = enumerateStrategies(sharded, y.node, {2});
  ASSERT_EQ(strategies.size(), 3U);
  EXPECT_EQ(strategies[2].outputs[0][0].kind, Placement::Kind::kPartial);
  EXPECT_EQ(strategies[2].outputs[0][0].reduce, ReduceOp::kMax);
}

}  // namespace
}  // namespace shardwright
