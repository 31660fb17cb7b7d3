// The stage search against literature vectors, exhaustive search and its own certificate.
#include "interop/stage_dp.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "base/error.h"
#include "interop/exhaustive_stages.h"

namespace shardwright {
namespace {

// Layers of given weights on `hosts` x `per_host` devices: a stage of weight w on d devices takes
// w / d * (1 + 0.1 log2 d), half as much again over several hosts.
StageProblem weightedLayers(const std::vector<double>& weights, int hosts, int per_host,
                            int num_microbatches) {
  StageProblem problem;
  problem.num_layers = static_cast<int>(weights.size());
  problem.submeshes = candidateSubmeshes(hosts, per_host);
  problem.num_devices = hosts * per_host;
  problem.num_microbatches = num_microbatches;
  for (std::size_t s = 0; s < problem.submeshes.size(); ++s) {
    problem.kinds.push_back({static_cast<std::int32_t>(s), 0, 0, 0});
    RangeTable<double> times(problem.num_layers, 0);
    const SubmeshShape& shape = problem.submeshes[s];
    const double d = shape.numDevices();
    for (int i = 0; i < problem.num_layers; ++i) {
      double work = 0;
      for (int j = i + 1; j <= problem.num_layers; ++j) {
        work += weights[static_cast<std::size_t>(j - 1)];
        times.at(i, j) = work / d * (1 + 0.1 * std::log2(d)) * (shape.num_hosts > 1 ? 1.5 : 1);
      }
    }
    problem.times.push_back(std::move(times));
  }
  return problem;
}

std::vector<double> repeated(double weight, int count) {
  return std::vector(static_cast<std::size_t>(count), weight);
}

const std::vector<double> kVectorD = {1, 1, 1, 1, 2, 2, 4, 4};

TEST(StageDp, VectorA) {
  const StageAnswer answer = searchStages(weightedLayers({4, 2, 1, 1}, 1, 4, 8));
  EXPECT_EQ(answer.status, StageStatus::kOptimal);
  EXPECT_NEAR(answer.evaluation.time, 19.2, 1e-12);
  EXPECT_EQ(answer.stages, (std::vector<PlannedStage>{{0, 4, 2}}));
}

TEST(StageDp, VectorC) {
  const StageAnswer answer = searchStages(weightedLayers(repeated(1, 8), 2, 4, 16));
  EXPECT_NEAR(answer.evaluation.time, 20.4, 1e-12);
  EXPECT_EQ(answer.status, StageStatus::kOptimal);
}

TEST(StageDp, VectorD) {
  const StageAnswer answer = searchStages(weightedLayers(kVectorD, 2, 4, 32));
  EXPECT_NEAR(answer.evaluation.time, 77.0, 1e-12);
  EXPECT_EQ(answer.stages, (std::vector<PlannedStage>{{0, 4, 1}, {4, 6, 1}, {6, 7, 1}, {7, 8, 1}}));
}

TEST(StageDp, VectorFIsBestAtEveryBoundaryCost) {
  const double sizes[] = {8, 8, 8, 4, 4, 2, 2};
  const std::pair<double, double> expected[] = {
      {0, 77.0}, {0.02, 80.52}, {0.05, 82.5}, {0.1, 85.8}, {0.2, 92.4}, {0.4, 105.6}, {0.8, 124.8}};
  const std::vector<PlannedStage> blind = searchStages(weightedLayers(kVectorD, 2, 4, 32)).stages;
  for (const auto& [x, time] : expected) {
    StageProblem problem = weightedLayers(kVectorD, 2, 4, 32);
    problem.boundaries.resize(8);
    for (std::size_t layer = 1; layer < 8; ++layer) {
      problem.boundaries[layer].time = {x * sizes[layer - 1]};
    }
    const StageAnswer answer = searchStages(problem);
    EXPECT_NEAR(answer.evaluation.time, time, 1e-12) << x;
    EXPECT_EQ(answer.status, StageStatus::kOptimal);
    if (x == 0.1) {
      EXPECT_NEAR(evaluateStages(problem, blind).time, 97.2, 1e-12);
    }
    if (x == 0.8) {
      EXPECT_EQ(answer.stages.size(), 1U);  // the whole cluster
    }
  }
}

void expectBest(const StageProblem& problem, int trial) {
  const double best = testing::leastTimeByExhaustion(problem);
  const StageAnswer answer = searchStages(problem);
  // As large problems are searched: what fewer shapes give leaves out arcs.
  const StageAnswer filtered = searchStages(problem, {.most_arcs = 0});
  if (std::isinf(best)) {
    EXPECT_EQ(answer.status, StageStatus::kInfeasible) << trial;
    EXPECT_EQ(filtered.status, StageStatus::kInfeasible) << trial;
    return;
  }
  ASSERT_EQ(filtered.status, StageStatus::kOptimal) << trial;
  EXPECT_NEAR(filtered.evaluation.time, best, 1e-9 * best) << trial;
  ASSERT_EQ(answer.status, StageStatus::kOptimal) << trial << " best " << best;
  EXPECT_NEAR(answer.evaluation.time, best, 1e-9 * best) << trial;
  EXPECT_EQ(answer.lower_bound, answer.evaluation.time);
}

TEST(StageDp, EqualsExhaustionOnAThousandRandomProblems) {
  std::mt19937_64 random(5);
  for (int trial = 0; trial < 1000; ++trial) {
    expectBest(testing::makeRandomStageProblem(random, {7, false, false}), trial);
  }
}

TEST(StageDp, EqualsExhaustionWithBoundariesMemoryAndRecomputation) {
  std::mt19937_64 random(6);
  for (int trial = 0; trial < 600; ++trial) {
    const bool both = trial % 3 == 2;
    expectBest(testing::makeRandomStageProblem(
                   random, {both ? 3 : 4, trial % 3 == 0 || both, trial % 3 == 1 || both}),
               trial);
  }
}

TEST(StageDp, EqualsExhaustionWithAGivenNumberOfStages) {
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 600; ++trial) {
    const bool both = trial % 3 == 2;
    expectBest(testing::makeRandomStageProblem(
                   random, {both ? 3 : 4, trial % 3 == 0 || both, trial % 3 == 1 || both, true}),
               trial);
  }
}

// A bound found before the end is below the best; what is returned then is valid.
TEST(StageDp, StoppedAtOnceStillGivesAValidBound) {
  const StageProblem problem = weightedLayers(repeated(1, 40), 4, 8, 64);
  StageSearchOptions options;
  options.time_limit_s = 0;
  const StageAnswer stopped = searchStages(problem, options);
  const StageAnswer best = searchStages(problem);
  EXPECT_EQ(best.status, StageStatus::kOptimal);
  EXPECT_LE(stopped.lower_bound, best.evaluation.time);
  EXPECT_TRUE(stopped.stages.empty() || stopped.evaluation.valid());
}

TEST(StageDp, TheCertificateRejectsWhatBreaksARule) {
  const StageProblem problem = weightedLayers({4, 2, 1, 1}, 1, 4, 8);
  const auto violation = [&](std::vector<PlannedStage> stages) {
    return evaluateStages(problem, stages).violation;
  };
  EXPECT_EQ(violation({{0, 4, 2}}), "");
  EXPECT_EQ(violation({{0, 3, 2}}), "layer 3 is in no stage");
  EXPECT_EQ(violation({{0, 2, 1}, {3, 4, 1}}), "stages do not follow each other at layer 2");
  EXPECT_EQ(violation({{0, 4, 1}}), "2 devices are used");
  EXPECT_EQ(violation({{0, 4, 9}}), "a stage has no kind");
}

TEST(StageDp, RefusesTablesThatDoNotFitTogether) {
  const auto code = [](StageProblem problem) -> std::string {
    try {
      searchStages(problem);
    } catch (const Error& error) {
      return error.code();
    }
    return "none";
  };
  StageProblem problem = weightedLayers({1, 1}, 1, 2, 4);
  EXPECT_EQ(code(problem), "none");
  problem.submeshes[0] = {1, 3};  // three of a host's devices leave gaps
  EXPECT_EQ(code(problem), "E221");
  problem = weightedLayers({1, 1}, 1, 2, 4);
  problem.times[0].at(0, 1) = std::nan("");
  EXPECT_EQ(code(problem), "E221");
  problem = weightedLayers({1, 1}, 1, 2, 4);
  problem.kinds[1].entry_spec = 1;
  EXPECT_EQ(code(problem), "E221");
  problem = weightedLayers({1, 1}, 1, 2, 4);
  problem.num_specs = 2;  // a change of spec needs a price
  EXPECT_EQ(code(problem), "E221");
  problem = weightedLayers({1, 1}, 1, 2, 4);
  problem.schedule = ScheduleKind::kInterleaved1F1B;
  EXPECT_EQ(code(problem), "E221");
}

}  // namespace
}  // namespace shardwright
