#include "base/error.h"

#include <gtest/gtest.h>

namespace shardwright {
namespace {

TEST(Error, MessageHasFourPartsInOrder) {
  const Error error(ErrorKind::kInfeasible, "E203",
                    "no sharding fits 8.0 GiB per device on mesh (2, 2).",
                    {.values = {"smallest peak found: 9.4 GiB", "largest tensor: w f32[4, 4]"},
                     .where = "train.py:41",
                     .advice = "8 devices"});
  EXPECT_EQ(error.message(),
            "InfeasibleError [E203]: no sharding fits 8.0 GiB per device on mesh (2, 2).\n"
            "  smallest peak found: 9.4 GiB\n"
            "  largest tensor: w f32[4, 4]\n"
            "  at: train.py:41\n"
            "  try: 8 devices");
  EXPECT_STREQ(error.what(), error.message().c_str());
}

TEST(Error, EmptyPartsLeaveNoLine) {
  const Error error(ErrorKind::kConfig, "E501", "bad.");
  EXPECT_EQ(error.message(), "ConfigError [E501]: bad.");
}

}  // namespace
}  // namespace shardwright
