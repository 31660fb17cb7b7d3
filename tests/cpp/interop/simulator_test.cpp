// The simulator against closed forms and small timelines worked out by hand.
#include "interop/simulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"

namespace shardwright {
namespace {

Simulation balanced(ScheduleKind kind, int num_ranks, int stages_per_rank, int num_microbatches,
                    StageTimes times) {
  const Schedule schedule = makeSchedule({kind, num_ranks, stages_per_rank, num_microbatches});
  return simulate(schedule, std::vector(schedule.rank_of_stage.size(), times),
                  std::vector<EdgeTimes>(schedule.edges.size()));
}

// Within 1 % of the closed form, 16 stages.
void expectBubble(double found, double expected) { EXPECT_NEAR(found, expected, 0.01 * expected); }

TEST(Simulator, BubbleOfBalancedGPipeAnd1F1B) {
  for (const int num_microbatches : {16, 64, 256}) {
    const double expected = 15.0 / (num_microbatches + 15);
    const StageTimes times{1, 1.2, 0.8};
    expectBubble(balanced(ScheduleKind::kGPipe, 16, 1, num_microbatches, times).bubble_share,
                 expected);
    expectBubble(balanced(ScheduleKind::k1F1B, 16, 1, num_microbatches, times).bubble_share,
                 expected);
  }
}

TEST(Simulator, InterleavingDividesTheBubbleByTheStagesPerRank) {
  for (const int num_microbatches : {16, 64, 256}) {
    for (const int v : {2, 4}) {
      const double expected = 15.0 / (v * num_microbatches + 15);
      expectBubble(balanced(ScheduleKind::kInterleaved1F1B, 16, v, num_microbatches,
                            {1.0 / v, 1.0 / v, 1.0 / v})
                       .bubble_share,
                   expected);
    }
  }
}

TEST(Simulator, ZeroBubbleIsBelow1F1B) {
  for (const int num_microbatches : {16, 64, 256}) {
    for (const StageTimes& times : {StageTimes{1, 1, 1}, StageTimes{1, 1.2, 0.8}}) {
      const double forward_to_weight =
          times.forward_us + times.backward_input_us - times.backward_weight_us;
      const double bubble = 15 * forward_to_weight;
      const double work = 3.0 * num_microbatches;
      const double found =
          balanced(ScheduleKind::kZeroBubble, 16, 1, num_microbatches, times).bubble_share;
      expectBubble(found, bubble / (work + bubble));
      EXPECT_LT(found, balanced(ScheduleKind::k1F1B, 16, 1, num_microbatches, times).bubble_share);
    }
  }
}

TEST(Simulator, TransfersOverlapOrBlock) {
  const Schedule schedule = makeSchedule({ScheduleKind::k1F1B, 2, 1, 2});
  const std::vector<StageTimes> stages(2, {1, 1, 0});
  // Overlapped: 0F0 ends at 1, arrives at 4, 1F0 1B0 until 6; 0F1's tensor goes from 4 to 7, 1F1
  // 1B1 until 9; their gradients go 6-8 and 9-11, 0B1 ends at 12.
  const Simulation overlapped = simulate(schedule, stages, {{3, 2}});
  EXPECT_DOUBLE_EQ(overlapped.time_us, 12);
  EXPECT_DOUBLE_EQ(overlapped.busy_us[0], 4);
  EXPECT_DOUBLE_EQ(overlapped.bubble_share, 1 - 8.0 / 24);
  // Blocking, 0F0 SF0 F1 SF1 RB0 B0 RB1 B1 and 1RF0 F0 RF1 B0 SB0 F1 B1 SB1: SF0 1-4, both compute
  // until 5, SF1 5-8, 1B0 until 9, SB0 9-11, 1F1 1B1 until 13, SB1 13-15, 0B1 until 16.
  const Simulation blocking = simulate(schedule, stages, {{3, 2}}, TransferTiming::kBlocking);
  EXPECT_DOUBLE_EQ(blocking.time_us, 16);
}

TEST(Simulator, TimeSpentOnceCountsAfterTheLastMicrobatch) {
  const Schedule schedule = makeSchedule({ScheduleKind::k1F1B, 2, 1, 1});
  // Stage 1 ends at 2 and then works for 5; stage 0 ends at 3 and then works for 1.
  const Simulation result =
      simulate(schedule, {{1, 1, 0, 1}, {0.5, 0.5, 0, 5}}, std::vector<EdgeTimes>(1));
  EXPECT_DOUBLE_EQ(result.pipeline_us, 3);
  EXPECT_DOUBLE_EQ(result.time_us, 7);
}

TEST(Simulator, AStageComputesNothingBeforeItIsReady) {
  const Schedule schedule = makeSchedule({ScheduleKind::k1F1B, 2, 1, 2});
  // Without: 0F0 0-1, 1F0 1-2, 1B0 2-3, 0F1 1-2, 1F1 3-4, 1B1 4-5, 0B0 3-4, 0B1 5-6.
  std::vector<StageTimes> stages(2, {1, 1, 0});
  EXPECT_DOUBLE_EQ(simulate(schedule, stages, {{0, 0}}).pipeline_us, 6);
  // What is there before the first activation costs nothing.
  stages[1].ready_us = 1;
  EXPECT_DOUBLE_EQ(simulate(schedule, stages, {{0, 0}}).pipeline_us, 6);
  // 1F0 3-4, 1B0 4-5, 1F1 5-6, 1B1 6-7, 0B0 5-6, 0B1 7-8.
  stages[1].ready_us = 3;
  const Simulation late = simulate(schedule, stages, {{0, 0}});
  EXPECT_DOUBLE_EQ(late.pipeline_us, 8);
  EXPECT_EQ(late.end_us, (std::vector<double>{8, 7}));
  EXPECT_DOUBLE_EQ(late.busy_us[1], 4);
}

// With forward and backward in one proportion, the longest stage sets the pace: the time is the sum
// of the stages plus (B - 1) times the longest (Alpa, section 5.1). What the stage search
// minimises.
TEST(Simulator, UnevenStagesTakeTheSumPlusTheLongest) {
  std::mt19937_64 random(9);
  for (int trial = 0; trial < 300; ++trial) {
    const int num_stages = 1 + static_cast<int>(random() % 6);
    const int num_microbatches = num_stages + static_cast<int>(random() % 20);
    std::vector<StageTimes> stages;
    double sum = 0;
    double longest = 0;
    for (int s = 0; s < num_stages; ++s) {
      const double forward = 1 + static_cast<double>(random() % 100) / 10;
      stages.push_back({forward, forward, forward});
      sum += 3 * forward;
      longest = std::max(longest, 3 * forward);
    }
    const double expected = sum + (num_microbatches - 1) * longest;
    const std::vector<EdgeTimes> edges(static_cast<std::size_t>(num_stages - 1));
    const auto time = [&](ScheduleKind kind) {
      return simulate(makeSchedule({kind, num_stages, 1, num_microbatches}), stages, edges).time_us;
    };
    EXPECT_NEAR(time(ScheduleKind::kGPipe), expected, 1e-9 * expected);
    EXPECT_LE(time(ScheduleKind::k1F1B), expected * (1 + 1e-9));
    EXPECT_GE(time(ScheduleKind::k1F1B), num_microbatches * longest * (1 - 1e-9));
  }
}

TEST(Simulator, RefusesWhatCannotRun) {
  const auto code = [](const Schedule& schedule, const std::vector<StageTimes>& stages,
                       TransferTiming timing) -> std::string {
    try {
      simulate(schedule, stages, std::vector<EdgeTimes>(schedule.edges.size()), timing);
    } catch (const Error& error) {
      return error.code();
    }
    return "none";
  };
  Schedule schedule = makeSchedule({ScheduleKind::k1F1B, 2, 1, 2});
  const std::vector<StageTimes> stages(2, {1, 1, 1});
  EXPECT_EQ(code(schedule, stages, TransferTiming::kOverlapped), "none");
  EXPECT_EQ(code(schedule, {{1, 1, 1}}, TransferTiming::kOverlapped), "E554");
  EXPECT_EQ(code(schedule, {{1, 1, 1}, {-1, 1, 1}}, TransferTiming::kOverlapped), "E554");
  auto& list = schedule.actions[0];
  std::iter_swap(std::ranges::find(list, parseAction("0SEND_F1")),
                 std::ranges::find(list, parseAction("0RECV_B0")));
  EXPECT_EQ(code(schedule, stages, TransferTiming::kBlocking), "E554");
  std::erase(schedule.actions[1], parseAction("1B1"));
  EXPECT_EQ(code(schedule, stages, TransferTiming::kOverlapped), "E554");
}

}  // namespace
}  // namespace shardwright
