#include "sharding/transfer.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "sharding/reshard.h"
#include "sharding/transfer_table.h"
#include "sharding/transfer_tiles.h"

namespace shardwright {
namespace {

// 4 devices per host, NIC 1 byte/us, port 10 bytes/us, no latencies.
Cluster hostsOfFour() {
  Cluster cluster;
  cluster.num_hosts = 4;
  cluster.devices_per_host = 4;
  cluster.intra_host = {.bandwidth_bytes_per_us = 10};
  cluster.inter_host = {.bandwidth_bytes_per_us = 1};
  return cluster;
}

Submesh fourFrom(int first) {
  return makeSubmesh({4}, {first, first + 1, first + 2, first + 3}, hostsOfFour());
}

const TensorAtoms kMatrix = {.sizes = {8, 16}, .dims = {{0}, {1}}};

TEST(TransferTest, AReplicatedValueCrossesOnceAndIsGathered) {
  // 512 bytes: 512 us through the NIC, then 3/4 of them over each port: 38.4 us.
  const TransferPlan plan = planTransfer(kMatrix, DType::kFloat32, replicatedSpec(1), fourFrom(0),
                                         replicatedSpec(1), fourFrom(4), hostsOfFour());
  EXPECT_DOUBLE_EQ(plan.cost_us, 512 + 38.4);
  EXPECT_EQ(plan.steps.size(), 4U + 12U);
  EXPECT_EQ(plan.host_pair_bytes.at({0, 1}), 512);
  EXPECT_EQ(plan.rank_traffic.at(0), (RankTraffic{.sent_bytes = 128, .received_bytes = 0}));
  EXPECT_EQ(plan.rank_traffic.at(4), (RankTraffic{.sent_bytes = 384, .received_bytes = 512}));
}

TEST(TransferTest, RegionsAreBoxesOfTheShards) {
  // Rows over 4 ranks to columns over 4 ranks: rank 1's rows 2 and 3, rank 6's columns 8 to 11.
  const TransferPlan plan =
      planTransfer(kMatrix, DType::kFloat32, {Placement::shard(0)}, fourFrom(0),
                   {Placement::shard(1)}, fourFrom(4), hostsOfFour());
  EXPECT_EQ(plan.source_sizes, (std::vector<std::int64_t>{2, 16}));
  EXPECT_EQ(plan.target_sizes, (std::vector<std::int64_t>{8, 4}));
  for (const TransferStep& step : plan.steps) {
    if (step.from == 1 && step.to == 6) {
      ASSERT_EQ(step.copies.size(), 1U);
      EXPECT_EQ(step.copies[0].source, (Region{{.begin = 0, .size = 2}, {.begin = 8, .size = 4}}));
      EXPECT_EQ(step.copies[0].target, (Region{{.begin = 2, .size = 2}, {.begin = 0, .size = 4}}));
      EXPECT_EQ(step.bytes, 32);
      return;
    }
  }
  FAIL() << "no step from 1 to 6";
}

TEST(TransferTest, PartsOfARegionCoverItNearlyEvenly) {
  const Region region = {{.begin = 1, .size = 2}, {.begin = 4, .size = 7}};
  const std::vector<Region> parts = splitRegion(region, 3);
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[0][1], (AtomRange{.begin = 4, .size = 2}));
  EXPECT_EQ(parts[1][1], (AtomRange{.begin = 6, .size = 2}));
  EXPECT_EQ(parts[2][1], (AtomRange{.begin = 8, .size = 3}));
  EXPECT_EQ(parts[2][0], region[0]);
  EXPECT_EQ(splitRegion({{.begin = 0, .size = 1}}, 4).size(), 1U);
  EXPECT_EQ(splitRegion({}, 4).size(), 1U);
}

TEST(TransferTest, APendingReductionIsRefused) {
  try {
    planTransfer(kMatrix, DType::kFloat32, {Placement::partial(ReduceOp::kSum)}, fourFrom(0),
                 replicatedSpec(1), fourFrom(4), hostsOfFour());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), "E341");
  }
}

TEST(TransferTableTest, ValuesAlikeShareTheirPrices) {
  TransferTable table(fourFrom(0), fourFrom(4), hostsOfFour());
  const ShardingSpec rows = {Placement::shard(0)};
  const ShardingSpec columns = {Placement::shard(1)};
  const double price = table.costUs(kMatrix, DType::kFloat32, rows, columns);
  EXPECT_EQ(price, transferCostUs(kMatrix, DType::kFloat32, rows, fourFrom(0), columns, fourFrom(4),
                                  hostsOfFour()));
  // The same sizes and shards in another numbering, one dim, another dtype of 4 bytes.
  const TensorAtoms turned = {.sizes = {16, 8}, .dims = {{1, 0}}};
  EXPECT_EQ(table.costUs(turned, DType::kInt32, columns, rows), price);
  EXPECT_EQ(table.size(), 1U);
}

TEST(TransferTableTest, NoWayIsNoPrice) {
  TransferTable table(fourFrom(0), fourFrom(4), hostsOfFour());
  const ShardingSpec sum = {Placement::partial(ReduceOp::kSum)};
  EXPECT_EQ(table.costUs(kMatrix, DType::kFloat32, sum, replicatedSpec(1)), kUnreachableUs);
  EXPECT_EQ(table.costUs(kMatrix, DType::kFloat32, replicatedSpec(1), sum), kUnreachableUs);
  const TensorAtoms odd = {.sizes = {7}, .dims = {{0}}};
  EXPECT_EQ(table.costUs(odd, DType::kFloat32, {Placement::shard(0)}, replicatedSpec(1)),
            kUnreachableUs);
}

}  // namespace
}  // namespace shardwright
