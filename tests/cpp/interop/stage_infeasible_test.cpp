#include "interop/stage_infeasible.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace shardwright {
namespace {

// Two layers on two devices, a stage each for its submesh has one: of 1 byte and 4 more for every
// microbatch in flight, 2 in the first stage (9 bytes) and 1 in the second (5 bytes).
StageProblem twoLayers(std::int64_t limit) {
  StageProblem problem;
  problem.num_layers = 2;
  problem.submeshes = {{1, 1}};
  problem.num_devices = 2;
  problem.num_microbatches = 2;
  problem.kinds = {{0, 0, 0, 0}};
  problem.times = {RangeTable<double>(2, 1.0)};
  problem.memory = {{RangeTable<std::int64_t>(2, 1), RangeTable<std::int64_t>(2, 4)}};
  problem.memory_limit_bytes = limit;
  return problem;
}

std::string messageOf(const StageProblem& problem, const StageSearchOptions& options) {
  try {
    throwStagesInfeasible(problem, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), "E205");
    return error.message();
  }
}

TEST(StageInfeasible, NamesTheSmallestLimitThatWouldDo) {
  const std::string message = messageOf(twoLayers(6), {});
  EXPECT_NE(message.find("memory limit 6 bytes per device; 9 would do"), std::string::npos);
}

TEST(StageInfeasible, NamesALayerThatNoStageCanHold) {
  const std::string message = messageOf(twoLayers(4), {});
  EXPECT_NE(message.find("layer 0 needs 5 bytes"), std::string::npos) << message;
  StageProblem impossible = twoLayers(100);
  impossible.times[0].at(1, 2) = impossible.times[0].at(0, 2) =
      std::numeric_limits<double>::infinity();
  EXPECT_NE(messageOf(impossible, {}).find("layer 1 is in no possible stage"), std::string::npos);
}

TEST(StageInfeasible, WithoutTimeItSaysNoLimit) {
  const std::string message = messageOf(twoLayers(6), {.time_limit_s = 0});
  EXPECT_NE(message.find("memory limit 6 bytes per device"), std::string::npos);
  EXPECT_EQ(message.find("would do"), std::string::npos);
}

// 12 bytes are tried first, then what lies between.
TEST(StageInfeasible, InterruptedAnywhereTheLimitItSaysWouldDo) {
  int num_asked = 0;
  messageOf(twoLayers(6), {.is_interrupted = [&] { return ++num_asked < 0; }});
  EXPECT_GT(num_asked, 4);
  bool has_larger = false;
  for (int last = 1; last <= num_asked; ++last) {
    int asked = 0;
    const std::string message =
        messageOf(twoLayers(6), {.is_interrupted = [&] { return ++asked >= last; }});
    EXPECT_EQ(asked, last);  // nobody asks once more
    const std::size_t at = message.find("; ");
    if (at == std::string::npos) continue;
    const std::int64_t limit = std::stoll(message.substr(at + 2));
    EXPECT_TRUE(9 <= limit && limit <= 12) << message;
    has_larger = has_larger || limit > 9;
  }
  EXPECT_TRUE(has_larger);
}

}  // namespace
}  // namespace shardwright
