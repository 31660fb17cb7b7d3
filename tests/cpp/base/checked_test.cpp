#include "base/checked.h"

#include <gtest/gtest.h>

#include <limits>

namespace shardwright {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();

TEST(Checked, AddsUpToTheLimitAndThrowsPastIt) {
  EXPECT_EQ(checkedAdd<std::int64_t>(kMax - 1, 1), kMax);
  EXPECT_EQ(checkedAdd<std::int64_t>(kMin, kMax), -1);
  EXPECT_THROW(checkedAdd<std::int64_t>(kMax, 1), Error);
  EXPECT_THROW(checkedAdd<std::int64_t>(kMin, -1), Error);
}

TEST(Checked, MultipliesUpToTheLimitAndThrowsPastIt) {
  // 3037000499^2 = 9223372030926249001 is the largest square below 2^63; the next, 3037000500^2, is
  // above.
  EXPECT_EQ(checkedMul<std::int64_t>(3037000499, 3037000499), 9223372030926249001);
  EXPECT_THROW(checkedMul<std::int64_t>(3037000500, 3037000500), Error);
  EXPECT_THROW(checkedMul<std::int64_t>(kMin, -1), Error);
}

TEST(Checked, SumsPastInt64In128Bits) {
  // 2 * (2^63 - 1) = 18446744073709551614
  const Int128 sum = checkedAdd<Int128>(kMax, kMax);
  EXPECT_EQ(toString(sum), "18446744073709551614");
  EXPECT_THROW(checkedNarrow(sum), Error);
  EXPECT_EQ(checkedNarrow(checkedAdd<Int128>(sum, -Int128{kMax})), kMax);
}

TEST(Checked, ThrowsPast128Bits) {
  const Int128 big = Int128{1} << 126;
  EXPECT_THROW(checkedAdd<Int128>(big, big), Error);
  EXPECT_THROW(checkedMul<Int128>(big, 2), Error);
}

TEST(Checked, PrintsTheSmallest128BitInteger) {
  // -2^127
  const Int128 smallest = -(Int128{1} << 126) - (Int128{1} << 126);
  EXPECT_EQ(toString(smallest), "-170141183460469231731687303715884105728");
  EXPECT_EQ(toString(0), "0");
}

TEST(Checked, OverflowErrorShowsTheOperands) {
  try {
    checkedAdd<std::int64_t>(kMax, 1);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), "E901");
    EXPECT_EQ(error.details().values.at(0), "9223372036854775807 + 1");
  }
}

}  // namespace
}  // namespace shardwright
