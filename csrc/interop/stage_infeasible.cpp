#include "interop/stage_infeasible.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "base/error.h"
#include "interop/stage_dp.h"

namespace shardwright {
namespace {

constexpr std::int64_t kImpossible = std::numeric_limits<std::int64_t>::max();

// Fewest bytes per device of a possible stage that holds the layer, one microbatch in flight.
std::int64_t leastBytesWith(const StageProblem& problem, int layer) {
  std::int64_t least = kImpossible;
  for (std::size_t k = 0; k < problem.kinds.size(); ++k) {
    for (int begin = 0; begin <= layer; ++begin) {
      for (int end = layer + 1; end <= problem.num_layers; ++end) {
        if (std::isinf(problem.times[k].at(begin, end))) continue;
        if (problem.memory.empty()) return 0;
        const StageMemory& memory = problem.memory[k];
        least = std::min(
            least, memory.fixed_bytes.at(begin, end) + memory.per_microbatch_bytes.at(begin, end));
      }
    }
  }
  return least;
}

// The smallest limit under which there are stages, by bisection over whole bytes.
std::optional<std::int64_t> smallestLimit(StageProblem problem) {
  const std::int64_t asked = *problem.memory_limit_bytes;
  const auto fits = [&](std::int64_t limit) {
    problem.memory_limit_bytes = limit;
    return !searchStages(problem).stages.empty();
  };
  std::int64_t too_small = asked;
  std::int64_t enough = std::max<std::int64_t>(1, asked);
  do {
    if (enough > std::numeric_limits<std::int64_t>::max() / 4) return std::nullopt;
    enough *= 2;
  } while (!fits(enough));
  // To a thousandth: the search of a large problem is not free.
  while (enough - too_small > std::max<std::int64_t>(1, enough / 1024)) {
    const std::int64_t middle = too_small + (enough - too_small) / 2;
    (fits(middle) ? enough : too_small) = middle;
  }
  return enough;
}

[[noreturn]] void fail(const std::string& value, const std::string& advice) {
  throw Error(ErrorKind::kInfeasible, "E205", "no stages fit the devices.",
              {.values = {value}, .advice = advice});
}

}  // namespace

void throwStagesInfeasible(const StageProblem& problem) {
  for (int layer = 0; layer < problem.num_layers; ++layer) {
    const std::int64_t least = leastBytesWith(problem, layer);
    const std::string name = "layer " + std::to_string(layer);
    if (least == kImpossible) {
      fail(name + " is in no possible stage", "give it a finite time on some submesh");
    }
    if (problem.memory_limit_bytes && least > *problem.memory_limit_bytes) {
      fail(name + " needs " + std::to_string(least) +
               " bytes per device on the submesh that suits "
               "it best; the limit is " +
               std::to_string(*problem.memory_limit_bytes),
           "a limit above that, or larger submeshes");
    }
  }
  if (problem.memory_limit_bytes && !problem.memory.empty()) {
    StageProblem unlimited = problem;
    unlimited.memory_limit_bytes.reset();
    if (!searchStages(unlimited).stages.empty()) {
      const std::optional<std::int64_t> limit = smallestLimit(problem);
      fail("memory limit " + std::to_string(*problem.memory_limit_bytes) + " bytes per device" +
               (limit ? "; " + std::to_string(*limit) + " would do" : std::string()),
           "a larger limit, more devices, or fewer microbatches in flight");
    }
  }
  fail("no possible stages use " + std::to_string(problem.num_devices) + " devices",
       problem.use_all_devices ? "another number of devices, or use_all_devices=False"
                               : "more devices");
}

}  // namespace shardwright
