#include "plan/infeasible.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace shardwright {
namespace {

std::string messageOf(const FailedSearch& search) {
  Cluster cluster;
  try {
    throwInfeasible(search, cluster);
  } catch (const Error& error) {
    return error.what();
  }
}

FailedSearch searchWithPeak() {
  FailedSearch search{.mesh_shapes = {{2, 2}}, .limit_bytes = 1024, .time_limit_s = 2.5};
  search.smallest = SmallestPeak{{2, 2}, {}, ""};
  search.smallest->peak.bytes = 4096;
  return search;
}

TEST(Infeasible, OnlyAProofSaysThatNoneFits) {
  FailedSearch search = searchWithPeak();
  const std::string found = messageOf(search);
  EXPECT_NE(
      found.find("[E203]: no sharding that fits 1.0 KiB per device on mesh (2, 2) was found."),
      std::string::npos)
      << found;
  EXPECT_NE(found.find("time_limit_s=5"), std::string::npos) << found;
  search.is_proven_too_large = true;
  const std::string proven = messageOf(search);
  EXPECT_NE(proven.find("[E203]: no sharding fits 1.0 KiB per device on mesh (2, 2)."),
            std::string::npos)
      << proven;
  EXPECT_EQ(proven.find("time_limit_s"), std::string::npos) << proven;
}

TEST(Infeasible, TellsHowManyMicrobatchesTheActivationsAreOf) {
  FailedSearch search = searchWithPeak();
  EXPECT_EQ(messageOf(search).find("in flight"), std::string::npos);
  search.microbatches_in_flight = 4;
  const std::string message = messageOf(search);
  EXPECT_NE(message.find("4 microbatches in flight: activations are those of all of them"),
            std::string::npos)
      << message;
}

TEST(Infeasible, OnlyAProofSaysThatNoneIsValid) {
  FailedSearch search{.mesh_shapes = {{2, 2}}, .limit_bytes = 1024, .time_limit_s = 2.5};
  const std::string found = messageOf(search);
  EXPECT_NE(found.find("[E204]: no sharding of the step that is valid on mesh (2, 2) was found."),
            std::string::npos)
      << found;
  EXPECT_NE(found.find("time_limit_s=5"), std::string::npos) << found;
  search.is_proven_invalid = true;
  search.is_proven_too_large = true;
  const std::string proven = messageOf(search);
  EXPECT_NE(proven.find("[E204]: no sharding of the step is valid on mesh (2, 2)."),
            std::string::npos)
      << proven;
}

TEST(Infeasible, AProofWithoutAnyChoiceFoundIsOfTheLimitOnly) {
  const std::string message = messageOf({.mesh_shapes = {{4}, {2, 2}},
                                         .limit_bytes = 1024,
                                         .time_limit_s = 1,
                                         .is_proven_too_large = true});
  EXPECT_NE(message.find("[E203]: no sharding fits 1.0 KiB per device on any mesh of"),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("a larger memory_limit"), std::string::npos) << message;
}

}  // namespace
}  // namespace shardwright
