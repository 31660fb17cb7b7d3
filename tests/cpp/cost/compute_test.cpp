// Roofline prices of ops on shards.

#include "cost/compute.h"

#include <gtest/gtest.h>

#include <optional>

#include "sharding/registry.h"

namespace shardwright {
namespace {

// 10 MFLOP/us in float32, 100 in float16, half of it reached; 1000 bytes/us; 2 us per op.
Cluster testCluster() {
  Cluster cluster;
  cluster.peak_flops_per_us = {{DType::kFloat32, 10e6}, {DType::kFloat16, 100e6}};
  cluster.compute_efficiency = 0.5;
  cluster.memory_bandwidth_bytes_per_us = 1000;
  cluster.kernel_overhead_us = 2;
  return cluster;
}

// x [m, k] times w [k, n], then relu and a slice, all of one dtype.
class ComputeTest : public ::testing::Test {
 protected:
  void build(std::int64_t m, std::int64_t k, std::int64_t n, DType dtype) {
    std::vector<Node> nodes;
    const auto add = [&](const std::string& name, const std::string& op,
                         const std::vector<std::size_t>& operands, std::int64_t rows,
                         std::int64_t columns) {
      Node& node = nodes.emplace_back();
      node.name = name;
      node.op = op;
      for (const std::size_t operand : operands) {
        node.args.emplace_back(ValueRef{NodeId(operand), 0});
      }
      node.outputs = {{{rows, columns}, dtype}};
      if (op == "input") {
        node.input = InputLabel{};
      }
    };
    add("x", "input", {}, m, k);
    add("w", "input", {}, k, n);
    add("mm", "aten.mm.default", {0, 1}, m, n);
    add("relu", "aten.relu.default", {2}, m, n);
    add("t", "aten.t.default", {3}, n, m);
    add("square", "aten.mul.Tensor", {3, 3}, m, n);
    graph_.emplace(std::move(nodes), std::vector<GraphOutput>{});
    sharded_.emplace(*graph_, builtinRules());
  }

  double cost(std::size_t node, const std::string& operands, const std::string& output,
              const Cluster& cluster) const {
    const NodeId id(node);
    for (const Strategy& strategy : enumerateStrategies(*sharded_, id, {4})) {
      const bool matches =
          (strategy.operands.empty() || printSpec(sharded_->atoms(graph_->node(id).operands()[0]),
                                                  strategy.operands[0]) == operands) &&
          printSpec(sharded_->atoms({id, 0}), strategy.outputs[0]) == output;
      if (matches) {
        return computeCostUs(*sharded_, id, strategy, {4}, cluster);
      }
    }
    ADD_FAILURE() << "no strategy " << operands << " -> " << output;
    return -1;
  }

  std::optional<Graph> graph_;
  std::optional<ShardedGraph> sharded_;
};

TEST_F(ComputeTest, LargeProductsAreBoundByArithmetic) {
  build(1024, 1024, 1024, DType::kFloat32);
  Cluster cluster = testCluster();
  cluster.memory_bandwidth_bytes_per_us = 1e9;
  // 2 * 1024^3 flops at 5 MFLOP/us: 429.5 us, and 2.
  EXPECT_NEAR(cost(2, "R R", "R R", cluster), 2 + 2.0 * (1 << 30) / 5e6, 1e-6);
  // A quarter of the rows on each of 4 ranks.
  EXPECT_NEAR(cost(2, "S0 R", "S0 R", cluster), 2 + 2.0 * (1 << 28) / 5e6, 1e-6);
  // Split contraction: the same quarter of the work.
  EXPECT_NEAR(cost(2, "R S0", "R R P0", cluster), 2 + 2.0 * (1 << 28) / 5e6, 1e-6);
}

TEST_F(ComputeTest, HalfPrecisionHasItsOwnPeakAndOthersCountAsFloat32) {
  Cluster cluster = testCluster();
  cluster.memory_bandwidth_bytes_per_us = 1e9;
  build(1024, 1024, 1024, DType::kFloat16);
  EXPECT_NEAR(cost(2, "R R", "R R", cluster), 2 + 2.0 * (1 << 30) / 50e6, 1e-6);
  build(1024, 1024, 1024, DType::kBFloat16);
  EXPECT_NEAR(cost(2, "R R", "R R", cluster), 2 + 2.0 * (1 << 30) / 5e6, 1e-6);
}

TEST_F(ComputeTest, PointwiseOpsAreBoundByTrafficOfTheirShards) {
  build(64, 16, 64, DType::kFloat32);
  // relu reads and writes 64 * 64 * 4 bytes at 1000 bytes/us.
  EXPECT_NEAR(cost(3, "R R", "R R", testCluster()), 2 + 2 * 16384 / 1000.0, 1e-9);
  EXPECT_NEAR(cost(3, "S0 R", "S0 R", testCluster()), 2 + 2 * 4096 / 1000.0, 1e-9);
  // x * x reads x once.
  EXPECT_NEAR(cost(5, "R R", "R R", testCluster()), 2 + 2 * 16384 / 1000.0, 1e-9);
}

TEST_F(ComputeTest, InputsAndViewsAreFree) {
  build(64, 16, 64, DType::kFloat32);
  EXPECT_EQ(cost(0, "", "S0 R", testCluster()), 0);
  EXPECT_EQ(cost(4, "S0 R", "R S0", testCluster()), 0);
}

TEST_F(ComputeTest, NothingCostsOnAnAbstractCluster) {
  build(64, 16, 64, DType::kFloat32);
  EXPECT_EQ(cost(2, "R R", "R R", Cluster{}), 0);
}

TEST(LocalBytesTest, DividesByTheShards) {
  const TensorAtoms atoms = {{8, 16}, {{0}, {1}}};
  EXPECT_EQ(localBytes(atoms, DType::kBFloat16, replicatedSpec(2), {2, 4}), 256);
  EXPECT_EQ(localBytes(atoms, DType::kBFloat16, {Placement::shard(0), Placement::shard(1)}, {2, 4}),
            32);
  EXPECT_EQ(localBytes({{}, {}}, DType::kFloat64, replicatedSpec(2), {2, 4}), 8);
}

}  // namespace
}  // namespace shardwright
