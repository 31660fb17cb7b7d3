// Specs: printed form and its inverse, validity, local shapes.

#include "sharding/placement.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "sharding/spec_enumeration.h"

namespace shardwright {
namespace {

const TensorAtoms kMatrix = {{8, 16}, {{0}, {1}}};
// A fused QKV weight [3 * heads * e, D] with 4 heads of 8.
const TensorAtoms kFusedQkv = {{3, 4, 8, 16}, {{0, 1, 2}, {3}}};

TEST(PlacementTest, PrintsThePapersForms) {
  const Placement r = Placement::replicate();
  const Placement p = Placement::partial(ReduceOp::kSum);
  EXPECT_EQ(printSpec(kMatrix, {Placement::shard(0), r}), "S0 R");
  EXPECT_EQ(printSpec(kMatrix, {Placement::shard(1, 0), Placement::shard(1, 1)}), "R S01");
  EXPECT_EQ(printSpec(kMatrix, {Placement::shard(1, 1), Placement::shard(1, 0)}), "R S10");
  EXPECT_EQ(printSpec(kMatrix, {Placement::shard(0), p}), "S0 R P1");
  const Placement max = Placement::partial(ReduceOp::kMax);
  EXPECT_EQ(printSpec(kMatrix, {max, max}), "R R P01(max)");
  EXPECT_EQ(printSpec(kMatrix, {r, r}), "R R");
}

TEST(PlacementTest, PrintsAtomsInBracesOnlyWhenAnInnerOneIsSharded) {
  const Placement r = Placement::replicate();
  EXPECT_EQ(printSpec(kFusedQkv, {r, Placement::shard(1)}), "{R,S1,R} R");
  EXPECT_EQ(printSpec(kFusedQkv, {Placement::shard(0), Placement::shard(2)}), "{S0,R,S1} R");
  EXPECT_EQ(printSpec(kFusedQkv, {Placement::shard(0), Placement::shard(3)}), "S0 S1");
}

TEST(PlacementTest, PrintsTensorsWithoutDimsAndSizeOneDims) {
  const TensorAtoms scalar = {{}, {}};
  EXPECT_EQ(printSpec(scalar, {Placement::replicate()}), "R");
  EXPECT_EQ(printSpec(scalar, {Placement::partial(ReduceOp::kSum)}), "P0");
  EXPECT_EQ(parseSpec(scalar, "R", 1), replicatedSpec(1));
  EXPECT_EQ(parseSpec(scalar, "P0", 1), ShardingSpec{Placement::partial(ReduceOp::kSum)});
  const TensorAtoms row = {{8}, {{}, {0}}};  // [1, 8]
  EXPECT_EQ(printSpec(row, {Placement::shard(0)}), "R S0");
}

TEST(PlacementTest, ParseIsTheInverseOfPrintForEverySpecOfSeveralLayouts) {
  const std::vector<TensorAtoms> layouts = {
      kMatrix,
      kFusedQkv,
      {{}, {}},
      {{16}, {{}, {0}}},
      {{16, 8, 32}, {{2}, {0, 1}}},          // transposed view of another root
      {{64, 64, 64}, {{0, 1, 2}, {}, {}}}};  // one dim of three atoms
  const std::vector<std::vector<int>> meshes = {{4}, {2, 4}, {2, 2, 2}, {1, 4}};
  int checked = 0;
  for (const TensorAtoms& atoms : layouts) {
    for (const std::vector<int>& mesh : meshes) {
      for (const ShardingSpec& spec : allSpecs(atoms, mesh, {ReduceOp::kSum, ReduceOp::kMax})) {
        const std::string text = printSpec(atoms, spec);
        EXPECT_EQ(parseSpec(atoms, text, static_cast<int>(mesh.size())), spec) << text;
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 1000);
}

TEST(PlacementTest, ParseRefusesTextThatDoesNotFit) {
  for (const char* text :
       {"", "S0", "S0 R R", "S2 R", "S0 S0", "S01 S1", "X R", "S R", "R R P", "R R P0(avg)",
        "R R S0", "{R,S1} R", "{R,S1,R R", "R R P00", "S0 R P0", "{R,S1,R} {R}x", "s0 R"}) {
    try {
      parseSpec(kFusedQkv, text, 2);
      ADD_FAILURE() << "accepted \"" << text << "\"";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), "E310") << text;
    }
  }
  EXPECT_THROW(parseSpec({{8}, {{}, {0}}}, "S0 R", 1), Error);  // size-1 dim
}

TEST(PlacementTest, LocalShapeDividesEachDimByTheShardsOfItsAtoms) {
  // Heads over axis 1 of 2 x 4: [3 * 4 * 8, 16] becomes [3 * 1 * 8, 16].
  const ShardingSpec heads = {Placement::replicate(), Placement::shard(1)};
  EXPECT_EQ(localShape(kFusedQkv, heads, {2, 4}), (std::vector<std::int64_t>{24, 16}));
  // S01 on dim 1 of [8, 16]: 16 / 8 = 2.
  const ShardingSpec both = {Placement::shard(1, 0), Placement::shard(1, 1)};
  EXPECT_EQ(localShape(kMatrix, both, {2, 4}), (std::vector<std::int64_t>{8, 2}));
  EXPECT_EQ(atomShards(kMatrix, both, {2, 4}), (std::vector<std::int64_t>{1, 8}));
  EXPECT_EQ(axesOfAtom({Placement::shard(1, 1), Placement::shard(1, 0)}, 1),
            (std::vector<int>{1, 0}));
}

TEST(PlacementTest, ValidityAsksForEvenShardsOrdersAndOneKindOfPending) {
  const Placement r = Placement::replicate();
  const std::vector<int> mesh = {2, 4};
  EXPECT_TRUE(isValid(kFusedQkv, {r, Placement::shard(1)}, mesh));
  EXPECT_FALSE(isValid(kFusedQkv, {r, Placement::shard(0)}, mesh));  // 3 heads kinds over 4
  EXPECT_FALSE(isValid(kFusedQkv, {Placement::shard(0), r}, mesh));  // 3 over 2
  EXPECT_FALSE(isValid(kFusedQkv, {r}, mesh));                       // one placement missing
  EXPECT_FALSE(isValid(kFusedQkv, {r, Placement::shard(4)}, mesh));  // no such atom
  // 4 heads over 8 ranks.
  EXPECT_FALSE(isValid(kFusedQkv, {Placement::shard(1, 0), Placement::shard(1, 1)}, mesh));
  // Orders must be 0 and 1.
  EXPECT_FALSE(isValid(kFusedQkv, {Placement::shard(2, 0), Placement::shard(2, 0)}, mesh));
  EXPECT_FALSE(isValid(kFusedQkv, {r, Placement::shard(2, 1)}, mesh));
  EXPECT_TRUE(isValid(kFusedQkv, {Placement::shard(2, 1), Placement::shard(2, 0)}, mesh));
  EXPECT_FALSE(isValid(
      kMatrix, {Placement::partial(ReduceOp::kSum), Placement::partial(ReduceOp::kMax)}, mesh));
}

}  // namespace
}  // namespace shardwright
