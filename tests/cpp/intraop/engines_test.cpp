// The solver against trying every choice, whole and with parts of it switched off, so that every
// way of closing a problem gets its share.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "intraop/problem_family.h"
#include "intraop/solve.h"

namespace shardwright {
namespace {

using testing::describe;
using testing::findOptimum;
using testing::makeFamilyProblem;
using testing::Optimum;
using testing::priceOf;

struct Engine {
  std::string name;
  bool proves;  // what is left on closes every small problem
  std::function<void(SolveOptions&, uint64_t seed)> restrict;
};

const std::vector<Engine>& engines() {
  static const std::vector<Engine> all = {
      {"all parts", true, [](SolveOptions&, uint64_t) {}},
      {"without presolve", true,
       [](SolveOptions& options, uint64_t) { options.use_presolve = false; }},
      {"messages and enumeration", true,
       [](SolveOptions& options, uint64_t) { options.max_elimination_work = 0.0; }},
      {"messages and enumeration, without presolve", true,
       [](SolveOptions& options, uint64_t) {
         options.max_elimination_work = 0.0;
         options.use_presolve = false;
         options.use_integer_program = false;
       }},
      {"elimination of a few entries", true,
       [](SolveOptions& options, uint64_t seed) {
         options.max_elimination_work = static_cast<double>(1 << (seed % 14));
         options.max_elimination_bytes = static_cast<double>(8 << (seed % 9));
       }},
      {"elimination alone", false,
       [](SolveOptions& options, uint64_t seed) {
         options.use_integer_program = false;
         options.max_enumeration_nodes = 0;
         options.use_presolve = seed % 2 == 0;
         options.time_limit_s = 0.02;
       }},
      {"messages alone", false,
       [](SolveOptions& options, uint64_t seed) {
         options.max_elimination_work = 0.0;
         options.use_integer_program = false;
         options.max_enumeration_nodes = 0;
         options.use_presolve = seed % 2 == 0;
         options.time_limit_s = 0.02;
       }},
      {"a gap of a tenth", false,
       [](SolveOptions& options, uint64_t seed) {
         options.relative_gap = 0.1;
         if (seed % 2 == 0) options.max_elimination_work = 0.0;
       }},
  };
  return all;
}

// Whether double holds every sum of costs to the unit.
bool sumsAreExact(const Problem& problem) {
  const auto small = [](std::span<const int64_t> costs) {
    return std::all_of(costs.begin(), costs.end(), [](int64_t cost) {
      return cost == kForbidden || std::abs(cost) < (int64_t{1} << 46);
    });
  };
  return std::all_of(problem.nodes().begin(), problem.nodes().end(),
                     [&](const ChoiceNode& node) { return small(node.costs); }) &&
         std::all_of(problem.tables().begin(), problem.tables().end(),
                     [&](const auto& table) { return small(table->costs()); });
}

// How often each phase of the search ran.
using PhaseCounts = std::map<std::string, int>;

// What must hold for every engine.
void check(const Problem& problem, const Optimum& optimum, const Engine& engine, uint64_t seed,
           PhaseCounts& phases) {
  SolveOptions options;
  options.smallest_peak_time_s = engine.name == "all parts" ? 5.0 : 0.0;
  engine.restrict(options, seed);
  const Answer answer = solve(problem, options);
  for (const PhaseTime& phase : answer.phases) ++phases[phase.phase];
  const auto where = [&] { return engine.name + "\n" + describe(problem); };
  if (answer.status == SolveStatus::kInfeasible) {
    EXPECT_FALSE(optimum.cost) << "called infeasible, costs " << toString(*optimum.cost) << ", by "
                               << toString(answer.proof) << ": " << where();
    if (answer.smallest_peak_bytes) {
      // The search for the limit that would do ends within a hundred-thousandth of it.
      const int64_t found = *answer.smallest_peak_bytes;
      const int64_t bound = answer.smallest_peak_bound_bytes.value_or(-1);
      EXPECT_TRUE(*optimum.least_peak <= found && *optimum.least_peak >= bound) << where();
      EXPECT_LE(found - bound, found / 100'000) << where();
    }
    return;
  }
  if (answer.choice.empty()) {
    EXPECT_FALSE(engine.proves) << "nothing found nor proven: " << where();
    return;
  }
  const auto price = priceOf(problem, answer.choice);
  EXPECT_TRUE(price == answer.cost) << where();
  EXPECT_TRUE(optimum.cost) << where();
  if (!price || !optimum.cost) return;
  EXPECT_TRUE(*optimum.cost <= answer.cost) << where();
  if (answer.lower_bound) {
    EXPECT_TRUE(*answer.lower_bound <= *optimum.cost)
        << "bound " << *answer.lower_bound << " above the optimum " << toString(*optimum.cost)
        << ": " << where();
  }
  if (options.relative_gap > 0.0 && answer.stop == StopCause::kGapReached) {
    EXPECT_LE(answer.gap, options.relative_gap) << where();
  }
  if (engine.proves && !sumsAreExact(problem)) {
    // Sums of such costs are not exact in double: the bound may be a little low (each cost is
    // rounded down to a multiple of at most 2^8), never high.
    EXPECT_LE(answer.cost - answer.lower_bound.value_or(-kForbidden), 1 << 14) << where();
  } else if (engine.proves) {
    EXPECT_EQ(answer.status, SolveStatus::kOptimal)
        << "cost " << answer.cost << ", bound " << answer.lower_bound.value_or(-1) << ", optimum "
        << toString(*optimum.cost) << ": " << where();
  }
}

// Runs some seeds through all engines. Problems this small never reach the integer program, which
// has tests of its own.
PhaseCounts runFamilies(uint64_t first, uint64_t count) {
  PhaseCounts phases;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const Problem problem = makeFamilyProblem(seed);
    const Optimum optimum = findOptimum(problem);
    for (const Engine& engine : engines()) check(problem, optimum, engine, seed, phases);
    if (::testing::Test::HasFailure()) {
      ADD_FAILURE() << "seed " << seed;
      break;
    }
  }
  return phases;
}

TEST(Engines, EveryOneEqualsTryingEveryChoice) {
  PhaseCounts phases = runFamilies(0, 1500);
  // An engine that never runs is not tested.
  for (const char* phase : {"elimination", "lagrangian", "messages", "enumeration", "pareto"}) {
    EXPECT_GE(phases[phase], 100) << phase;
  }
}

// Slow suite. --gtest_random_seed=N draws other problems.
TEST(SlowEngines, EveryOneEqualsTryingEveryChoice) {
  runFamilies(1'000'000 * static_cast<uint64_t>(GTEST_FLAG_GET(random_seed)) + 1000, 20'000);
}

}  // namespace
}  // namespace shardwright
