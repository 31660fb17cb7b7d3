#include <gtest/gtest.h>

#include <random>

#include "intraop/random_problem.h"
#include "intraop/solve.h"

namespace shardwright {
namespace {

using testing::BruteForce;
using testing::makeRandomProblem;
using testing::RandomProblemOptions;
using testing::solveByBruteForce;

void expectEqualToBruteForce(const Problem& problem, const SolveOptions& options,
                             const std::string& label) {
  const BruteForce expected = solveByBruteForce(problem);
  const Answer answer = solve(problem, options);
  if (!expected.cost) {
    EXPECT_EQ(answer.status, SolveStatus::kInfeasible) << label;
    if (answer.smallest_peak_bytes && expected.least_peak) {
      EXPECT_EQ(*answer.smallest_peak_bytes, *expected.least_peak) << label;
      EXPECT_EQ(*answer.smallest_peak_bound_bytes, *expected.least_peak) << label;
    }
    return;
  }
  ASSERT_EQ(answer.status, SolveStatus::kOptimal) << label;
  EXPECT_EQ(answer.cost, *expected.cost) << label;
}

int numRandomProblems() { return 500; }

TEST(SolveFuzz, EqualsBruteForceOnRandomProblems) {
  for (int seed = 0; seed < numRandomProblems(); ++seed) {
    std::mt19937_64 random(static_cast<uint64_t>(seed));
    RandomProblemOptions shape;
    shape.with_limit = seed % 2 == 0;
    shape.edge_probability = 0.2 + 0.6 * (seed % 7) / 6.0;
    shape.forbidden_share = 0.1 * (seed % 4);
    const Problem problem = makeRandomProblem(random, shape);
    expectEqualToBruteForce(problem, {}, "seed " + std::to_string(seed));
  }
}

TEST(SolveFuzz, EqualsBruteForceWithoutPresolve) {
  for (int seed = 1000; seed < 1100; ++seed) {
    std::mt19937_64 random(static_cast<uint64_t>(seed));
    RandomProblemOptions shape;
    shape.max_nodes = 6;
    shape.with_limit = seed % 2 == 0;
    SolveOptions options;
    options.use_presolve = false;
    options.smallest_peak_time_s = 0.0;
    expectEqualToBruteForce(makeRandomProblem(random, shape), options,
                            "seed " + std::to_string(seed));
  }
}

// Each way to close a problem on its own, with the easier ones switched off.
TEST(SolveFuzz, EqualsBruteForceByMessagesAndEnumeration) {
  SolveOptions options;
  options.max_elimination_work = 0.0;
  options.smallest_peak_time_s = 0.0;
  for (int seed = 2000; seed < 2200; ++seed) {
    std::mt19937_64 random(static_cast<uint64_t>(seed));
    RandomProblemOptions shape;
    shape.max_nodes = 7;
    shape.with_limit = seed % 3 != 0;
    expectEqualToBruteForce(makeRandomProblem(random, shape), options,
                            "seed " + std::to_string(seed));
  }
}

TEST(SolveFuzz, EqualsBruteForceByIntegerProgram) {
  SolveOptions options;
  options.max_enumeration_nodes = 0;
  options.smallest_peak_time_s = 0.0;
  for (int seed = 3000; seed < 3060; ++seed) {
    options.max_elimination_work = seed % 2 == 0 ? 0.0 : 1e9;
    std::mt19937_64 random(static_cast<uint64_t>(seed));
    RandomProblemOptions shape;
    shape.min_nodes = 6;
    shape.edge_probability = 0.7;
    expectEqualToBruteForce(makeRandomProblem(random, shape), options,
                            "seed " + std::to_string(seed));
  }
}

// A good gap leaves the proof to what is quick; cost and bound stay on their sides of the optimum.
TEST(SolveFuzz, AGoodGapIsEnough) {
  SolveOptions options;
  options.good_gap = 0.2;
  options.max_elimination_work = 0.0;  // so that a gap is left
  options.max_enumeration_nodes = 0;
  options.smallest_peak_time_s = 0.0;
  int num_with_gap = 0;
  for (int seed = 4000; seed < 4600; ++seed) {
    std::mt19937_64 random(static_cast<uint64_t>(seed));
    RandomProblemOptions shape;
    shape.min_nodes = 5;
    shape.edge_probability = 0.6;
    const Problem problem = makeRandomProblem(random, shape);
    const BruteForce expected = solveByBruteForce(problem);
    if (!expected.cost) continue;
    const Answer answer = solve(problem, options);
    ASSERT_FALSE(answer.choice.empty()) << "seed " << seed;
    ASSERT_TRUE(answer.lower_bound.has_value()) << "seed " << seed;
    EXPECT_GE(answer.cost, *expected.cost) << "seed " << seed;
    EXPECT_LE(*answer.lower_bound, *expected.cost) << "seed " << seed;
    EXPECT_LE(answer.gap, 0.2) << "seed " << seed;
    if (answer.gap == 0.0) continue;
    ++num_with_gap;
    EXPECT_EQ(answer.status, SolveStatus::kFeasible) << "seed " << seed;
    EXPECT_EQ(answer.stop, StopCause::kGapReached) << "seed " << seed;
  }
  EXPECT_GT(num_with_gap, 10);
}

}  // namespace
}  // namespace shardwright
