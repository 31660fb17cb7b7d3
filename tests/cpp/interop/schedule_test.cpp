// Schedules against their published shape: order, memory, text.
#include "interop/schedule.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "interop/schedule_check.h"

namespace shardwright {
namespace {

std::string computationsOf(const Schedule& schedule, int rank) {
  std::string text;
  for (const Action& action : schedule.actions[static_cast<std::size_t>(rank)]) {
    if (action.isTransfer()) continue;
    if (!text.empty()) text += ' ';
    text += toText(action);
  }
  return text;
}

std::string codeOf(const auto& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return "none";
}

TEST(Schedule, OneForwardOneBackwardOfTwoRanksWithTransfers) {
  const Schedule schedule = makeSchedule({ScheduleKind::k1F1B, 2, 1, 3});
  EXPECT_EQ(toText(schedule),
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0F2,0SEND_F2,0RECV_B1,0B1,0RECV_B2,0B2\n"
            "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1RECV_F2,1SEND_B1,1F2,1B2,1SEND_B2\n");
}

TEST(Schedule, GPipeRunsAllForwardsFirst) {
  const Schedule schedule = makeSchedule({ScheduleKind::kGPipe, 3, 1, 3});
  for (int rank = 0; rank < 3; ++rank) {
    const std::string s = std::to_string(rank);
    EXPECT_EQ(computationsOf(schedule, rank),
              s + "F0 " + s + "F1 " + s + "F2 " + s + "B0 " + s + "B1 " + s + "B2");
  }
}

// The picture of the Megatron-LM paper, 2 ranks with 2 stages each and 4 microbatches: rank 0 runs
// two groups of two microbatches, (V - 1) * 2 + 2 * (2 - 1) + 1 = 5 forwards ahead.
TEST(Schedule, InterleavedFollowsItsPaper) {
  const Schedule schedule = makeSchedule({ScheduleKind::kInterleaved1F1B, 2, 2, 4});
  EXPECT_EQ(computationsOf(schedule, 0),
            "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3");
  EXPECT_EQ(computationsOf(schedule, 1),
            "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3");
}

// ZB-H1: the last rank keeps weight gradients back when the last microbatches come.
TEST(Schedule, ZeroBubbleKeepsWeightGradientsBackAtTheEnd) {
  const Schedule schedule = makeSchedule({ScheduleKind::kZeroBubble, 2, 1, 4});
  EXPECT_EQ(computationsOf(schedule, 0), "0F0 0F1 0I0 0W0 0F2 0I1 0W1 0F3 0I2 0W2 0I3 0W3");
  EXPECT_EQ(computationsOf(schedule, 1), "1F0 1I0 1W0 1F1 1I1 1W1 1F2 1I2 1F3 1I3 1W2 1W3");
}

TEST(Schedule, MicrobatchesInFlightAreThoseOfThePapers) {
  for (int num_stages = 1; num_stages <= 9; ++num_stages) {
    for (int num_microbatches = 1; num_microbatches <= 20; ++num_microbatches) {
      for (const ScheduleKind kind :
           {ScheduleKind::kGPipe, ScheduleKind::k1F1B, ScheduleKind::kZeroBubble}) {
        const auto counted = checkSchedule(makeSchedule({kind, num_stages, 1, num_microbatches}));
        ASSERT_TRUE(counted.ok()) << counted.text();
        for (int stage = 0; stage < num_stages; ++stage) {
          const int expected =
              microbatchesInFlight(kind, num_stages - 1 - stage, num_stages, num_microbatches);
          const int found = counted.most_in_flight[static_cast<std::size_t>(stage)];
          if (kind == ScheduleKind::kZeroBubble) {
            EXPECT_LE(found, expected);
            EXPECT_LE(expected, std::min(num_stages, num_microbatches));  // 1F1B's first stage
          } else {
            EXPECT_EQ(found, expected) << toString(kind) << " " << num_stages << " " << stage;
          }
        }
      }
    }
  }
}

TEST(Schedule, StagesOfOneRankSendNothing) {
  const Schedule schedule = makeSchedule({ScheduleKind::kInterleaved1F1B, 1, 3, 4});
  for (const Action& action : schedule.actions[0]) EXPECT_FALSE(action.isTransfer());
}

TEST(Schedule, EdgesWithoutGradientAreSentOneWay) {
  const Schedule schedule = makeSchedule(
      {ScheduleKind::k1F1B,
       3,
       1,
       2,
       {{StageId(0), StageId(1)}, {StageId(1), StageId(2)}, {StageId(0), StageId(2), false}}});
  EXPECT_TRUE(checkSchedule(schedule).ok());
  const std::string text = toText(schedule);
  EXPECT_NE(text.find("0SEND_F0>2"), std::string::npos);
  EXPECT_NE(text.find("2RECV_F0<0"), std::string::npos);
  EXPECT_EQ(text.find("2SEND_B0>0"), std::string::npos);
}

TEST(Schedule, ActionsSurviveTheirText) {
  for (const char* text : {"0F0", "12B345", "0I2", "3W1", "0SEND_F1", "1RECV_F1", "1SEND_B2",
                           "0RECV_B2", "0SEND_F1>3", "3RECV_F1<0", "3SEND_B1>0", "0RECV_B1<3"}) {
    EXPECT_EQ(toText(parseAction(text)), text);
  }
  EXPECT_EQ(parseAction("0SEND_F1>1"), parseAction("0SEND_F1"));
}

TEST(Schedule, RefusesTextThatIsNoAction) {
  for (const char* text : {"", "F0", "0F", "0X1", "-1F0", "0F-1", "0F0 ", "0F0>1", "0SEND_F1<1",
                           "0SEND_B1", "1SEND_F0>0", "1SEND_F0>1", "0UNSHARD", "99999999999F0"}) {
    EXPECT_EQ(codeOf([&] { parseAction(text); }), "E553") << text;
  }
}

TEST(Schedule, RefusesRequestsThatMakeNoSense) {
  EXPECT_EQ(codeOf([] { makeSchedule({ScheduleKind::kGPipe, 0, 1, 1}); }), "E551");
  EXPECT_EQ(codeOf([] { makeSchedule({ScheduleKind::kGPipe, 1, 1, 0}); }), "E551");
  EXPECT_EQ(codeOf([] { makeSchedule({ScheduleKind::k1F1B, 2, 2, 4}); }), "E551");
  EXPECT_EQ(codeOf([] {
              makeSchedule({ScheduleKind::k1F1B, 2, 1, 4, {{StageId(1), StageId(0)}}});
            }),
            "E551");
  EXPECT_EQ(codeOf([] { parseScheduleKind("dualpipe"); }), "E551");
  const std::vector edges = chainEdges(2);
  const auto lists = [](const char* first, const char* second) {
    return std::vector<std::vector<Action>>{
        {parseAction("0F0"), parseAction(first), parseAction(second)},
        {parseAction("1F0"), parseAction("1B0")}};
  };
  EXPECT_EQ(codeOf([&] { addTransfers(lists("0B0", "0B0"), {0, 1}, edges, 1); }), "E552");
  EXPECT_EQ(codeOf([&] { addTransfers(lists("0W0", "0I0"), {0, 1}, edges, 1); }), "E552");
  EXPECT_EQ(codeOf([&] { addTransfers(lists("0I0", "0W0"), {0, 1}, edges, 1); }), "none");
}

}  // namespace
}  // namespace shardwright
