#include "interop/layer_costs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "interop/boundary_specs.h"
#include "interop/chain_graph.h"
#include "intraop/model.h"
#include "intraop/solve.h"
#include "sharding/sharded_graph.h"

namespace shardwright {
namespace {

// Communication of c bytes per axis and some compute, so that nothing is free.
Cluster smallCluster(int num_devices) {
  Cluster cluster;
  cluster.devices_per_host = num_devices;
  cluster.peak_flops_per_us = {{DType::kFloat32, 10}};
  cluster.memory_bandwidth_bytes_per_us = 100;
  cluster.kernel_overhead_us = 0.5;
  cluster.intra_host = {50, 1, 0.1};
  cluster.inter_host = {5, 2, 0.2};
  return cluster;
}

// No views in the chain, so that atom i of a value is its dim i: a spec of the whole dims is a spec
// of the value.
std::vector<bool> matching(const Model& model, const Graph& graph, NodeId node,
                           const ShardingSpec& spec) {
  std::vector<bool> result;
  for (const Strategy& strategy : model.strategies(node)) {
    result.push_back(
        (graph.node(node).input ? strategy.outputs.front() : strategy.operands.front()) == spec);
  }
  return result;
}

// The model of a layer in which all ends but those in the given specs are forbidden.
Problem forcedProblem(const Model& model, const LayerClass& layer, const ShardingSpec& entry,
                      const ShardingSpec& exit) {
  std::vector<std::vector<std::int64_t>> costs;
  for (std::size_t n = 0; n < model.problem().numNodes(); ++n) {
    costs.push_back(model.problem().nodes()[n].costs);
    const ModelNode& node = model.nodes()[n];
    if (node.kind != ModelNode::Kind::kOp) {
      continue;
    }
    const auto forbid = [&](const std::optional<NodeId>& end, const ShardingSpec& spec) {
      if (end != node.op) {
        return;
      }
      const std::vector<bool> fits = matching(model, *layer.graph, node.op, spec);
      for (std::size_t s = 0; s < fits.size(); ++s) {
        costs.back()[s] = fits[s] ? costs.back()[s] : kForbidden;
      }
    };
    forbid(layer.main_in, entry);
    forbid(layer.grad_out, entry);
    forbid(layer.main_out, exit);
    forbid(layer.grad_in, exit);
  }
  return model.problem().withNodeCosts(std::move(costs));
}

ModelOptions weighted(int num_microbatches) {
  ModelOptions options;
  const auto weight = static_cast<double>(num_microbatches);
  options.phase_weight = {weight, weight, 1};
  return options;
}

// Against the solver on the problem with both specs forced, on meshes of one and two axes.
TEST(LayerCosts, EntriesAreTheOptimaOfTheForcedProblems) {
  const LayerGraphs graphs = Chain(3).cut();
  const RuleRegistry registry = builtinRules();
  for (const std::vector<int>& shape : {std::vector<int>{2}, std::vector<int>{2, 2}}) {
    const Cluster cluster = smallCluster(shape.size() == 1 ? 2 : 4);
    const DeviceMesh mesh(shape, cluster);
    const std::vector<LayerTable> tables =
        LayerCosts(graphs, registry, {.num_microbatches = 3, .max_specs = 100})
            .tables(mesh, cluster, {{}});
    ASSERT_EQ(tables.size(), 3U);
    for (std::size_t number = 0; number < tables.size(); ++number) {
      const LayerClass& layer = graphs.classes[number];
      const LayerTable& table = tables[number];
      const ShardedGraph sharded(*layer.graph, registry);
      const Model model(sharded, mesh, cluster, weighted(3));
      for (std::size_t entry = 0; entry < table.entry_specs.size(); ++entry) {
        for (std::size_t exit = 0; exit < table.exit_specs.size(); ++exit) {
          const Problem problem =
              forcedProblem(model, layer, table.entry_specs[entry], table.exit_specs[exit]);
          const Answer answer = solve(problem);
          const LayerCost& cost = table.at(0, entry, exit);
          ASSERT_EQ(answer.status, SolveStatus::kOptimal);
          ASSERT_TRUE(cost.possible);
          EXPECT_EQ(cost.cost_units, answer.cost)
              << "class " << number << ", entry " << entry << ", exit " << exit;
        }
      }
    }
  }
}

// Against all choices one by one, on a layer of a product alone.
TEST(LayerCosts, EntriesAreTheLeastOfAllChoices) {
  SmallGraph graph;
  const ValueRef x = graph.input("x", {8, 4});
  const ValueRef w = graph.input("w", {4, 4}, InputKind::kParameter);
  const ValueRef a = graph.op("a", "aten.relu.default", {x}, {8, 4});
  const ValueRef b = graph.mm("b", a, w);
  graph.result(graph.op("c", "aten.relu.default", {b}, {8, 4}));
  const LayerGraphs graphs = makeLayerGraphs(graph.build(), {kEveryLayer, 1, 0, 1, 2});
  const RuleRegistry registry = builtinRules();
  const Cluster cluster = smallCluster(2);
  const DeviceMesh mesh({2}, cluster);
  const LayerTable table =
      LayerCosts(graphs, registry, {.num_microbatches = 2}).tables(mesh, cluster, {{}})[1];
  const LayerClass& layer = graphs.classes[1];
  const ShardedGraph sharded(*layer.graph, registry);
  const Model model(sharded, mesh, cluster, weighted(2));
  ASSERT_EQ(table.entry_specs.size(), 3U);  // R, S0, S1
  ASSERT_EQ(table.exit_specs.size(), 3U);
  for (std::size_t entry = 0; entry < 3; ++entry) {
    for (std::size_t exit = 0; exit < 3; ++exit) {
      const Problem problem =
          forcedProblem(model, layer, table.entry_specs[entry], table.exit_specs[exit]);
      std::vector<std::int32_t> choice(problem.numNodes(), 0);
      std::int64_t least = std::numeric_limits<std::int64_t>::max();
      for (;;) {
        const Evaluation evaluation = evaluateChoice(problem, choice);
        if (evaluation.valid()) {
          least = std::min(least, evaluation.cost);
        }
        std::size_t n = 0;
        while (n < choice.size() &&
               ++choice[n] == static_cast<std::int32_t>(problem.nodes()[n].costs.size())) {
          choice[n++] = 0;
        }
        if (n == choice.size()) {
          break;
        }
      }
      EXPECT_EQ(table.at(0, entry, exit).cost_units, least) << entry << " " << exit;
    }
  }
}

TEST(LayerCosts, PartsOfTheCostAddUpAndRunsAgree) {
  const LayerGraphs graphs = Chain(3).cut();
  const RuleRegistry registry = builtinRules();
  const Cluster cluster = smallCluster(4);
  const DeviceMesh mesh({2, 2}, cluster);
  const LayerCosts costs(graphs, registry, {.num_microbatches = 4});
  const std::vector<MemoryPrice> prices = {{}, {.fixed_us_per_byte = 0.5, .saved_us_per_byte = 2}};
  const std::vector<LayerTable> tables = costs.tables(mesh, cluster, prices);
  const std::vector<LayerTable> again = costs.tables(mesh, cluster, prices);
  for (std::size_t number = 0; number < tables.size(); ++number) {
    EXPECT_LE(tables[number].entry_specs.size(), 8U);
    EXPECT_EQ(tables[number].entry_specs, again[number].entry_specs);
    for (std::size_t price = 0; price < prices.size(); ++price) {
      for (std::size_t at = 0; at < tables[number].costs[price].size(); ++at) {
        const LayerCost& cost = tables[number].costs[price][at];
        EXPECT_TRUE(cost.possible);
        EXPECT_EQ(cost.cost_units, again[number].costs[price][at].cost_units);
        EXPECT_EQ(cost.saved_bytes, again[number].costs[price][at].saved_bytes);
        const double us = 4 * (cost.forward_us + cost.backward_us) + cost.update_us +
                          prices[price].fixed_us_per_byte * static_cast<double>(cost.fixed_bytes) +
                          prices[price].saved_us_per_byte * static_cast<double>(cost.saved_bytes);
        EXPECT_NEAR(us * kUnitsPerUs, static_cast<double>(cost.cost_units), 1e-3);
      }
    }
  }
  // Neighbours speak of the same specs.
  EXPECT_EQ(tables[0].exit_specs, tables[1].entry_specs);
}

// Parameter and sum of gradients, 64 bytes each, are held by all devices or in parts.
TEST(LayerCosts, PriceOfMemoryBuysBytes) {
  const LayerGraphs graphs = Chain(3).cut();
  const Cluster cluster = smallCluster(2);
  const DeviceMesh mesh({2}, cluster);
  const LayerTable table =
      LayerCosts(graphs, builtinRules(), {.num_microbatches = 1})
          .tables(mesh, cluster, {{}, {.fixed_us_per_byte = 1000, .saved_us_per_byte = 0}})[1];
  const LayerCost& dear = table.at(1, 0, 0);
  EXPECT_EQ(dear.fixed_bytes, 2 * 64 / 2);
  EXPECT_LE(dear.fixed_bytes, table.at(0, 0, 0).fixed_bytes);
  EXPECT_GE(
      dear.forward_us + dear.backward_us + dear.update_us,
      table.at(0, 0, 0).forward_us + table.at(0, 0, 0).backward_us + table.at(0, 0, 0).update_us);
}

TEST(LayerCosts, OneDeviceHasOneEntry) {
  const LayerGraphs graphs = Chain(3).cut();
  const Cluster cluster = smallCluster(1);
  const DeviceMesh mesh({1}, cluster);
  const LayerTable table =
      LayerCosts(graphs, builtinRules(), {.num_microbatches = 2}).tables(mesh, cluster, {{}})[1];
  ASSERT_EQ(table.entry_specs.size(), 1U);
  ASSERT_EQ(table.exit_specs.size(), 1U);
  const LayerCost& cost = table.at(0, 0, 0);
  // w and s: 64 bytes each; nothing made in forward but what comes in is read in backward.
  EXPECT_EQ(cost.fixed_bytes, 128);
  EXPECT_EQ(cost.saved_bytes, 0);
}

// y = relu(h w1) of layer 1, its gradients d = relu(y), g = d w1 for layer 0 and p = h d. All are
// [8, 4], 128 bytes: h, y and the result z outlive forward; where backward is split, d waits for p.
TEST(LayerCosts, WhatWaitsForWeightGradientsIsLate) {
  SmallGraph graph;
  const ValueRef w0 = graph.input("w0", {4, 4}, InputKind::kParameter);
  const ValueRef w1 = graph.input("w1", {8, 4}, InputKind::kParameter);
  const ValueRef x = graph.input("x", {8, 4});
  const ValueRef h = graph.op("h", "aten.relu.default", {graph.mm("m", x, w0)}, {8, 4});
  const ValueRef n = graph.op("n", "aten.mul.Tensor", {h, w1}, {8, 4});
  const ValueRef y = graph.op("y", "aten.relu.default", {n}, {8, 4});
  graph.result(graph.op("z", "aten.relu.default", {y}, {8, 4}));
  const ValueRef d = graph.op("d", "aten.relu.default", {y}, {8, 4}, Phase::kBackward);
  const ValueRef g = graph.op("g", "aten.mul.Tensor", {d, w1}, {8, 4}, Phase::kBackward);
  const ValueRef p = graph.op("p", "aten.mul.Tensor", {h, d}, {8, 4}, Phase::kBackward);
  const ValueRef e = graph.mm("e", g, w0, Phase::kBackward);
  const ValueRef s = graph.op("s", "shardwright.accumulate.default", {p}, {8, 4}, Phase::kUpdate);
  graph.update(graph.op("v", "aten.add.Tensor", {w1, s}, {8, 4}, Phase::kUpdate), w1);
  graph.result(e);
  const std::vector<int> layers = {0, 1, kEveryLayer, 0, 0, 1, 1, 1, 1, 1, 1, 0, 1, 1};
  const Cluster cluster = smallCluster(1);
  const DeviceMesh mesh({1}, cluster);
  for (const bool splits : {false, true}) {
    const LayerGraphs graphs = makeLayerGraphs(graph.build(), layers, splits);
    const LayerCost cost = LayerCosts(graphs, builtinRules(), {.num_microbatches = 2})
                               .tables(mesh, cluster, {{}})[1]
                               .at(0, 0, 0);
    EXPECT_EQ(cost.saved_bytes, 3 * 128);
    EXPECT_EQ(cost.late_bytes, splits ? 128 : 0);
    EXPECT_EQ(cost.fixed_bytes, 256);  // w1 and the sum of its gradients
  }
}

TEST(BoundarySpecs, NameDimsWhateverTheAtoms) {
  const std::vector<int> mesh = {2, 2};
  const ShardingSpec both = {Placement::shard(0), Placement::shard(1)};
  // A dim of 1024 cut as 2 x 512: the outer atom is cut up, so the two are one block of the dim.
  const TensorAtoms fine{{2, 512, 8}, {{0, 1}, {2}}};
  EXPECT_EQ(boundarySpec(fine, both, {1024, 8}, mesh),
            (ShardingSpec{Placement::shard(0, 0), Placement::shard(0, 1)}));
  // As 4 x 256 it is strided.
  const TensorAtoms coarse{{4, 256, 8}, {{0, 1}, {2}}};
  EXPECT_EQ(boundarySpec(coarse, both, {1024, 8}, mesh), std::nullopt);
  // The same tensor seen as [4, 256, 8].
  EXPECT_EQ(boundarySpec(coarse, both, {4, 256, 8}, mesh), both);
  const ShardingSpec pending = {Placement::partial(ReduceOp::kSum), Placement::replicate()};
  EXPECT_EQ(boundarySpec(fine, pending, {1024, 8}, mesh), std::nullopt);
}

}  // namespace
}  // namespace shardwright
