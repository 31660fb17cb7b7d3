#include "interop/priced_layers.h"

#include <gtest/gtest.h>

#include <vector>

namespace shardwright {
namespace {

TEST(PricedLayers, TablesAreMadeOncePerMeshAndPrices) {
  PricedLayers priced;
  int num_made = 0;
  // As many classes as tables were made, to tell them apart.
  const auto make = [&] { return std::vector<LayerTable>(static_cast<std::size_t>(++num_made)); };
  const std::vector<MemoryPrice> free = {MemoryPrice{}};
  const std::vector<MemoryPrice> dear = {MemoryPrice{}, MemoryPrice{1, 4}};
  EXPECT_EQ(priced.tables({1, 4}, {4}, free, make).size(), 1U);
  EXPECT_EQ(priced.tables({1, 4}, {4}, free, make).size(), 1U);
  EXPECT_EQ(priced.tables({1, 4}, {2, 2}, free, make).size(), 2U);
  EXPECT_EQ(priced.tables({2, 2}, {2, 2}, free, make).size(), 3U);
  EXPECT_EQ(priced.tables({2, 2}, {2, 2}, dear, make).size(), 4U);
  EXPECT_EQ(priced.tables({2, 2}, {2, 2}, free, make).size(), 3U);
  EXPECT_EQ(num_made, 4);
}

TEST(PricedLayers, TablesThatWereStoppedAreMadeAgain) {
  PricedLayers priced;
  const auto none = [] { return std::vector<LayerTable>(); };
  const auto one = [] { return std::vector<LayerTable>(1); };
  EXPECT_TRUE(priced.tables({1, 1}, {1}, {MemoryPrice{}}, none).empty());
  EXPECT_EQ(priced.tables({1, 1}, {1}, {MemoryPrice{}}, one).size(), 1U);
}

}  // namespace
}  // namespace shardwright
