// One list of atoms for a value that two graphs cut differently.

#include "sharding/common_atoms.h"

#include <gtest/gtest.h>

namespace shardwright {
namespace {

std::string printed(const CommonAtoms& common, bool source) {
  return printSpec(common.atoms, source ? common.source : common.target);
}

std::optional<CommonAtoms> common(const TensorAtoms& source_atoms, const std::string& source,
                                  const std::vector<int>& source_mesh,
                                  const TensorAtoms& target_atoms, const std::string& target,
                                  const std::vector<int>& target_mesh) {
  return commonAtoms(
      source_atoms, parseSpec(source_atoms, source, static_cast<int>(source_mesh.size())),
      source_mesh, target_atoms,
      parseSpec(target_atoms, target, static_cast<int>(target_mesh.size())), target_mesh);
}

TEST(CommonAtoms, KeepsEqualCuts) {
  const TensorAtoms atoms = {{8, 6}, {{0}, {1}}};
  const auto found = common(atoms, "S0 R", {2}, atoms, "R S0", {3});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->atoms, atoms);
  EXPECT_EQ(printed(*found, true), "S0 R");
  EXPECT_EQ(printed(*found, false), "R S0");
}

TEST(CommonAtoms, ShardsTheOutermostPieceOfAnAtomThatIsCutFurther) {
  // 8 samples over 2 ranks; the other graph sees them as 4 x 2, the 4 over 4 ranks.
  const auto found = common({{8}, {{0}}}, "S0", {2}, {{4, 2}, {{0, 1}}}, "S0", {4});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->atoms, (TensorAtoms{{4, 2}, {{0, 1}}}));
  EXPECT_EQ(found->source[0], Placement::shard(0));
  EXPECT_EQ(found->target[0], Placement::shard(0));
}

TEST(CommonAtoms, KeepsAStridedShard) {
  // Heads of a fused dim [3, heads 4, 5] against the dim as a whole.
  const TensorAtoms fused = {{3, 4, 5}, {{0, 1, 2}}};
  const auto found = common(fused, "{R,S0,R}", {2}, {{60}, {{0}}}, "S0", {3});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->atoms, fused);
  EXPECT_EQ(found->source[0], Placement::shard(1));
  EXPECT_EQ(found->target[0], Placement::shard(0));
}

TEST(CommonAtoms, NumbersAtomsByPlaceWhateverTheRootsOrder) {
  // A transposed view: the first dim has the root's atom 1.
  const auto found = common({{6, 8}, {{1}, {0}}}, "S0 R", {2}, {{8, 6}, {{0}, {1}}}, "R S0", {2});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->atoms, (TensorAtoms{{8, 6}, {{0}, {1}}}));
  EXPECT_EQ(printed(*found, true), "S0 R");
  EXPECT_EQ(printed(*found, false), "R S0");
}

TEST(CommonAtoms, RefusesCutsThatDoNotNestAndPiecesThatDoNotDivide) {
  EXPECT_FALSE(common({{4, 6}, {{0, 1}}}, "R", {2}, {{6, 4}, {{0, 1}}}, "R", {2}));
  // 8 over 4 ranks, but the other graph's outer piece is 2.
  EXPECT_FALSE(common({{8}, {{0}}}, "S0", {4}, {{2, 4}, {{0, 1}}}, "R", {2}));
}

}  // namespace
}  // namespace shardwright
