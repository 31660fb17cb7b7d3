// Phases of a search that look for a better incumbent.
#include <algorithm>
#include <cmath>

#include "intraop/lagrangian.h"
#include "intraop/local_search.h"
#include "intraop/neighbourhood_search.h"
#include "intraop/presolve.h"
#include "intraop/search.h"

namespace shardwright {
namespace {

constexpr double kNearBoundWork = 3e8;

}  // namespace

void Search::searchFrom(const ReducedProblem& reduced, const std::vector<int32_t>& labels) {
  // Never more than about half of the time, but always once.
  if (!incumbent_.empty() && primal_seconds_ > 0.5 * meter_.seconds() + 0.01) {
    const std::vector<int64_t> overload = reduced.overloadOf(labels);
    if (std::all_of(overload.begin(), overload.end(), [](int64_t bytes) { return bytes <= 0; })) {
      consider(reduced, labels);
    }
    return;
  }
  const double start = meter_.seconds();
  const auto stop = [this] { return stopped(); };
  const auto incumbent = incumbentLabels(reduced);
  LocalSearch search(reduced, labels, meter_, stop);
  if (!search.fits() && incumbent) {
    // From the cheap side towards the incumbent, and from the incumbent towards the cheap side.
    LocalSearch retreating(reduced, labels, meter_, stop);
    if (retreating.retreat(*incumbent)) {
      retreating.improve(true);
      consider(reduced, retreating.labels());
    }
    LocalSearch adopting(reduced, *incumbent, meter_, stop);
    if (adopting.adopt(labels)) {
      adopting.improve(true);
      consider(reduced, adopting.labels());
    }
  }
  if (search.repair(20 * reduced.numVariables() + 100)) {
    search.improve(true);
    consider(reduced, search.labels());
  }
  primal_seconds_ += meter_.seconds() - start;
}

void Search::searchNearBound(const ReducedProblem& reduced, const UnaryCosts& marginals) {
  if (stopped()) return;
  const Phase phase(*this, "near bound");
  const double bound =
      std::ldexp(static_cast<double>(lower_bound_.value_or(0)), -reduction_.costShift());
  // At most what the incumbent still misses: farther values cannot lead to anything better.
  double reach = 0.01 * std::max(1.0, std::abs(bound));
  if (!incumbent_.empty()) reach = std::min(reach, std::max(1.0, cutoff() - bound));
  constexpr int kMaxTries = 6;
  for (int i = 0; i < kMaxTries && !stopped(); ++i, reach /= 3.0) {
    Reduction near = reduction_;
    std::vector<int32_t> keep;
    for (size_t v = 0; v < marginals.size(); ++v) {
      const double best = *std::min_element(marginals[v].begin(), marginals[v].end());
      keep.clear();
      for (size_t a = 0; a < marginals[v].size(); ++a) {
        if (marginals[v][a] - best <= reach) keep.push_back(static_cast<int32_t>(a));
      }
      near.keepValues(reduced.variables()[v].reduction_variable, keep);
    }
    PresolveOptions presolve_options;
    presolve_options.out_of_time = [this] { return stopped(); };
    presolve(near, layout_, presolve_options);
    meter_.addMessages(3.0 * reduced.numEntries());
    if (near.infeasible()) return;
    const ReducedProblem part(near, layout_);
    const Elimination elimination(part, {kNearBoundWork, 4e8});
    if (!elimination.fits()) continue;
    LagrangianOptions lagrangian_options;
    lagrangian_options.max_evaluations = 8;
    lagrangian_options.stop = [this] { return stopped() || closed(); };
    lagrangian_options.on_labels = [&](const std::vector<int32_t>& labels) {
      LocalSearch search(part, labels, meter_, [this] { return stopped(); });
      if (!search.repair(part.numVariables())) return;
      if (part.numRows() > 0) search.improve(false);
      considerChoice(part.expand(near.pool(), search.labels()));
    };
    maximiseLagrangian(part, elimination, lagrangian_options, meter_, carriedMultipliers(part));
    return;
  }
}

double Search::neighbourhoodSeconds() const {
  // In proportion to what the bound cost, so that quick problems stay quick.
  return std::min(0.15 * nominalLeft(), 0.5 * meter_.seconds() + 0.02);
}

void Search::improveByNeighbourhoods(const ReducedProblem& reduced, double time_limit_s) {
  const auto incumbent = incumbentLabels(reduced);
  if (!incumbent || reduced.numVariables() < 2 || closed()) return;
  const Phase phase(*this, "neighbourhoods");
  const double start = meter_.seconds();
  const auto stop = [&] {
    return stopped() || closed() || meter_.seconds() - start > time_limit_s;
  };
  NeighbourhoodSearch search(reduced, *incumbent, meter_);
  while (!stop()) {
    if (search.step(stop)) consider(reduced, search.labels());
    report();
  }
}

}  // namespace shardwright
