// The integer program on its own: against trying every choice, and with workers that are killed,
// stopped or crash.

#include "intraop/integer_program.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "intraop/memory_rows.h"
#include "intraop/presolve.h"
#include "intraop/problem_family.h"
#include "intraop/reduction.h"

namespace shardwright {
namespace {

using Clock = std::chrono::steady_clock;

double secondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A choice of the family's problem that fits, in the reduced problem's values; empty when rare.
std::vector<int32_t> someLabels(const ReducedProblem& reduced, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (int attempt = 0; attempt < 50; ++attempt) {
    std::vector<int32_t> labels;
    for (const ReducedVariable& variable : reduced.variables()) {
      labels.push_back(
          static_cast<int32_t>(random() % static_cast<uint64_t>(variable.numValues())));
    }
    bool fits = reduced.costOf(labels) != kInfinity;
    for (int64_t bytes : reduced.overloadOf(labels)) fits = fits && bytes <= 0;
    if (fits) return labels;
  }
  return {};
}

void expectEqualToEveryChoice(uint64_t first, uint64_t count) {
  uint64_t num_proven = 0, num_infeasible = 0, num_started = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const Problem problem = testing::makeFamilyProblem(seed);
    const testing::Optimum optimum = testing::findOptimum(problem);
    Reduction reduction(problem);
    const MemoryLayout layout(problem);
    if (seed % 3 == 0) {
      presolve(reduction, layout);
    } else {
      pruneByMemory(reduction, layout);
    }
    if (reduction.infeasible()) continue;
    const ReducedProblem reduced(reduction, layout);
    if (reduced.numVariables() == 0) continue;
    const std::string where = testing::describe(problem);
    IntegerProgramOptions options;
    if (seed % 2 == 0) options.incumbent = someLabels(reduced, seed);
    if (!options.incumbent.empty()) ++num_started;
    if (optimum.cost && seed % 4 < 2) {
      options.lower_bound = std::ldexp(static_cast<double>(*optimum.cost), -reduction.costShift()) -
                            static_cast<double>(seed % 5);
    }
    const IntegerProgramResult result = solveIntegerProgram(reduced, options);
    if (!optimum.cost) {
      ++num_infeasible;
      EXPECT_FALSE(result.finished) << where;
    }
    if (result.bound && optimum.cost) {  // where no choice exists, every bound holds
      EXPECT_LE(std::ldexp(*result.bound, reduction.costShift()),
                static_cast<double>(*optimum.cost))
          << where;
    }
    if (result.labels.empty()) continue;
    const auto price = testing::priceOf(problem, reduced.expand(reduction.pool(), result.labels));
    ASSERT_TRUE(price) << where;
    EXPECT_GE(static_cast<double>(*price), static_cast<double>(*optimum.cost)) << where;
    if (result.finished && result.bound && *result.bound == static_cast<double>(*price)) {
      ++num_proven;
    }
  }
  EXPECT_GE(num_proven, count / 10);
  EXPECT_GE(num_infeasible, count / 30);
  EXPECT_GE(num_started, count / 30);
}

TEST(IntegerProgram, EqualsTryingEveryChoice) { expectEqualToEveryChoice(0, 200); }

// Slow suite. --gtest_random_seed=N draws other problems.
TEST(SlowIntegerProgram, EqualsTryingEveryChoice) {
  expectEqualToEveryChoice(1'000'000 * static_cast<uint64_t>(GTEST_FLAG_GET(random_seed)) + 200,
                           4000);
}

// Far more than CBC does in the seconds of these tests.
Problem makeLongProblem() {
  std::mt19937_64 random(5);
  ProblemBuilder builder("long");
  const size_t num_nodes = 60;
  const int32_t num_values = 8;
  for (size_t i = 0; i < num_nodes; ++i) {
    std::vector<int64_t> costs;
    for (int32_t a = 0; a < num_values; ++a) costs.push_back(static_cast<int64_t>(random() % 100));
    builder.addNode(std::move(costs));
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
  return std::move(builder).build();
}

struct ProcessState {
  pid_t pid = 0;
  pid_t parent = 0;
  char state = '?';
};

ProcessState stateOf(pid_t pid) {
  ProcessState result{pid, 0, '?'};
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t end = text.rfind(')');  // the name may hold blanks
  if (end != std::string::npos) {
    std::istringstream rest(text.substr(end + 1));
    rest >> result.state >> result.parent;
  }
  return result;
}

std::vector<pid_t> childrenOf(pid_t parent) {
  std::vector<pid_t> children;
  DIR* folder = opendir("/proc");
  while (const dirent* entry = readdir(folder)) {
    if (!std::isdigit(static_cast<unsigned char>(entry->d_name[0]))) continue;
    const ProcessState process = stateOf(static_cast<pid_t>(std::stol(entry->d_name)));
    if (process.parent == parent && process.state != 'Z') children.push_back(process.pid);
  }
  closedir(folder);
  return children;
}

// Waits until some process has a child, 10 s at most.
pid_t childOf(pid_t parent) {
  const auto start = Clock::now();
  while (secondsSince(start) < 10.0) {
    const std::vector<pid_t> children = childrenOf(parent);
    if (!children.empty()) return children.front();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return 0;
}

class WorkerFault : public ::testing::TestWithParam<int> {};

TEST_P(WorkerFault, LeavesTheCallerWithoutAnAnswerInTime) {
  const Problem problem = makeLongProblem();
  Reduction reduction(problem);
  const MemoryLayout layout(problem);
  const ReducedProblem reduced(reduction, layout);
  IntegerProgramOptions options;
  options.time_limit_s = 2.0;
  pid_t worker = 0;
  std::thread saboteur([&] {
    worker = childOf(getpid());
    if (worker != 0) kill(worker, GetParam());
  });
  const auto start = Clock::now();
  const IntegerProgramResult result = solveIntegerProgram(reduced, options);
  const double seconds = secondsSince(start);
  saboteur.join();
  ASSERT_NE(worker, 0);
  EXPECT_FALSE(result.finished);
  EXPECT_FALSE(result.bound);
  EXPECT_TRUE(result.labels.empty());
  EXPECT_LT(seconds, 6.0);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a worker is left";
  EXPECT_EQ(errno, ECHILD);
}

INSTANTIATE_TEST_SUITE_P(IntegerProgram, WorkerFault,
                         ::testing::Values(SIGKILL, SIGSEGV, SIGABRT, SIGTERM, SIGSTOP));

TEST(IntegerProgram, StopEndsTheWorkerAtOnce) {
  const Problem problem = makeLongProblem();
  Reduction reduction(problem);
  const MemoryLayout layout(problem);
  const ReducedProblem reduced(reduction, layout);
  IntegerProgramOptions options;
  options.time_limit_s = 60.0;
  const auto start = Clock::now();
  options.stop = [&] { return secondsSince(start) > 0.3; };
  const IntegerProgramResult result = solveIntegerProgram(reduced, options);
  EXPECT_LT(secondsSince(start), 5.0);
  EXPECT_FALSE(result.finished);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
}

TEST(IntegerProgram, TimeLimitHoldsEvenIfTheLibraryIgnoresIt) {
  const Problem problem = makeLongProblem();
  Reduction reduction(problem);
  const MemoryLayout layout(problem);
  const ReducedProblem reduced(reduction, layout);
  IntegerProgramOptions options;
  options.time_limit_s = 1.0;
  const auto start = Clock::now();
  solveIntegerProgram(reduced, options);
  EXPECT_LT(secondsSince(start), 5.0);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
}

TEST(IntegerProgram, WorkerDoesNotOutliveAKilledCaller) {
  const pid_t caller = fork();
  if (caller == 0) {
    const Problem problem = makeLongProblem();
    Reduction reduction(problem);
    const MemoryLayout layout(problem);
    IntegerProgramOptions options;
    options.time_limit_s = 60.0;
    solveIntegerProgram(ReducedProblem(reduction, layout), options);
    _exit(0);
  }
  const pid_t worker = childOf(caller);
  ASSERT_NE(worker, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  kill(caller, SIGKILL);
  waitpid(caller, nullptr, 0);
  const auto start = Clock::now();
  const auto alive = [&] {
    const char state = stateOf(worker).state;
    return state != '?' && state != 'Z' && state != 'X';
  };
  while (alive() && secondsSince(start) < 5.0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_FALSE(alive());
  if (alive()) kill(worker, SIGKILL);
}

}  // namespace
}  // namespace shardwright
