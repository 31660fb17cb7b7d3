// Several searches at once in one process: what make test-tsan watches.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "intraop/problem_family.h"
#include "intraop/solve.h"

namespace shardwright {
namespace {

TEST(Threads, SolveTheSameProblemsAtOnceAndAgree) {
  std::vector<Problem> problems;
  for (uint64_t seed = 0; seed < 60; ++seed) problems.push_back(testing::makeFamilyProblem(seed));
  const auto solveAll = [&](std::vector<Answer>& answers) {
    SolveOptions options;
    options.smallest_peak_time_s = 0.0;
    for (const Problem& problem : problems) answers.push_back(solve(problem, options));
  };
  std::vector<std::vector<Answer>> answers(4);
  std::vector<std::thread> threads;
  for (std::vector<Answer>& own : answers) threads.emplace_back([&] { solveAll(own); });
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<Answer>& own : answers) {
    for (size_t i = 0; i < problems.size(); ++i) {
      EXPECT_EQ(own[i].choice, answers[0][i].choice) << i;
      EXPECT_EQ(own[i].lower_bound, answers[0][i].lower_bound) << i;
      EXPECT_EQ(own[i].status, answers[0][i].status) << i;
    }
  }
}

TEST(Threads, InterruptComesFromAnother) {
  ProblemBuilder builder("wide");
  const int32_t num_values = 10;
  const size_t num_nodes = 60;
  uint64_t state = 1;
  const auto draw = [&] {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<int64_t>(state >> 40) % 1000;
  };
  for (size_t i = 0; i < num_nodes; ++i) {
    builder.addNode(std::vector<int64_t>(num_values, 0));
    for (size_t j = i < 12 ? 0 : i - 12; j < i; ++j) {
      std::vector<int64_t> costs;
      for (int32_t k = 0; k < num_values * num_values; ++k) costs.push_back(draw());
      builder.addEdge(ChoiceNodeId(j), ChoiceNodeId(i),
                      builder.addTable(num_values, num_values, std::move(costs)));
    }
  }
  const Problem problem = std::move(builder).build();
  std::atomic<bool> interrupt{false};
  std::atomic<bool> has_choice{false};
  SolveOptions options;
  options.time_limit_s = 300.0;
  options.interrupt = &interrupt;
  options.on_progress = [&](const SolveProgress& progress) {
    if (progress.cost && progress.lower_bound) has_choice = true;
  };
  std::thread other([&] {
    while (!has_choice) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    interrupt = true;
  });
  const Answer answer = solve(problem, options);
  has_choice = true;
  other.join();
  EXPECT_EQ(answer.stop, StopCause::kInterrupted);
  EXPECT_FALSE(answer.choice.empty());
  EXPECT_TRUE(answer.lower_bound);
  EXPECT_LT(answer.seconds, 150.0);
}

}  // namespace
}  // namespace shardwright
