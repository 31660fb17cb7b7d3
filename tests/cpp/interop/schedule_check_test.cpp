// The checker on schedules that must pass and on orders planted to fail.
#include "interop/schedule_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "interop/schedule.h"

namespace shardwright {
namespace {

constexpr std::pair<TransferModel, CommunicatorScope> kModels[] = {
    {TransferModel::kRendezvous, CommunicatorScope::kStagePair},
    {TransferModel::kQueued, CommunicatorScope::kStagePair},
    {TransferModel::kQueued, CommunicatorScope::kStagePairDirection},
    {TransferModel::kQueued, CommunicatorScope::kRankPair},
};

// The chain and some edges over several stages, as skip connections make them.
std::vector<StageEdge> randomEdges(std::mt19937_64& random, int num_stages) {
  std::vector<StageEdge> edges = chainEdges(num_stages);
  for (int tries = static_cast<int>(random() % 4); tries > 0; --tries) {
    const std::size_t a = random() % static_cast<std::size_t>(num_stages);
    const std::size_t b = random() % static_cast<std::size_t>(num_stages);
    if (a < b) edges.push_back({StageId(a), StageId(b), random() % 4 != 0});
  }
  return edges;
}

// Computations in an order that no schedule has: a random linear order of everything, stages on
// random ranks.
Schedule randomOrder(std::mt19937_64& random, int num_stages, int num_ranks, int num_microbatches) {
  std::vector<std::int32_t> rank_of_stage;
  for (int s = 0; s < num_stages; ++s) {
    rank_of_stage.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(num_ranks)));
  }
  const std::vector<StageEdge> edges = randomEdges(random, num_stages);
  // Per microbatch: forwards in stage order, then backwards in reverse.
  std::vector<int> done(static_cast<std::size_t>(num_microbatches), 0);
  std::vector<std::vector<Action>> lists(static_cast<std::size_t>(num_ranks));
  for (int left = 2 * num_stages * num_microbatches; left > 0;) {
    const auto m = random() % static_cast<std::size_t>(num_microbatches);
    if (done[m] == 2 * num_stages) continue;
    const int step = done[m]++;
    const auto stage =
        static_cast<std::size_t>(step < num_stages ? step : 2 * num_stages - 1 - step);
    auto& list = lists[static_cast<std::size_t>(rank_of_stage[stage])];
    const auto microbatch = static_cast<std::int32_t>(m);
    if (step < num_stages) {
      list.push_back({StageId(stage), ActionKind::kForward, microbatch, {}});
    } else if (random() % 2 == 0) {
      list.push_back({StageId(stage), ActionKind::kBackward, microbatch, {}});
    } else {
      list.push_back({StageId(stage), ActionKind::kBackwardInput, microbatch, {}});
      list.push_back({StageId(stage), ActionKind::kBackwardWeight, microbatch, {}});
    }
    --left;
  }
  return addTransfers(lists, rank_of_stage, edges, num_microbatches);
}

TEST(ScheduleCheck, TenThousandRandomPlansAndSchedulesFinish) {
  std::mt19937_64 random(20);
  for (int trial = 0; trial < 10'000; ++trial) {
    const int num_ranks = 1 + static_cast<int>(random() % 7);
    const int num_microbatches = 1 + static_cast<int>(random() % 9);
    Schedule schedule;
    if (trial % 5 == 4) {
      const int num_stages = 1 + static_cast<int>(random() % 9);
      schedule = randomOrder(random, num_stages, num_ranks, num_microbatches);
    } else {
      ScheduleRequest request{static_cast<ScheduleKind>(trial % 5), num_ranks, 1, num_microbatches};
      if (request.kind == ScheduleKind::kInterleaved1F1B) {
        request.stages_per_rank = 1 + static_cast<int>(random() % 4);
      }
      request.edges = randomEdges(random, num_ranks * request.stages_per_rank);
      schedule = makeSchedule(request);
    }
    for (const auto& [model, scope] : kModels) {
      const ScheduleReport report = checkSchedule(schedule, model, scope);
      ASSERT_TRUE(report.ok()) << toText(schedule) << report.text();
    }
    const Schedule early = postReceivesEarly(schedule);
    for (const auto& [model, scope] : kModels) {
      if (model == TransferModel::kRendezvous) continue;
      const ScheduleReport report = checkSchedule(early, model, scope);
      ASSERT_TRUE(report.ok()) << toText(early) << report.text();
    }
  }
}

std::vector<Action> computationsOf(const std::vector<Action>& list) {
  std::vector<Action> found;
  std::ranges::copy_if(list, std::back_inserter(found),
                       [](const Action& action) { return !action.isTransfer(); });
  return found;
}

// How many computations come after each receive up to the one that needs it, at least and at most.
std::pair<int, int> computationsAhead(const std::vector<Action>& list) {
  int least = 1000;
  int most = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Action& receive = list[i];
    if (!receive.isTransfer() || receive.isSend()) continue;
    const bool is_forward = receive.kind == ActionKind::kReceiveForward;
    int between = 0;
    for (std::size_t j = i + 1; j < list.size(); ++j) {
      const Action& action = list[j];
      if (action.isTransfer()) continue;
      const bool needs = action.stage == receive.stage && action.microbatch == receive.microbatch &&
                         action.kind != ActionKind::kBackwardWeight &&
                         (action.kind == ActionKind::kForward) == is_forward;
      if (needs) break;
      ++between;
    }
    least = std::min(least, between);
    most = std::max(most, between);
  }
  return {least, most};
}

TEST(EarlyReceives, GPipesLastStageReceivesWhileItComputes) {
  const Schedule schedule = makeSchedule({ScheduleKind::kGPipe, 2, 1, 3});
  const std::string text = toText(postReceivesEarly(schedule));
  EXPECT_EQ(text.substr(text.find('\n') + 1),
            "1RECV_F0,1RECV_F1,1F0,1RECV_F2,1F1,1F2,1B0,1SEND_B0,1B1,1SEND_B1,1B2,1SEND_B2\n");
  EXPECT_EQ(computationsAhead(schedule.actions[1]).second, 0);
}

TEST(EarlyReceives, MoveOnlyReceivesAndKeepTheOrderBetweenTwoRanks) {
  for (const ScheduleKind kind : {ScheduleKind::kGPipe, ScheduleKind::k1F1B,
                                  ScheduleKind::kInterleaved1F1B, ScheduleKind::kZeroBubble}) {
    const int stages_per_rank = kind == ScheduleKind::kInterleaved1F1B ? 2 : 1;
    const Schedule before = makeSchedule({kind, 4, stages_per_rank, 8});
    const Schedule after = postReceivesEarly(before);
    for (std::size_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(computationsOf(before.actions[rank]), computationsOf(after.actions[rank]));
      for (std::int32_t peer = 0; peer < 4; ++peer) {
        const auto between = [&](const Schedule& schedule) {
          std::vector<Action> found;
          for (const Action& action : schedule.actions[rank]) {
            if (action.isTransfer() && schedule.rank_of_stage[action.peer.index()] == peer) {
              found.push_back(action);
            }
          }
          return found;
        };
        EXPECT_EQ(between(before), between(after));
      }
      // None is earlier than it was by more than one computation.
      EXPECT_LE(computationsAhead(after.actions[rank]).second,
                std::max(1, computationsAhead(before.actions[rank]).second));
    }
  }
}

struct PlantedOrder {
  ScheduleRequest request;
  int rank;
  const char* first;  // these two actions of the rank change places
  const char* second;
};

// Two transfers between the same stages, exchanged on one side only: the sides can never agree.
std::vector<PlantedOrder> plantedOrders() {
  using enum ScheduleKind;
  std::vector<StageEdge> skip = chainEdges(4);
  skip.push_back({StageId(0), StageId(3)});
  return {
      {{k1F1B, 2, 1, 3}, 0, "0SEND_F1", "0RECV_B0"},
      {{k1F1B, 2, 1, 3}, 0, "0SEND_F0", "0SEND_F1"},
      {{k1F1B, 2, 1, 3}, 1, "1RECV_F1", "1SEND_B0"},
      {{k1F1B, 2, 1, 3}, 1, "1SEND_B0", "1SEND_B1"},
      {{k1F1B, 4, 1, 8}, 0, "0RECV_B3", "0SEND_F7"},
      {{k1F1B, 4, 1, 8}, 1, "1RECV_F3", "1SEND_B0"},
      {{k1F1B, 4, 1, 8}, 2, "2RECV_B3", "2SEND_F5"},
      {{k1F1B, 4, 1, 8}, 3, "3RECV_F6", "3RECV_F7"},
      {{kGPipe, 3, 1, 4}, 0, "0SEND_F2", "0SEND_F3"},
      {{kGPipe, 3, 1, 4}, 1, "1RECV_F0", "1RECV_F1"},
      {{kGPipe, 3, 1, 4}, 2, "2SEND_B0", "2SEND_B3"},
      {{kGPipe, 3, 1, 4}, 1, "1RECV_B1", "1RECV_B2"},
      {{kZeroBubble, 3, 1, 6}, 0, "0SEND_F5", "0RECV_B3"},
      {{kZeroBubble, 3, 1, 6}, 1, "1SEND_B4", "1SEND_B5"},
      {{kZeroBubble, 3, 1, 6}, 2, "2RECV_F4", "2RECV_F5"},
      {{kInterleaved1F1B, 2, 2, 4}, 0, "0SEND_F0", "0SEND_F1"},
      {{kInterleaved1F1B, 2, 2, 4}, 1, "3RECV_F2", "3SEND_B1"},
      {{k1F1B, 4, 1, 4, skip}, 0, "0SEND_F0>3", "0SEND_F1>3"},
      {{k1F1B, 4, 1, 4, skip}, 3, "3SEND_B0>0", "3SEND_B2>0"},
  };
}

Schedule planted(const PlantedOrder& order) {
  Schedule schedule = makeSchedule(order.request);
  auto& list = schedule.actions[static_cast<std::size_t>(order.rank)];
  const auto first = std::ranges::find(list, parseAction(order.first));
  const auto second = std::ranges::find(list, parseAction(order.second));
  EXPECT_TRUE(first != list.end() && second != list.end()) << order.first << order.second;
  std::iter_swap(first, second);
  return schedule;
}

TEST(ScheduleCheck, FindsNineteenPlantedOrders) {
  ASSERT_EQ(plantedOrders().size(), 19U);
  for (const PlantedOrder& order : plantedOrders()) {
    const ScheduleReport report = checkSchedule(planted(order));
    EXPECT_FALSE(report.deadlock.empty())
        << toString(order.request.kind) << " " << order.first << " " << order.second;
    // Also where nothing but the order on the pair's communicator blocks.
    const ScheduleReport queued =
        checkSchedule(planted(order), TransferModel::kQueued, CommunicatorScope::kStagePair);
    EXPECT_FALSE(queued.deadlock.empty())
        << toString(order.request.kind) << " " << order.first << " " << order.second;
  }
}

// The twentieth: no two sides disagree, yet 0 waits for 2, 2 for 1 and 1 for 0.
TEST(ScheduleCheck, FindsACircleOfThreeRanksAndSaysWhoWaitsForWhom) {
  std::vector<StageEdge> edges = chainEdges(3);
  edges.push_back({StageId(0), StageId(2), false});
  Schedule schedule = makeSchedule({ScheduleKind::k1F1B, 3, 1, 1, edges});
  auto& first = schedule.actions[0];
  std::iter_swap(std::ranges::find(first, parseAction("0SEND_F0")),
                 std::ranges::find(first, parseAction("0SEND_F0>2")));
  EXPECT_TRUE(checkSchedule(schedule).deadlock.empty());  // one side alone does no harm
  auto& last = schedule.actions[2];
  std::iter_swap(std::ranges::find(last, parseAction("2RECV_F0")),
                 std::ranges::find(last, parseAction("2RECV_F0<0")));
  const ScheduleReport report = checkSchedule(schedule);
  EXPECT_EQ(report.text(),
            "rank 0 waits at 0SEND_F0>2 for rank 2, which is at 2RECV_F0\n"
            "rank 1 waits at 1RECV_F0 for rank 0, which is at 0SEND_F0>2\n"
            "rank 2 waits at 2RECV_F0 for rank 1, which is at 1RECV_F0\n");
  // Where ranks go on after posting, this order is fine.
  EXPECT_TRUE(checkSchedule(schedule, TransferModel::kQueued).ok());
}

TEST(ScheduleCheck, NamesWhatIsMissingDoubledOrMisplaced) {
  const Schedule good = makeSchedule({ScheduleKind::k1F1B, 2, 1, 2});
  const auto without = [&](int rank, const char* text) {
    Schedule schedule = good;
    std::erase(schedule.actions[static_cast<std::size_t>(rank)], parseAction(text));
    return checkSchedule(schedule);
  };
  EXPECT_EQ(without(1, "1B1").errors[0], "1I1 is missing");
  EXPECT_EQ(without(0, "0F1").errors[0], "0F1 is missing");
  const ScheduleReport lost = without(1, "1RECV_F1");
  EXPECT_EQ(lost.errors[0], "1RECV_F1 is missing");
  EXPECT_FALSE(lost.deadlock.empty());
  Schedule twice = good;
  twice.actions[0].push_back(parseAction("0B1"));
  EXPECT_EQ(checkSchedule(twice).errors[0], "0B1 occurs twice");
  Schedule foreign = good;
  foreign.actions[0].push_back(parseAction("7F0"));
  EXPECT_FALSE(checkSchedule(foreign).ok());
  Schedule wrong_rank = good;
  wrong_rank.actions[0].push_back(parseAction("1B1"));
  EXPECT_EQ(checkSchedule(wrong_rank).errors[0], "1B1 is in the list of rank 0, not of 1");
}

TEST(ScheduleCheck, NamesComputationsBeforeWhatTheyNeed) {
  Schedule schedule = makeSchedule({ScheduleKind::k1F1B, 2, 1, 2});
  auto& last = schedule.actions[1];
  std::iter_swap(std::ranges::find(last, parseAction("1RECV_F1")),
                 std::ranges::find(last, parseAction("1F0")));
  // 1RECV_F0 1RECV_F1 1B0 1F0: the backward comes before its forward.
  const ScheduleReport report = checkSchedule(schedule);
  ASSERT_TRUE(report.errors.empty()) << report.text();
  std::iter_swap(std::ranges::find(last, parseAction("1B0")),
                 std::ranges::find(last, parseAction("1F0")));
  EXPECT_EQ(checkSchedule(schedule).errors[0], "1B0 comes before its F");
  Schedule early = makeSchedule({ScheduleKind::k1F1B, 2, 1, 1});
  std::iter_swap(std::ranges::find(early.actions[0], parseAction("0F0")),
                 std::ranges::find(early.actions[0], parseAction("0SEND_F0")));
  EXPECT_EQ(checkSchedule(early).errors[0], "0SEND_F0 comes before its computation");
  Schedule starved = makeSchedule({ScheduleKind::kZeroBubble, 2, 1, 1});
  std::iter_swap(std::ranges::find(starved.actions[1], parseAction("1I0")),
                 std::ranges::find(starved.actions[1], parseAction("1W0")));
  EXPECT_EQ(checkSchedule(starved).errors[0], "1W0 comes before its I");
}

}  // namespace
}  // namespace shardwright
