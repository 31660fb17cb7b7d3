#include "base/ids.h"

#include <gtest/gtest.h>

#include <set>
#include <type_traits>
#include <unordered_set>

namespace shardwright {
namespace {

static_assert(!std::is_convertible_v<NodeId, EdgeId>);
static_assert(!std::is_convertible_v<int, NodeId>);
static_assert(!std::is_constructible_v<StageId, NodeId>);

TEST(Id, DefaultIsInvalidAndSortsFirst) {
  EXPECT_FALSE(NodeId().isValid());
  EXPECT_LT(NodeId(), NodeId(0));
}

TEST(Id, OrdersAndHashesByIndex) {
  const std::set<NodeId> ordered{NodeId(2), NodeId(0), NodeId(1)};
  EXPECT_EQ(ordered.begin()->index(), 0U);
  const std::unordered_set<EdgeId> hashed{EdgeId(7), EdgeId(7), EdgeId()};
  EXPECT_EQ(hashed.size(), 2U);
}

}  // namespace
}  // namespace shardwright
