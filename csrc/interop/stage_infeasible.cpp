#include "interop/stage_infeasible.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "interop/search_stop.h"
#include "interop/stage_dp.h"

namespace shardwright {
namespace {

constexpr std::int64_t kImpossible = std::numeric_limits<std::int64_t>::max();

// By layer the fewest bytes per device of a possible stage that holds it, one microbatch in flight.
std::vector<std::int64_t> leastBytes(const StageProblem& problem) {
  const int num_layers = problem.num_layers;
  RangeTable<std::int64_t> least(num_layers, kImpossible);
  for (std::size_t k = 0; k < problem.kinds.size(); ++k) {
    for (int begin = 0; begin < num_layers; ++begin) {
      for (int end = begin + 1; end <= num_layers; ++end) {
        if (std::isinf(problem.times[k].at(begin, end))) continue;
        std::int64_t bytes = 0;
        if (!problem.memory.empty()) {
          bytes = problem.memory[k].fixed_bytes.at(begin, end) +
                  problem.memory[k].per_microbatch_bytes.at(begin, end);
        }
        least.at(begin, end) = std::min(least.at(begin, end), bytes);
      }
    }
  }
  // Then of every range that has the range at hand.
  for (int length = num_layers - 1; length >= 1; --length) {
    for (int begin = 0; begin + length <= num_layers; ++begin) {
      const int end = begin + length;
      std::int64_t& own = least.at(begin, end);
      if (begin > 0) own = std::min(own, least.at(begin - 1, end));
      if (end < num_layers) own = std::min(own, least.at(begin, end + 1));
    }
  }
  std::vector<std::int64_t> by_layer;
  for (int layer = 0; layer < num_layers; ++layer) by_layer.push_back(least.at(layer, layer + 1));
  return by_layer;
}

// Whether there are stages under a limit; nothing where the search was ended before it knew.
std::optional<bool> fits(StageProblem& problem, std::optional<std::int64_t> limit,
                         SearchStop& stop) {
  if (stop()) return std::nullopt;
  problem.memory_limit_bytes = limit;
  const StageAnswer answer = searchStages(
      problem, {.time_limit_s = stop.secondsLeft(), .is_interrupted = [&] { return stop(); }});
  if (answer.stages.empty() && answer.status != StageStatus::kInfeasible) return std::nullopt;
  return !answer.stages.empty();
}

// The smallest limit under which there are stages, by bisection over whole bytes; the smallest that
// was found where the search for it was ended.
std::optional<std::int64_t> smallestLimit(StageProblem problem, SearchStop& stop) {
  const std::int64_t asked = *problem.memory_limit_bytes;
  std::int64_t too_small = asked;
  std::int64_t enough = std::max<std::int64_t>(1, asked);
  std::optional<bool> is_enough = false;
  while (is_enough == false) {
    if (enough > std::numeric_limits<std::int64_t>::max() / 4) return std::nullopt;
    enough *= 2;
    is_enough = fits(problem, enough, stop);
  }
  if (!is_enough) return std::nullopt;
  // To a thousandth: the search of a large problem is not free.
  while (enough - too_small > std::max<std::int64_t>(1, enough / 1024)) {
    const std::int64_t middle = too_small + (enough - too_small) / 2;
    const std::optional<bool> found = fits(problem, middle, stop);
    if (!found) break;
    (*found ? enough : too_small) = middle;
  }
  return enough;
}

[[noreturn]] void fail(const std::string& value, const std::string& advice) {
  throw Error(ErrorKind::kInfeasible, "E205", "no stages fit the devices.",
              {.values = {value}, .advice = advice});
}

}  // namespace

void throwStagesInfeasible(const StageProblem& problem, const StageSearchOptions& options) {
  const std::vector<std::int64_t> least = leastBytes(problem);
  for (std::size_t layer = 0; layer < least.size(); ++layer) {
    const std::string name = "layer " + std::to_string(layer);
    if (least[layer] == kImpossible) {
      fail(name + " is in no possible stage", "give it a finite time on some submesh");
    }
    if (problem.memory_limit_bytes && least[layer] > *problem.memory_limit_bytes) {
      fail(name + " needs " + std::to_string(least[layer]) +
               " bytes per device on the submesh that suits "
               "it best; the limit is " +
               std::to_string(*problem.memory_limit_bytes),
           "a limit above that, or larger submeshes");
    }
  }
  if (problem.memory_limit_bytes && !problem.memory.empty()) {
    SearchStop stop(options.time_limit_s, options.is_interrupted);
    StageProblem unlimited = problem;
    if (fits(unlimited, std::nullopt, stop) != false) {
      const std::optional<std::int64_t> limit = smallestLimit(problem, stop);
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
