#include "runtime/shard_layout.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace shardwright {
namespace {

// Rows of a fused QKV weight: 3 thirds of 2 heads of 1 row, value = 10 * third + head.
at::Tensor fusedRows() { return at::tensor({0, 1, 10, 11, 20, 21}).view({6, 1}); }

TEST(ShardLayoutTest, PackingPutsTheHeadsOfOneRankTogether) {
  const PartView view = partView({6, 1}, 0, 3, 2, /*whole=*/true);
  EXPECT_EQ(view.rows, 3);
  EXPECT_EQ(view.columns, 1);
  const at::Tensor slabs = packParts(fusedRows(), view);
  EXPECT_TRUE(at::equal(slabs.view(-1), at::tensor({0, 10, 20, 1, 11, 21})));
  EXPECT_TRUE(at::equal(unpackParts(slabs, view, {6, 1}), fusedRows()));
}

TEST(ShardLayoutTest, TakingAPartIsTheSlabOfThatPart) {
  const PartView view = partView({6, 1}, 0, 3, 2, /*whole=*/true);
  EXPECT_TRUE(at::equal(takePart(fusedRows(), view, 1, {3, 1}).view(-1), at::tensor({1, 11, 21})));
}

TEST(ShardLayoutTest, ColumnsCountTheDimsBehind) {
  // [4, 6, 5], dim 1 = outer 2 x 3 parts x 1: rows 4 * 2, columns 1 * 5
  const PartView view = partView({4, 6, 5}, 1, 2, 3, /*whole=*/true);
  EXPECT_EQ(view.rows, 8);
  EXPECT_EQ(view.columns, 5);
}

TEST(ShardLayoutTest, SizesThatDoNotDivideAreAnError) {
  try {
    partView({5}, 0, 1, 2, /*whole=*/true);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), "E902");
  }
}

}  // namespace
}  // namespace shardwright
