#include "intraop/pareto_elimination.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <random>

#include "intraop/presolve.h"
#include "intraop/random_problem.h"

namespace shardwright {
namespace {

using testing::makeRandomProblem;
using testing::RandomProblemOptions;

// Every choice of a reduced problem, tried one by one.
struct Oracle {
  double cheapest = kInfinity;                // within the tracked rows
  std::vector<std::vector<int32_t>> choices;  // within the tracked rows and the cutoff
};

Oracle tryEverything(const ReducedProblem& problem, const std::vector<int32_t>& rows,
                     double cutoff) {
  Oracle oracle;
  std::vector<int32_t> labels(problem.variables().size(), 0);
  while (true) {
    double cost = problem.offset();
    for (size_t v = 0; v < labels.size(); ++v) {
      cost += problem.variables()[v].costs[static_cast<size_t>(labels[v])];
    }
    for (const ReducedEdge& edge : problem.edges()) {
      cost += problem.table(edge.table)
                  .at(labels[static_cast<size_t>(edge.u)], labels[static_cast<size_t>(edge.v)]);
    }
    bool fits = true;
    for (int32_t row : rows) {
      int64_t bytes = 0;
      for (size_t v = 0; v < labels.size(); ++v) {
        for (const MemorySegment& segment : problem.variables()[v].memory) {
          if (segment.row_begin <= row && row < segment.row_end) {
            bytes += segment.excess_bytes[static_cast<size_t>(labels[v])];
          }
        }
      }
      fits &= bytes <= problem.slackBytes()[static_cast<size_t>(row)];
    }
    if (fits && cost != kInfinity) {
      oracle.cheapest = std::min(oracle.cheapest, cost);
      if (cost <= cutoff) oracle.choices.push_back(labels);
    }
    size_t v = 0;
    while (v < labels.size()) {
      if (++labels[v] < problem.variables()[v].numValues()) break;
      labels[v++] = 0;
    }
    if (v == labels.size()) return oracle;
  }
}

// Nodes that live one after the other, each overlapping the next ones: every point in time is a row
// of its own that some choice overloads.
Problem makeStaggered(std::mt19937_64& random) {
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  ProblemBuilder builder("staggered");
  const int64_t num_nodes = pick(5, 8);
  std::vector<ChoiceNodeId> ids;
  for (int64_t n = 0; n < num_nodes; ++n) {
    std::vector<int64_t> costs;
    std::vector<int64_t> bytes;
    for (int s = 0; s < 3; ++s) {
      costs.push_back(pick(0, 30));
      bytes.push_back(pick(0, 20));
    }
    ids.push_back(builder.addNode(costs, {{{n, n + pick(2, 4)}, bytes}}));
  }
  for (int64_t n = 0; n + 1 < num_nodes; ++n) {
    std::vector<int64_t> costs;
    for (int i = 0; i < 9; ++i) costs.push_back(pick(0, 9) == 0 ? kForbidden : pick(0, 20));
    const auto other = static_cast<size_t>(pick(n + 1, num_nodes - 1));
    builder.addEdge(ids[static_cast<size_t>(n)], ids[other], builder.addTable(3, 3, costs));
  }
  builder.setMemoryLimit(pick(15, 45));
  return std::move(builder).build();
}

// A random problem with tight memory, presolved or not, and what is asked of it.
struct Case {
  explicit Case(uint64_t seed) : random(seed) {
    RandomProblemOptions shape;
    shape.min_nodes = 4;
    shape.max_nodes = 7;
    shape.max_strategies = 4;
    shape.edge_probability = 0.15 + 0.1 * static_cast<double>(seed % 4);
    shape.forbidden_share = 0.05 * static_cast<double>(seed % 3);
    shape.max_cost = seed % 5 == 0 ? 3 : 50;  // many ties
    problem.emplace(seed % 4 == 3 ? makeStaggered(random) : makeRandomProblem(random, shape));
    reduction.emplace(*problem);
    layout.emplace(*problem);
    if (seed % 2 == 0) {
      presolve(*reduction, *layout);
    } else {
      pruneByMemory(*reduction, *layout);
    }
  }

  int64_t pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  }

  // One to three different rows.
  std::vector<int32_t> pickRows(int32_t num_rows) {
    std::vector<int32_t> rows(static_cast<size_t>(num_rows));
    for (int32_t row = 0; row < num_rows; ++row) rows[static_cast<size_t>(row)] = row;
    std::shuffle(rows.begin(), rows.end(), random);
    rows.resize(static_cast<size_t>(std::min<int64_t>(num_rows, pick(1, 3))));
    return rows;
  }

  std::vector<double> pickMultipliers(size_t size) {
    std::vector<double> multipliers;
    for (size_t i = 0; i < size; ++i) {
      multipliers.push_back(static_cast<double>(pick(0, 400)) / 100.0);
    }
    return multipliers;
  }

  std::mt19937_64 random;
  std::optional<Problem> problem;
  std::optional<Reduction> reduction;
  std::optional<MemoryLayout> layout;
};

double costWithin(const ReducedProblem& problem, const std::vector<int32_t>& rows,
                  const std::vector<int32_t>& labels) {
  const std::vector<int64_t> overload = problem.overloadOf(labels);
  for (int32_t row : rows) {
    if (overload[static_cast<size_t>(row)] > 0) return kInfinity;
  }
  return problem.costOf(labels);
}

TEST(ParetoElimination, EqualsTryingEveryChoiceOnRandomProblems) {
  int num_solved = 0;
  int num_above = 0;
  std::array<int, kMaxTrackedRows + 1> num_with_rows{};
  for (uint64_t seed = 0; seed < 6'000; ++seed) {
    Case c(seed);
    if (c.reduction->infeasible()) continue;
    const ReducedProblem problem(*c.reduction, *c.layout);
    if (problem.numRows() == 0 || problem.numVariables() == 0) continue;
    const std::vector<int32_t> rows = c.pickRows(problem.numRows());
    const Elimination elimination(problem);
    ParetoElimination pareto(problem, elimination, rows);
    const int64_t num_multipliers = c.pick(1, 4);
    bool priced = true;
    for (int64_t i = 0; i < num_multipliers; ++i) {
      priced &= pareto.addMultipliers(c.pickMultipliers(rows.size()), {});
    }
    if (!priced) continue;  // no choice at all
    ++num_with_rows[rows.size()];
    const double cutoff = static_cast<double>(c.pick(-20, 250));
    const Oracle oracle = tryEverything(problem, rows, cutoff);
    EXPECT_LE(pareto.bound(), oracle.cheapest) << "seed " << seed;
    WorkMeter meter;
    const ParetoResult result = pareto.solve(cutoff, {}, meter);
    ASSERT_TRUE(result.finished) << "seed " << seed;
    EXPECT_FALSE(result.truncated);
    if (oracle.choices.empty()) {
      EXPECT_TRUE(result.labels.empty()) << "seed " << seed;
      EXPECT_EQ(result.bound, cutoff + 1.0) << "seed " << seed;
      ++num_above;
    } else {
      ASSERT_FALSE(result.labels.empty()) << "seed " << seed;
      EXPECT_EQ(result.bound, oracle.cheapest) << "seed " << seed;
      EXPECT_EQ(costWithin(problem, rows, result.labels.front()), oracle.cheapest)
          << "seed " << seed;
      ++num_solved;
    }
    // The values left over are those of every choice within the cutoff, at least.
    const auto values = pareto.possibleValues(cutoff, {}, meter);
    ASSERT_TRUE(values.has_value());
    for (const std::vector<int32_t>& labels : oracle.choices) {
      for (size_t v = 0; v < labels.size(); ++v) {
        EXPECT_TRUE(std::binary_search((*values)[v].begin(), (*values)[v].end(), labels[v]))
            << "seed " << seed;
      }
    }
  }
  EXPECT_GT(num_solved, 500);
  EXPECT_GT(num_above, 500);
  for (size_t n = 1; n <= kMaxTrackedRows; ++n) EXPECT_GT(num_with_rows[n], 100) << n << " rows";
}

TEST(ParetoElimination, BoundsHoldWhereFrontsAreCut) {
  int num_truncated = 0;
  for (uint64_t seed = 20'000; seed < 24'000; ++seed) {
    Case c(seed);
    if (c.reduction->infeasible()) continue;
    const ReducedProblem problem(*c.reduction, *c.layout);
    if (problem.numRows() == 0 || problem.numVariables() == 0) continue;
    const std::vector<int32_t> rows = c.pickRows(problem.numRows());
    const Elimination elimination(problem);
    ParetoElimination pareto(problem, elimination, rows);
    if (!pareto.addMultipliers(c.pickMultipliers(rows.size()), {})) continue;
    const double cutoff = 10'000.0;  // more than any choice costs
    const Oracle oracle = tryEverything(problem, rows, cutoff);
    ParetoOptions options;
    options.max_front = static_cast<size_t>(c.pick(1, 2));
    WorkMeter meter;
    const ParetoResult result = pareto.solve(cutoff, options, meter);
    ASSERT_TRUE(result.finished);
    num_truncated += result.truncated ? 1 : 0;
    EXPECT_LE(result.bound, oracle.choices.empty() ? cutoff + 1.0 : oracle.cheapest)
        << "seed " << seed;
    for (const std::vector<int32_t>& labels : result.labels) {
      EXPECT_LT(costWithin(problem, rows, labels), kInfinity) << "seed " << seed;
    }
  }
  EXPECT_GT(num_truncated, 500);
}

// A chain of equal layers that each choose between (cost 5, no bytes) and (cost 0, 3 bytes), with a
// price of 1 for changing sides between neighbours.
Problem makeLayers(int num_layers, int64_t limit_bytes) {
  ProblemBuilder builder("layers");
  const CostTableId change = builder.addTable(2, 2, {0, 1, 1, 0});
  std::optional<ChoiceNodeId> before;
  for (int layer = 0; layer < num_layers; ++layer) {
    const ChoiceNodeId here = builder.addNode({5, 0}, {{{0, 1}, {0, 3}}});
    if (before) builder.addEdge(*before, here, change);
    before = here;
  }
  builder.setMemoryLimit(limit_bytes);
  return std::move(builder).build();
}

TEST(ParetoElimination, SolvesALongChainOfTiesExactly) {
  // 1,000 bytes hold 333 of 400 layers: 67 layers cost 5, and one change of sides costs 1.
  const Problem problem = makeLayers(400, 1000);
  Reduction reduction(problem);
  const MemoryLayout layout(problem);
  const ReducedProblem reduced(reduction, layout);
  ASSERT_EQ(reduced.numRows(), 1);
  const Elimination elimination(reduced);
  ParetoElimination pareto(reduced, elimination, {0});
  ASSERT_TRUE(pareto.addMultipliers({5.0 / 3.0}, {}));
  WorkMeter meter;
  const ParetoResult result = pareto.solve(400.0, {}, meter);
  ASSERT_TRUE(result.finished);
  EXPECT_EQ(result.bound, 67 * 5 + 1);
  ASSERT_FALSE(result.labels.empty());
  EXPECT_EQ(reduced.costOf(result.labels.front()), 67 * 5 + 1);
}

TEST(ParetoElimination, StopsAtItsLimits) {
  const Problem problem = makeLayers(400, 1000);
  Reduction reduction(problem);
  const MemoryLayout layout(problem);
  const ReducedProblem reduced(reduction, layout);
  const Elimination elimination(reduced);
  ParetoElimination pareto(reduced, elimination, {0});
  ASSERT_TRUE(pareto.addMultipliers({1.0}, {}));
  WorkMeter meter;
  for (int limit = 0; limit < 4; ++limit) {
    ParetoOptions options;
    if (limit == 0) options.max_points = 10;
    if (limit == 1) options.max_entries = 10;
    if (limit == 2) options.max_sums = 10;
    if (limit == 3) options.stop = [] { return true; };
    const ParetoResult result = pareto.solve(2000.0, options, meter);
    EXPECT_FALSE(result.finished) << limit;
    EXPECT_EQ(result.bound, -kInfinity) << limit;
  }
}

}  // namespace
}  // namespace shardwright
