#include <algorithm>
#include <chrono>
#include <limits>

#include "intraop/solve.h"

namespace shardwright {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

PeakAnswer minimizePeak(const Problem& problem, double time_limit_s,
                        const std::atomic<bool>* interrupt) {
  const auto start = Clock::now();
  const auto seconds_left = [&] {
    return time_limit_s - std::chrono::duration<double>(Clock::now() - start).count();
  };
  SolveOptions options;
  options.interrupt = interrupt;
  options.smallest_peak_time_s = 0.0;
  options.relative_gap = std::numeric_limits<double>::infinity();  // any valid choice will do
  options.time_limit_s = time_limit_s;
  PeakAnswer best;
  const Answer free = solve(problem.withMemoryLimit(std::nullopt), options);
  best.infeasible = free.status == SolveStatus::kInfeasible;
  if (free.choice.empty()) return best;
  best.choice = free.choice;
  best.peak_bytes = free.peak_bytes;
  // Bisection on the limit. Below `floor` nothing fits (proven); `searched` also counts limits at
  // which nothing was found in time.
  int64_t floor = 0;
  int64_t searched = 0;
  while (searched < best.peak_bytes && seconds_left() > 0.0) {
    const int64_t limit = searched + (best.peak_bytes - searched) / 2;
    options.time_limit_s = std::max(0.05, seconds_left() / 3.0);
    const Answer answer = solve(problem.withMemoryLimit(limit), options);
    if (!answer.choice.empty()) {
      best.choice = answer.choice;
      best.peak_bytes = answer.peak_bytes;
      continue;
    }
    searched = limit + 1;
    if (answer.status == SolveStatus::kInfeasible) floor = std::max(floor, searched);
  }
  best.bound_bytes = std::min(floor, best.peak_bytes);
  return best;
}

}  // namespace shardwright
