#include "intraop/solve.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "intraop/random_problem.h"

namespace shardwright {
namespace {

using Choice = std::vector<int32_t>;

// A path of nodes with the same costs and the same edge table.
Problem makeChain(int length, std::vector<int64_t> costs, std::vector<int64_t> table) {
  ProblemBuilder builder("chain");
  const auto n = static_cast<int32_t>(costs.size());
  const CostTableId id = builder.addTable(n, n, std::move(table));
  ChoiceNodeId previous;
  for (int i = 0; i < length; ++i) {
    const ChoiceNodeId node = builder.addNode(costs);
    if (i > 0) builder.addEdge(previous, node, id);
    previous = node;
  }
  return std::move(builder).build();
}

void expectOptimum(const Problem& problem, int64_t cost) {
  const Answer answer = solve(problem);
  EXPECT_EQ(answer.status, SolveStatus::kOptimal) << problem.name();
  EXPECT_EQ(answer.cost, cost) << problem.name();
  EXPECT_EQ(answer.lower_bound, cost) << problem.name();
  EXPECT_EQ(answer.gap, 0.0) << problem.name();
}

TEST(Solve, EmptyProblemCostsNothing) {
  const Answer answer = solve(ProblemBuilder().build());
  EXPECT_EQ(answer.status, SolveStatus::kOptimal);
  EXPECT_EQ(answer.cost, 0);
}

TEST(Solve, NodesWithoutEdgesTakeTheirCheapest) {
  ProblemBuilder builder;
  builder.addNode({5});
  builder.addNode({9, 4, 7});
  builder.addNode({kForbidden, 3, -2});
  expectOptimum(std::move(builder).build(), 5 + 4 - 2);
}

TEST(Solve, Chains) {
  // Changing costs 10, staying 0: all nodes take strategy 1.
  expectOptimum(makeChain(6, {3, 2}, {0, 10, 10, 0}), 12);
  // Alternating is free, staying costs 1 and strategy 1 costs 1 more: 0 1 0 1 0 costs 2.
  expectOptimum(makeChain(5, {0, 1}, {1, 0, 0, 1}), 2);
  // Staying is forbidden: three nodes of two colours use the cheap one twice.
  expectOptimum(makeChain(3, {0, 100}, {kForbidden, 0, 0, kForbidden}), 100);
  // Costs of 2^40 stay exact: 7 nodes at 2^40 + 1.
  expectOptimum(makeChain(7, {(int64_t{1} << 40) + 1, int64_t{1} << 41}, {0, 0, 0, 0}),
                7 * ((int64_t{1} << 40) + 1));
  // A thousand equal layers: 1 2 1 2 ... costs 6 per pair, staying at 0 costs 3 per node.
  expectOptimum(makeChain(1000, {3, 2, 4}, {0, 5, 1, 5, 9, 0, 0, 0, 9}), 3000);
}

TEST(Solve, OddCycleOfTwoColoursIsInfeasible) {
  for (int length : {3, 5, 7}) {
    ProblemBuilder builder("odd cycle");
    const CostTableId differ = builder.addTable(2, 2, {kForbidden, 0, 0, kForbidden});
    for (int i = 0; i < length; ++i) builder.addNode({0, 0});
    for (int i = 0; i < length; ++i) {
      builder.addEdge(ChoiceNodeId(static_cast<size_t>(i)),
                      ChoiceNodeId(static_cast<size_t>((i + 1) % length)), differ);
    }
    const Answer answer = solve(std::move(builder).build());
    EXPECT_EQ(answer.status, SolveStatus::kInfeasible);
    EXPECT_FALSE(answer.smallest_peak_bytes);
  }
}

TEST(Solve, EvenCycleOfTwoColours) {
  ProblemBuilder builder("even cycle");
  const CostTableId differ = builder.addTable(2, 2, {kForbidden, 0, 0, kForbidden});
  for (int i = 0; i < 6; ++i) builder.addNode({i, 10 * i});  // 0 1 2 3 4 5 against ten times that
  for (size_t i = 0; i < 6; ++i) {
    builder.addEdge(ChoiceNodeId(i), ChoiceNodeId((i + 1) % 6), differ);
  }
  // Even nodes cheap: 0+2+4 + 10+30+50 = 96; odd nodes cheap: 1+3+5 + 0+20+40 = 69.
  expectOptimum(std::move(builder).build(), 69);
}

TEST(Solve, DiamondPaysTheJoinOnce) {
  // a -> b, c -> d; b and c follow a, d prefers 1 by 5, leaving costs 3 on each of two edges.
  ProblemBuilder builder("diamond");
  const ChoiceNodeId a = builder.addNode({0, 4});
  const ChoiceNodeId b = builder.addNode({0, 0});
  const ChoiceNodeId c = builder.addNode({0, 0});
  const ChoiceNodeId d = builder.addNode({5, 0});
  const CostTableId leave = builder.addTable(2, 2, {0, 3, 3, 0});
  builder.addEdge(a, b, leave);
  builder.addEdge(a, c, leave);
  builder.addEdge(b, d, leave);
  builder.addEdge(c, d, leave);
  expectOptimum(std::move(builder).build(), 4);  // all 1; all 0 costs 5, a switch costs 6
}

TEST(Solve, ParallelEdgesAddUp) {
  ProblemBuilder builder("parallel");
  const ChoiceNodeId a = builder.addNode({0, 0});
  const ChoiceNodeId b = builder.addNode({0, 3});
  builder.addEdge(a, b, builder.addTable(2, 2, {2, 0, 2, 0}));
  builder.addEdge(b, a, builder.addTable(2, 2, {2, 2, 0, 0}));
  expectOptimum(std::move(builder).build(), 3);  // b = 1; one edge alone would prefer b = 0
}

TEST(Solve, SelfEdgePricesTheDiagonal) {
  ProblemBuilder builder("self");
  const ChoiceNodeId a = builder.addNode({0, 1});
  builder.addEdge(a, a, builder.addTable(2, 2, {5, -100, -100, 2}));
  expectOptimum(std::move(builder).build(), 3);
}

TEST(Solve, AliasKeepsAParametersSpec) {
  ProblemBuilder builder("alias");
  const ChoiceNodeId before = builder.addNode({0, 9});
  const ChoiceNodeId after = builder.addNode({9, 7, 0});
  const int64_t specs_before[] = {1, 2};
  const int64_t specs_after[] = {1, 2, 3};
  builder.addAlias(before, after, specs_before, specs_after);
  expectOptimum(std::move(builder).build(), 9);  // spec 1: 0 + 9; spec 2: 9 + 7
}

// Cheap strategies hold 10 bytes, dear ones 1; `alive` nodes overlap at every point.
Problem makeOverlap(int num_nodes, int alive, int64_t limit) {
  ProblemBuilder builder("overlap");
  for (int i = 0; i < num_nodes; ++i) {
    builder.addNode({0, 5 + i}, {{{i, i + alive}, {10, 1}}});
  }
  builder.setMemoryLimit(limit);
  return std::move(builder).build();
}

TEST(Solve, MemoryLimitBuysTheCheapestBytes) {
  // Two of three overlapping nodes may be large: the dearest to shrink (5, 6, 7) stays large.
  expectOptimum(makeOverlap(3, 3, 30), 0);
  expectOptimum(makeOverlap(3, 3, 21), 5);
  expectOptimum(makeOverlap(3, 3, 12), 11);
  expectOptimum(makeOverlap(3, 3, 3), 18);
  // Ten nodes, two alive at a time, one may be large: shrink 0, 2, 4, 6, 8.
  expectOptimum(makeOverlap(10, 2, 11), 5 + 7 + 9 + 11 + 13);
}

TEST(Solve, SeveralPiecesOfOneNodeCountWhereTheyLie) {
  ProblemBuilder builder("pieces");
  builder.addNode({0, 1}, {{{0, 2}, {4, 0}}, {{4, 6}, {9, 0}}});
  builder.addNode({0, 2}, {{{1, 3}, {4, 0}}});
  builder.addNode({0, 4}, {{{2, 5}, {4, 0}}});
  builder.setMemoryLimit(8);
  // At point 4 the first holds 9: it must shrink (1); then 4 + 4 fits everywhere.
  expectOptimum(std::move(builder).build(), 1);
}

TEST(Solve, InfeasibleLimitNamesTheSmallestThatWouldDo) {
  const Answer answer = solve(makeOverlap(3, 3, 2));
  EXPECT_EQ(answer.status, SolveStatus::kInfeasible);
  EXPECT_EQ(answer.proof, InfeasibilityProof::kMemoryFloor);
  EXPECT_EQ(answer.smallest_peak_bytes, 3);
  EXPECT_EQ(answer.smallest_peak_bound_bytes, 3);
  EXPECT_TRUE(answer.choice.empty());
}

TEST(Solve, ZeroLimitIsALimit) {
  ProblemBuilder builder;
  builder.addNode({0, 8}, {{{0, 1}, {1, 0}}});
  builder.setMemoryLimit(0);
  expectOptimum(std::move(builder).build(), 8);
}

TEST(Solve, CostsPastTheExactRangeKeepAValidBound) {
  // Sums near 2^59 cannot be exact in double: the bound may be a few units low, never high.
  const int64_t big = int64_t{1} << 55;
  const Problem problem = makeChain(8, {big + 3, big + 1}, {0, 1, 1, 0});
  const Answer answer = solve(problem);
  EXPECT_LE(answer.cost, 8 * big + 8 + 32);
  ASSERT_TRUE(answer.lower_bound);
  EXPECT_LE(*answer.lower_bound, 8 * big + 8);
  EXPECT_LT(answer.gap, 1e-12);
}

// Found by fuzzing: the cut at the incumbent's cost was rounded to the nearest double, above it.
TEST(Solve, BoundNeverPassesACostThatDoubleCannotHold) {
  ProblemBuilder builder("rounded");
  const ChoiceNodeId a = builder.addNode({0, -7});
  const ChoiceNodeId b = builder.addNode({2, 2});
  builder.addEdge(a, b, builder.addTable(2, 2, {-100'000'000'000'000'000, 0, 0, 1}));
  builder.addEdge(a, b, builder.addTable(2, 2, {11'594'731, 0, 0, 1}));
  builder.addEdge(b, a, builder.addTable(2, 2, {1, 10'551'739, 4, 5}));
  const Answer answer = solve(std::move(builder).build());
  const int64_t cost = -100'000'000'000'000'000 + 11'594'731 + 2 + 1;
  EXPECT_EQ(answer.cost, cost);
  ASSERT_TRUE(answer.lower_bound);
  EXPECT_LE(*answer.lower_bound, cost);
  EXPECT_LT(answer.gap, 1e-12);
}

// Found by fuzzing: one cost past 2^51 makes units of two; presolve leaves nothing to enumerate,
// which was taken for a proof that nothing is cheaper than the choice at 11.
TEST(Solve, CoarseUnitsWithNothingLeftToEnumerate) {
  ProblemBuilder builder("coarse");
  const ChoiceNodeId a = builder.addNode({1, 2});
  const ChoiceNodeId b = builder.addNode({3, 4});
  builder.addEdge(a, b, builder.addTable(2, 2, {2'900'751'161'592'897, 4, 5, 6}));
  builder.addEdge(b, a, builder.addTable(2, 2, {1, 1, 0, 9}));
  const Answer answer = solve(std::move(builder).build());
  EXPECT_GE(answer.cost, 9);  // (0, 1): 1 + 4 + 4 + 0
  EXPECT_LE(answer.cost, 11);
  ASSERT_TRUE(answer.lower_bound);
  EXPECT_LE(*answer.lower_bound, 9);
  EXPECT_GE(*answer.lower_bound, 5);
}

TEST(Solve, SameInputGivesTheSameChoice) {
  std::mt19937_64 random(7);
  testing::RandomProblemOptions shape;
  shape.min_nodes = shape.max_nodes = 12;
  const Problem problem = testing::makeRandomProblem(random, shape);
  const Answer first = solve(problem);
  for (int i = 0; i < 5; ++i) {
    const Answer again = solve(problem);
    EXPECT_EQ(again.choice, first.choice);
    EXPECT_EQ(again.lower_bound, first.lower_bound);
  }
}

// Dense graph, long lists, tight memory: far from solved in a second.
Problem makeHardProblem() {
  std::mt19937_64 random(3);
  ProblemBuilder builder("hard");
  const size_t num_nodes = 120;
  const int32_t num_values = 12;
  for (size_t i = 0; i < num_nodes; ++i) {
    std::vector<int64_t> costs;
    MemoryPiece piece{{static_cast<int64_t>(i) - 30, static_cast<int64_t>(i) + 30}, {}};
    for (int32_t a = 0; a < num_values; ++a) {
      costs.push_back(static_cast<int64_t>(random() % 1000));
      piece.bytes.push_back(static_cast<int64_t>(random() % 1000));
    }
    builder.addNode(std::move(costs), {std::move(piece)});
  }
  for (size_t i = 0; i < num_nodes; ++i) {
    for (size_t j = i + 1; j < std::min(num_nodes, i + 12); ++j) {
      std::vector<int64_t> costs;
      for (int32_t k = 0; k < num_values * num_values; ++k) {
        costs.push_back(static_cast<int64_t>(random() % 1000));
      }
      builder.addEdge(ChoiceNodeId(i), ChoiceNodeId(j),
                      builder.addTable(num_values, num_values, std::move(costs)));
    }
  }
  builder.setMemoryLimit(20'000);
  return std::move(builder).build();
}

TEST(Solve, TimeLimitHolds) {
  SolveOptions options;
  options.time_limit_s = 1.0;
  options.smallest_peak_time_s = 0.0;
  const auto start = std::chrono::steady_clock::now();
  const Answer answer = solve(makeHardProblem(), options);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  EXPECT_LT(elapsed.count(), 3.0);
  EXPECT_NE(answer.status, SolveStatus::kOptimal);
  EXPECT_NE(answer.status, SolveStatus::kInfeasible);
}

TEST(Solve, InterruptStopsEarly) {
  std::atomic<bool> interrupt{true};
  SolveOptions options;
  options.interrupt = &interrupt;
  const auto start = std::chrono::steady_clock::now();
  const Answer answer = solve(makeHardProblem(), options);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  EXPECT_LT(elapsed.count(), 3.0);
  EXPECT_NE(answer.status, SolveStatus::kOptimal);
}

TEST(Solve, ProgressNeverWorsens) {
  std::vector<SolveProgress> seen;
  SolveOptions options;
  options.time_limit_s = 1.0;
  options.on_progress = [&](const SolveProgress& progress) { seen.push_back(progress); };
  solve(makeHardProblem(), options);
  EXPECT_FALSE(seen.empty());
  EXPECT_LE(seen.size(), 30u);
  for (size_t i = 1; i < seen.size(); ++i) {
    if (seen[i - 1].cost && seen[i].cost) {
      EXPECT_LE(*seen[i].cost, *seen[i - 1].cost);
    }
    if (seen[i - 1].lower_bound && seen[i].lower_bound) {
      EXPECT_GE(*seen[i].lower_bound, *seen[i - 1].lower_bound);
    }
  }
}

}  // namespace
}  // namespace shardwright
