#include "sharding/sharded_graph.h"

#include <gtest/gtest.h>

#include "sharding/graph_builder.h"
#include "sharding/rule_text.h"

namespace shardwright {
namespace {

using testing::GraphBuilder;
using Sizes = std::vector<std::int64_t>;
using Dims = std::vector<std::vector<int>>;

TEST(ShardedGraph, FlattenedBatchKeepsBatchAndSequenceApart) {
  GraphBuilder builder;
  const ValueRef x = builder.input("x", {4, 6, 8});
  const ValueRef flat = builder.view(x, {24, 8});
  const ValueRef w = builder.input("w", {8, 16}, InputKind::kParameter);
  const ValueRef y = builder.op("aten.mm.default", GraphBuilder::args(flat, w), {24, 16});
  const Graph graph = builder.build();
  const ShardedGraph sharded(graph, builtinRules());

  EXPECT_TRUE(sharded.isView(flat.node));
  EXPECT_EQ(sharded.root(flat), x);
  EXPECT_EQ(sharded.atoms(flat), (TensorAtoms{Sizes{4, 6, 8}, Dims{{0, 1}, {2}}}));
  EXPECT_EQ(sharded.atoms(y), (TensorAtoms{Sizes{4, 6, 16}, Dims{{0, 1}, {2}}}));
  EXPECT_EQ(sharded.root(y), y);
  EXPECT_EQ(ruleText(sharded.rule(y.node)), "(a b) c, c d -> (a b) d; P: 0 | 1");
}

// [3 * 4 heads * 5, 8] -> thirds of 20 = 4 x 5: the stored weight has atoms (3, 4, 5).
TEST(ShardedGraph, FusedQkvWeightIsCutByHeads) {
  GraphBuilder builder;
  const ValueRef x = builder.input("x", {6, 8});
  const ValueRef w = builder.input("w", {60, 8}, InputKind::kParameter);
  const ValueRef wt = builder.op("aten.permute.default",
                                 GraphBuilder::args(w, GraphBuilder::ints({1, 0})), {8, 60});
  const ValueRef qkv = builder.op("aten.mm.default", GraphBuilder::args(x, wt), {6, 60});
  const ValueRef k = builder.op(
      "aten.slice.Tensor",
      GraphBuilder::args(qkv, std::int64_t{1}, std::int64_t{20}, std::int64_t{40}), {6, 20});
  const ValueRef heads = builder.view(k, {6, 4, 5});
  const Graph graph = builder.build();
  const ShardedGraph sharded(graph, builtinRules());

  EXPECT_EQ(sharded.atoms(w), (TensorAtoms{Sizes{3, 4, 5, 8}, Dims{{0, 1, 2}, {3}}}));
  EXPECT_EQ(sharded.atoms(wt), (TensorAtoms{Sizes{3, 4, 5, 8}, Dims{{3}, {0, 1, 2}}}));
  EXPECT_EQ(sharded.atoms(qkv), (TensorAtoms{Sizes{6, 3, 4, 5}, Dims{{0}, {1, 2, 3}}}));
  EXPECT_EQ(sharded.atoms(heads), (TensorAtoms{Sizes{6, 4, 5}, Dims{{0}, {1}, {2}}}));
  EXPECT_EQ(sharded.root(heads), k);
  EXPECT_EQ(sharded.storage(heads), qkv);
  EXPECT_EQ(ruleText(sharded.rule(k.node)), "a (b* c d) -> a (c d); P: 0");
}

// 6 = 2 x 3 comes first and stays; 3 x 2 does not nest with it, so that node is no view and shards
// neither side.
TEST(ShardedGraph, CutsThatDoNotNestBlockTheLaterNode) {
  GraphBuilder builder;
  const ValueRef x = builder.input("x", {6, 5});
  const ValueRef first = builder.view(x, {2, 3, 5});
  const ValueRef second = builder.view(x, {3, 2, 5});
  const Graph graph = builder.build();
  const ShardedGraph sharded(graph, builtinRules());

  EXPECT_TRUE(sharded.isView(first.node));
  EXPECT_EQ(sharded.atoms(x), (TensorAtoms{Sizes{2, 3, 5}, Dims{{0, 1}, {2}}}));
  EXPECT_FALSE(sharded.isView(second.node));
  EXPECT_EQ(sharded.root(second), second);
  EXPECT_EQ(sharded.storage(second), x);
  EXPECT_EQ(ruleText(sharded.rule(second.node)), "(a* b*) c -> d* e* c; P: 0");
}

TEST(ShardedGraph, ConflictFoundFarAwayLeavesNoTrace) {
  GraphBuilder builder;
  const ValueRef x = builder.input("x", {6});
  const ValueRef y = builder.input("y", {6});
  builder.view(x, {2, 3});
  builder.view(y, {3, 2});
  const ValueRef sum = builder.op("aten.add.Tensor", GraphBuilder::args(x, y), {6});
  const ValueRef after = builder.op("aten.neg.default", GraphBuilder::args(sum), {6});
  const Graph graph = builder.build();
  const ShardedGraph sharded(graph, builtinRules());

  EXPECT_EQ(sharded.atoms(x).sizes, (Sizes{2, 3}));
  EXPECT_EQ(sharded.atoms(y).sizes, (Sizes{3, 2}));
  EXPECT_EQ(sharded.atoms(sum).sizes, (Sizes{6}));
  EXPECT_EQ(sharded.atoms(after).sizes, (Sizes{6}));
  EXPECT_EQ(ruleText(sharded.rule(sum.node)), "(a* b*), (c* d*) -> e*; P: 0 1");
}

TEST(ShardedGraph, NewValueOfAnInputHasItsAtoms) {
  GraphBuilder builder;
  const ValueRef w = builder.input("w", {12, 8}, InputKind::kParameter);
  const ValueRef flat = builder.input("grad", {12, 8});
  builder.view(w, {3, 4, 8});
  const ValueRef updated = builder.op("aten.neg.default", GraphBuilder::args(flat), {12, 8});
  builder.updates(w, updated);
  const Graph graph = builder.build();
  const ShardedGraph sharded(graph, builtinRules());

  EXPECT_EQ(sharded.atoms(updated), sharded.atoms(w));
  EXPECT_EQ(sharded.atoms(updated).sizes, (Sizes{3, 4, 8}));
}

// Rows 0..7 seen as 2 x 4: an offset is counted in whole rows, so one step of the outer atom is 4.
TEST(ShardedGraph, OffsetFactorIsShardedByItsOutermostAtomOnly) {
  GraphBuilder builder;
  const ValueRef table = builder.input("table", {8, 6}, InputKind::kParameter);
  const ValueRef tokens = builder.input("tokens", {5});
  builder.view(table, {2, 4, 6});
  const ValueRef rows =
      builder.op("aten.embedding.default", GraphBuilder::args(table, tokens), {5, 6});
  const Graph graph = builder.build();
  const ShardedGraph sharded(graph, builtinRules());

  const ShardingRule& rule = sharded.rule(rows.node);
  EXPECT_EQ(ruleText(rule), "(a b*) c, d -> d c; P: 0; offset: a");
  EXPECT_EQ(rule.factors[0].offset_stride, 4);
}

TEST(ShardedGraph, HyperParametersAndConstantsAreNotSharded) {
  GraphBuilder builder;
  const ValueRef constant = builder.input("mask", {4, 4}, InputKind::kConstant);
  const ValueRef batch = builder.input("x", {4, 1});
  const Graph graph = builder.build();
  const ShardedGraph sharded(graph, builtinRules());
  EXPECT_EQ(ruleText(sharded.rule(constant.node)), " -> a* b*");
  EXPECT_EQ(ruleText(sharded.rule(batch.node)), " -> a 1");
}

}  // namespace
}  // namespace shardwright
