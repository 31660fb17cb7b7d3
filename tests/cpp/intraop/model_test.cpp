#include "intraop/model.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "intraop/solve.h"
#include "plan/small_graph.h"
#include "sharding/registry.h"

namespace shardwright {
namespace {

// A mesh on which a byte costs a microsecond and compute nothing.
DeviceMesh byteMesh(std::vector<int> shape) {
  std::vector<AxisCost> axes(shape.size(), AxisCost{1, 1});
  return DeviceMesh(std::move(shape), axes, CollectiveConstants{});
}

// x [8, 4] feeds two products; all three are inputs of 8 x 4 = 32 and 4 x 4 = 16 elements.
SmallGraph twoProducts() {
  SmallGraph graph;
  const ValueRef x = graph.input("x", {8, 4});
  const ValueRef w = graph.input("w", {4, 4}, InputKind::kParameter);
  const ValueRef v = graph.input("v", {4, 4}, InputKind::kParameter);
  graph.result(graph.mm("y", x, w));
  graph.result(graph.mm("z", x, v));
  return graph;
}

TEST(Model, ValueWithTwoUsesHasOneConversionAndTheOthersNone) {
  const Graph graph = twoProducts().build();
  const ShardedGraph sharded(graph, builtinRules());
  const DeviceMesh mesh = byteMesh({2});
  const Model model(sharded, mesh, Cluster{}, {});
  ASSERT_EQ(model.conversions().size(), 1U);
  EXPECT_EQ(model.conversions()[0].value, (ValueRef{NodeId(0), 0}));
  // Nodes: x, w, v, y, z, the conversion of x and two results.
  EXPECT_EQ(model.problem().numNodes(), 8U);
  // Edges: x-C, C-y, C-z, w-y, v-z, y-result, z-result.
  EXPECT_EQ(model.problem().edges().size(), 7U);
}

TEST(Model, UnconstrainedOptimumOfFreeComputeIsFree) {
  const Graph graph = twoProducts().build();
  const ShardedGraph sharded(graph, builtinRules());
  const DeviceMesh mesh = byteMesh({2});
  const Model model(sharded, mesh, Cluster{}, {});
  const Answer answer = solve(model.problem());
  EXPECT_EQ(answer.status, SolveStatus::kOptimal);
  EXPECT_EQ(answer.cost, 0);
}

TEST(Model, ShardingAllProductsCostsTheCheapestGatherOfBothResults) {
  // Each result [8, 4] is 128 bytes: gathering a row-sharded one costs 1 + 1/2 * 128 = 65 us,
  // adding up a contracted one 1 + 2 * 1/2 * 128 = 129 us. Two gathers: 130 us.
  const Graph graph = twoProducts().build();
  const ShardedGraph sharded(graph, builtinRules());
  const DeviceMesh mesh = byteMesh({2});
  ModelOptions options;
  options.shard_all_products = true;
  const Model model(sharded, mesh, Cluster{}, options);
  const Answer answer = solve(model.problem());
  EXPECT_EQ(answer.status, SolveStatus::kOptimal);
  EXPECT_EQ(answer.cost, 130 * 1000);
}

TEST(Model, SharedOperandIsGatheredOnceForBothConsumers) {
  // x is stored row-sharded and must be whole for both column-sharded products: one all-gather of
  // 128 bytes, 1 + 64 = 65 us; then each result costs 65 us.
  const Graph graph = twoProducts().build();
  const ShardedGraph sharded(graph, builtinRules());
  const DeviceMesh mesh = byteMesh({2});
  ModelOptions options;
  options.shard_all_products = true;
  options.forced = {
      {"x", {Placement::shard(0)}}, {"y", {Placement::shard(1)}}, {"z", {Placement::shard(1)}}};
  const Model model(sharded, mesh, Cluster{}, options);
  const Answer answer = solve(model.problem());
  EXPECT_EQ(answer.cost, 3 * 65 * 1000);
}

TEST(Model, PhaseWeightsMultiplyConversionsOfTheirPhase) {
  const Graph graph = twoProducts().build();
  const ShardedGraph sharded(graph, builtinRules());
  const DeviceMesh mesh = byteMesh({2});
  ModelOptions options;
  options.shard_all_products = true;
  options.phase_weight = {10, 10, 1};
  options.forced = {
      {"x", {Placement::shard(0)}}, {"y", {Placement::shard(1)}}, {"z", {Placement::shard(1)}}};
  const Model model(sharded, mesh, Cluster{}, options);
  // The gather of x is in the forward pass, ten times; results are returned once.
  EXPECT_EQ(solve(model.problem()).cost, (650 + 2 * 65) * 1000);
}

TEST(Model, StoredParameterTakesItsMemoryAndAGatheredCopyItsOwn) {
  const Graph graph = twoProducts().build();
  const ShardedGraph sharded(graph, builtinRules());
  const DeviceMesh mesh = byteMesh({2});
  ModelOptions options;
  options.forced = {{"x", {Placement::shard(0)}},
                    {"w", {Placement::shard(0)}},
                    {"v", {Placement::shard(0)}},
                    {"y", {Placement::replicate()}},
                    {"z", {Placement::replicate()}}};
  options.shard_all_products = false;
  const Model model(sharded, mesh, Cluster{}, options);
  const Answer answer = solve(model.problem());
  // Inputs: x 64, w 32, v 32 bytes. y and z whole, 128 each, alive until z is there. The conversion
  // of x is at least its shard, which is x's own buffer.
  EXPECT_GE(answer.peak_bytes, 64 + 32 + 32 + 128 + 128);
}

TEST(Model, IgnoringMemoryChangesTheProblemButNotTheLeastCost) {
  const Graph graph = twoProducts().build();
  const ShardedGraph sharded(graph, builtinRules());
  const std::vector<std::map<std::string, ShardingSpec>> demands = {
      {},
      {{"x", {Placement::shard(0)}}},
      {{"w", {Placement::shard(0)}}, {"v", {Placement::shard(1)}}},
      {{"x", {Placement::shard(0)}}, {"y", {Placement::shard(1)}}, {"z", {Placement::shard(1)}}}};
  const DeviceMesh mesh = byteMesh({2});
  for (const auto& forced : demands) {
    for (const bool shard_all : {false, true}) {
      ModelOptions options;
      options.forced = forced;
      options.shard_all_products = shard_all;
      const Model with_memory(sharded, mesh, Cluster{}, options);
      options.ignore_memory = true;
      const Model without(sharded, mesh, Cluster{}, options);
      EXPECT_EQ(solve(without.problem()).cost, solve(with_memory.problem()).cost);
      for (const ChoiceNode& node : without.problem().nodes()) {
        EXPECT_TRUE(node.memory.empty());
      }
    }
  }
}

TEST(Model, InputsHeldWholeAreStoredInThePartsTheirUsesTake) {
  // Both products split rows: each takes rows of x and whole weights, all free from x in rows.
  const Graph graph = twoProducts().build();
  const ShardedGraph sharded(graph, builtinRules());
  const DeviceMesh mesh = byteMesh({2});
  ModelOptions options;
  options.shard_all_products = true;
  options.ignore_memory = true;
  options.forced = {{"y", {Placement::shard(0)}}, {"z", {Placement::shard(0)}}};
  const Model model(sharded, mesh, Cluster{}, options);
  EXPECT_EQ(model.strategies(NodeId(0)).size(), 1U);
  const StagePlan plan = model.stagePlan(solve(model.problem()).choice);
  const std::vector<ShardingSpec> rows = {{Placement::shard(0)}};
  const std::vector<ShardingSpec> whole = {{Placement::replicate()}};
  EXPECT_EQ(plan.ops[0].outputs, rows);
  EXPECT_EQ(plan.ops[1].outputs, whole);
  EXPECT_EQ(plan.ops[2].outputs, whole);
  EXPECT_EQ(plan.conversions[0].spec, rows[0]);
}

TEST(Model, ForcedSpecThatDoesNotDivideIsAPlanError) {
  const Graph graph = twoProducts().build();
  const ShardedGraph sharded(graph, builtinRules());
  const DeviceMesh mesh = byteMesh({3});
  ModelOptions options;
  options.forced = {{"w", {Placement::shard(0)}}};
  try {
    const Model model(sharded, mesh, Cluster{}, options);
    FAIL() << "4 rows on 3 devices must be refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), "E312");
    EXPECT_NE(error.message().find("w"), std::string::npos);
  }
}

TEST(Model, ForcedNameThatIsNotInTheStepIsAPlanError) {
  const Graph graph = twoProducts().build();
  const ShardedGraph sharded(graph, builtinRules());
  const DeviceMesh mesh = byteMesh({2});
  ModelOptions options;
  options.forced = {{"nowhere", {Placement::shard(0)}}};
  try {
    const Model model(sharded, mesh, Cluster{}, options);
    FAIL() << "an unknown name must be refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), "E313");
  }
}

}  // namespace
}  // namespace shardwright
