// Shapes tile a cluster, and their placement leaves no device twice.
#include "mesh/submesh_shape.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace shardwright {
namespace {

TEST(SubmeshShape, CandidatesAreThoseOfAlpa) {
  EXPECT_EQ(candidateSubmeshes(3, 4),
            (std::vector<SubmeshShape>{{1, 1}, {1, 2}, {1, 4}, {2, 4}, {3, 4}}));
  EXPECT_EQ(candidateSubmeshes(6, 2, true),
            (std::vector<SubmeshShape>{{1, 1}, {1, 2}, {2, 2}, {4, 2}, {6, 2}}));
  EXPECT_EQ(candidateSubmeshes(2, 6), (std::vector<SubmeshShape>{{1, 6}, {2, 6}}));
}

TEST(SubmeshShape, OnlySomeShapesTile) {
  EXPECT_TRUE(tilesCluster({{1, 2}, {3, 8}, {1, 8}}, 8));
  EXPECT_TRUE(tilesCluster({{2, 6}}, 6));
  EXPECT_FALSE(tilesCluster({{1, 3}}, 8));
  EXPECT_FALSE(tilesCluster({{2, 4}}, 8));
  EXPECT_FALSE(tilesCluster({{1, 2}}, 6));
  EXPECT_FALSE(tilesCluster({{1, 16}}, 8));
}

TEST(SubmeshShape, SmallShapesComeAfterWholeHosts) {
  EXPECT_EQ(placeSubmeshes({{1, 2}, {2, 4}, {1, 2}}, 4), (std::vector<int>{8, 0, 10}));
}

// Any shapes that add up to the cluster: every device once, no small shape across two hosts.
TEST(SubmeshShape, PlacementCoversTheClusterOnce) {
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 2000; ++trial) {
    const int hosts = 1 + static_cast<int>(random() % 5);
    const int per_host = 1 << (random() % 4);
    const std::vector<SubmeshShape> candidates = candidateSubmeshes(hosts, per_host);
    std::vector<SubmeshShape> shapes;
    for (int left = hosts * per_host; left > 0;) {
      const SubmeshShape& shape = candidates[random() % candidates.size()];
      if (shape.numDevices() > left) continue;
      shapes.push_back(shape);
      left -= shape.numDevices();
    }
    const std::vector<int> first = placeSubmeshes(shapes, per_host);
    std::vector<int> uses(static_cast<std::size_t>(hosts * per_host), 0);
    for (std::size_t s = 0; s < shapes.size(); ++s) {
      for (int d = 0; d < shapes[s].numDevices(); ++d) {
        ASSERT_LT(first[s] + d, hosts * per_host);
        ++uses[static_cast<std::size_t>(first[s] + d)];
      }
      const int last = first[s] + shapes[s].numDevices() - 1;
      const bool is_whole = shapes[s].devices_per_host == per_host;
      EXPECT_EQ(is_whole ? first[s] % per_host : first[s] / per_host - last / per_host, 0);
    }
    for (const int count : uses) ASSERT_EQ(count, 1);
  }
}

}  // namespace
}  // namespace shardwright
