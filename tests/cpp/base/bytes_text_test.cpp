#include "base/bytes_text.h"

#include <gtest/gtest.h>

namespace shardwright {
namespace {

TEST(BytesText, RoundsToOneDecimalOfTheLargestUnit) {
  EXPECT_EQ(bytesText(7), "7 B");
  EXPECT_EQ(bytesText(1536), "1.5 KiB");
  EXPECT_EQ(bytesText(std::int64_t{16} << 30), "16.0 GiB");
  EXPECT_EQ(bytesText(std::int64_t{3} << 50), "3072.0 TiB");
}

TEST(BytesText, LimitsAreRoundedUpSoThatTheBytesFit) {
  EXPECT_EQ(bytesLimitText(1024), "1.0KiB");
  EXPECT_EQ(bytesLimitText(1025), "1.1KiB");
  EXPECT_EQ(bytesLimitText(10147000321), "9.5GiB");
}

}  // namespace
}  // namespace shardwright
