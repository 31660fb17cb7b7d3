#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>
#include <vector>

#include "intraop/memory_rows.h"
#include "intraop/presolve.h"
#include "intraop/solve.h"

namespace shardwright {
namespace {

using Clock = std::chrono::steady_clock;

// The same choices and bytes at no cost: any choice is as good as another, only fitting counts.
Problem withoutCosts(const Problem& problem) {
  const auto free_of = [](std::span<const int64_t> costs) {
    std::vector<int64_t> free(costs.begin(), costs.end());
    for (int64_t& cost : free) {
      if (cost != kForbidden) cost = 0;
    }
    return free;
  };
  ProblemBuilder builder(problem.name());
  for (const ChoiceNode& node : problem.nodes()) {
    builder.addNode(free_of(node.costs), node.memory, node.name);
  }
  std::vector<CostTableId> free_table;
  for (const auto& table : problem.tables()) {
    free_table.push_back(
        builder.addTable(table->numRows(), table->numCols(), free_of(table->costs())));
  }
  for (const ChoiceEdge& edge : problem.edges()) {
    builder.addEdge(edge.u, edge.v, free_table[edge.table.index()], edge.transposed);
  }
  return std::move(builder).build();
}

// Largest sum of least bytes alive at one time, over the strategies that propagation leaves.
int64_t memoryFloor(const Problem& problem) {
  constexpr int64_t kPlenty = int64_t{1} << 61;
  const Problem roomy = problem.withMemoryLimit(kPlenty);
  Reduction reduction(roomy);
  const MemoryLayout layout(roomy);
  PresolveOptions options;
  options.dominance = false;
  presolve(reduction, layout, options);
  int64_t floor = 0;
  for (int64_t slack : measureMemory(reduction, layout).slack_bytes) {
    floor = std::max(floor, kPlenty - slack);
  }
  return floor;
}

}  // namespace

PeakAnswer minimizePeak(const Problem& problem, double time_limit_s,
                        const std::atomic<bool>* interrupt,
                        const std::function<void(const SolveProgress&)>& on_progress) {
  const auto start = Clock::now();
  const auto seconds_left = [&] {
    return time_limit_s - std::chrono::duration<double>(Clock::now() - start).count();
  };
  const Problem free = withoutCosts(problem).withMemoryLimit(std::nullopt);
  SolveOptions options;
  options.interrupt = interrupt;
  options.on_progress = on_progress;
  options.smallest_peak_time_s = 0.0;
  options.relative_gap = std::numeric_limits<double>::infinity();  // any valid choice will do
  options.time_limit_s = time_limit_s;
  PeakAnswer best;
  const Answer unlimited = solve(free, options);
  best.infeasible = unlimited.status == SolveStatus::kInfeasible;
  if (unlimited.choice.empty()) return best;
  best.choice = unlimited.choice;
  best.peak_bytes = unlimited.peak_bytes;
  // Bisection on the limit, from below first. No choice needs less than `proven`; below `searched`
  // nothing was found in the time given.
  int64_t proven = std::min(memoryFloor(free), best.peak_bytes);
  int64_t searched = proven;
  bool at_floor = true;
  const auto done = [&] { return searched >= best.peak_bytes - best.peak_bytes / 100'000; };
  while (!done() && seconds_left() > 0.0 && !(interrupt && interrupt->load())) {
    const int64_t limit = at_floor ? searched : searched + (best.peak_bytes - 1 - searched) / 2;
    at_floor = false;
    options.time_limit_s = std::max(0.05, seconds_left() / 4.0);
    const Answer answer = solve(free.withMemoryLimit(limit), options);
    if (!answer.choice.empty()) {
      best.choice = answer.choice;
      best.peak_bytes = answer.peak_bytes;
      continue;
    }
    searched = limit + 1;
    if (answer.status == SolveStatus::kInfeasible) proven = std::max(proven, searched);
  }
  best.bound_bytes = std::min(proven, best.peak_bytes);
  return best;
}

}  // namespace shardwright
