// How a mesh lies on hosts, and what its axes cost.

#include "mesh/cluster.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "sharding/reshard.h"

namespace shardwright {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

// A linear layer 4096 x 4096 x 4096 in fp16 on 2 hosts x 4: 25 Gb/s per host, 100 GB/s inside, no
// latency.
Cluster seedCluster(int num_hosts, int devices_per_host) {
  Cluster cluster;
  cluster.name = "seed";
  cluster.num_hosts = num_hosts;
  cluster.devices_per_host = devices_per_host;
  cluster.intra_host.bandwidth_bytes_per_us = 100e3;
  cluster.inter_host.bandwidth_bytes_per_us = 3.125e3;
  return cluster;
}

std::string codeOf(const std::vector<int>& shape, const Cluster& cluster) {
  try {
    const DeviceMesh mesh(shape, cluster);
  } catch (const Error& error) {
    return error.code();
  }
  return "";
}

TEST(ClusterTest, RanksAreRowMajor) {
  const DeviceMesh mesh({2, 4}, seedCluster(2, 4));
  EXPECT_EQ(mesh.coordinate(5), (std::vector<int>{1, 1}));
  EXPECT_EQ(mesh.group(5, 0), (std::vector<int>{1, 5}));
  EXPECT_EQ(mesh.group(5, 1), (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(mesh.numDevices(), 8);
}

TEST(ClusterTest, FourRingsShareOneNic) {
  // DP2 x TP4: all-reduce of 8 MiB over axis 0: 8 MiB per ring, 4 rings through one
  // NIC of 3.125 GB/s: 10.7 ms. Axis 1: 2 * 3/4 * 16 MiB at 100 GB/s: 0.25 ms.
  const DeviceMesh mesh({2, 4}, seedCluster(2, 4));
  EXPECT_NEAR(collectiveCostUs(StepKind::kAllReduce, mesh, 0, 8 * kMiB), 10737.4, 0.1);
  EXPECT_NEAR(collectiveCostUs(StepKind::kAllReduce, mesh, 1, 16 * kMiB), 251.7, 0.1);
}

TEST(ClusterTest, FlatRingCrossesTheNicOnce) {
  // DP-8: 2 * 7/8 * 32 MiB = 56 MiB at 3.125 GB/s: 18.8 ms.
  const DeviceMesh mesh({8}, seedCluster(2, 4));
  EXPECT_NEAR(collectiveCostUs(StepKind::kAllReduce, mesh, 0, 32 * kMiB), 18790.5, 0.1);
}

TEST(ClusterTest, EightMicrobatchesFavourTensorOnTheFastAxis) {
  // 10.7 + 8 * 0.25 = 12.7 ms; with the axes swapped the repeated 16 MiB go over
  // the NIC: 8 * 2 * (1/2) * 16 MiB ... * 4 rings.
  const DeviceMesh mesh({2, 4}, seedCluster(2, 4));
  const double good_us = collectiveCostUs(StepKind::kAllReduce, mesh, 0, 8 * kMiB) +
                         8 * collectiveCostUs(StepKind::kAllReduce, mesh, 1, 16 * kMiB);
  EXPECT_NEAR(good_us, 12750.7, 0.1);
  const double swapped_us = collectiveCostUs(StepKind::kAllReduce, mesh, 1, 8 * kMiB) +
                            8 * collectiveCostUs(StepKind::kAllReduce, mesh, 0, 16 * kMiB);
  EXPECT_GT(swapped_us, 10 * good_us);
}

TEST(ClusterTest, AxisThatPartlySpansHostsCountsItsOwnRings) {
  // (4, 2) on 2 x 4: groups {0, 2, 4, 6} and {1, 3, 5, 7} leave each host once each: 2 rings.
  const DeviceMesh mesh({4, 2}, seedCluster(2, 4));
  EXPECT_DOUBLE_EQ(mesh.axis(0).beta_us_per_byte, 2 / 3.125e3);
  EXPECT_DOUBLE_EQ(mesh.axis(1).beta_us_per_byte, 1 / 100e3);
}

TEST(ClusterTest, AllToAllSendsFromEveryDeviceThroughTheNic) {
  // (8) on 2 x 4, b local bytes: each of 4 devices sends b / 8 to each of 4 others: 2 b through the
  // NIC. The ring formula charges beta (n - 1) / n b = 7/8 b, so the scale is 16 / 7.
  const DeviceMesh mesh({8}, seedCluster(2, 4));
  EXPECT_DOUBLE_EQ(mesh.axis(0).all_to_all_scale, 16.0 / 7.0);
  const double local_bytes = 8e6;
  EXPECT_NEAR(collectiveCostUs(StepKind::kAllToAll, mesh, 0, 8 * local_bytes),
              2 * local_bytes / 3.125e3, 1e-6);
  // Over 2 hosts, one device of each: the same as the ring.
  EXPECT_DOUBLE_EQ(DeviceMesh({2}, seedCluster(2, 1)).axis(0).all_to_all_scale, 1);
}

TEST(ClusterTest, FastNicsDoNotBeatTheLinkInsideTheHost) {
  Cluster cluster = seedCluster(2, 2);
  cluster.inter_host.bandwidth_bytes_per_us = 1e9;
  EXPECT_DOUBLE_EQ(DeviceMesh({4}, cluster).axis(0).beta_us_per_byte, 1 / 100e3);
}

TEST(ClusterTest, LatencyGrowsWithTheRing) {
  Cluster cluster = seedCluster(1, 4);
  cluster.intra_host.latency_us = 10;
  cluster.intra_host.hop_latency_us = 3;
  EXPECT_DOUBLE_EQ(DeviceMesh({4}, cluster).axis(0).alpha_us, 16);
  EXPECT_DOUBLE_EQ(DeviceMesh({2, 2}, cluster).axis(1).alpha_us, 10);
}

TEST(ClusterTest, AbstractClusterGivesItsConstantsToAnyShape) {
  Cluster cluster;
  cluster.abstract_axes = {{1, 1, 1}, {1, 0.01, 1}};
  const DeviceMesh mesh({3, 4}, cluster);
  EXPECT_EQ(mesh.axis(1), (AxisCost{1, 0.01, 1}));
  // Three quarters of 2 * 1024 bytes at 0.01 us each, and alpha.
  EXPECT_NEAR(collectiveCostUs(StepKind::kAllReduce, mesh, 1, 1024), 16.36, 1e-9);
  EXPECT_EQ(codeOf({2, 2, 2}, cluster), "E355");
}

TEST(ClusterTest, RefusesMeshesThatDoNotFit) {
  EXPECT_EQ(codeOf({2, 2}, seedCluster(2, 4)), "E351");
  EXPECT_EQ(codeOf({}, seedCluster(1, 1)), "E355");
  EXPECT_EQ(codeOf({0}, seedCluster(1, 1)), "E355");
  EXPECT_EQ(codeOf({1, 1, 1, 1, 1}, seedCluster(1, 1)), "E355");
}

TEST(ClusterTest, CandidateShapesAreAllFactorizationsUpToTwoAxes) {
  using Shapes = std::vector<std::vector<int>>;
  EXPECT_EQ(candidateMeshShapes(1), (Shapes{{1}}));
  EXPECT_EQ(candidateMeshShapes(7), (Shapes{{7}}));
  EXPECT_EQ(candidateMeshShapes(8), (Shapes{{8}, {2, 4}, {4, 2}}));
  EXPECT_EQ(candidateMeshShapes(4), (Shapes{{4}, {2, 2}}));
}

}  // namespace
}  // namespace shardwright
