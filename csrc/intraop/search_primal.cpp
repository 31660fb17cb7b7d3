// Phases of a search that look for a better incumbent.
#include <algorithm>

#include "intraop/local_search.h"
#include "intraop/neighbourhood_search.h"
#include "intraop/search.h"

namespace shardwright {
namespace {

constexpr double kMaxPrimalShare = 0.5;
constexpr double kMinPrimalShare = 0.15;

}  // namespace

void Search::searchFrom(const ReducedProblem& reduced, const std::vector<int32_t>& labels) {
  // Half of the time while that helps, less and less when it does not, but always once.
  if (!incumbent_.empty() && primal_seconds_ > primal_share_ * meter_.seconds() + 0.01) {
    const std::vector<int64_t> overload = reduced.overloadOf(labels);
    if (std::all_of(overload.begin(), overload.end(), [](int64_t bytes) { return bytes <= 0; })) {
      consider(reduced, labels);
    }
    return;
  }
  const double start = meter_.seconds();
  const double cost_before = cutoff();
  const auto stop = [this] { return stopped(); };
  const std::optional<std::vector<int32_t>> incumbent = incumbentLabels(reduced);
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
  primal_share_ =
      cutoff() < cost_before ? kMaxPrimalShare : std::max(kMinPrimalShare, 0.95 * primal_share_);
}

void Search::considerRepaired(const ReducedProblem& part, const Reduction& narrow,
                              const std::vector<int32_t>& labels) {
  LocalSearch search(part, labels, meter_, [this] { return stopped(); });
  if (!search.repair(part.numVariables())) return;
  if (part.numRows() > 0) search.improve(false);
  considerChoice(part.expand(narrow.pool(), search.labels()));
}

double Search::neighbourhoodSeconds() const {
  // In proportion to what the bound cost, so that quick problems stay quick.
  return std::min(0.15 * nominalLeft(), 0.5 * meter_.seconds() + 0.02);
}

void Search::improveByNeighbourhoods(const ReducedProblem& reduced, double time_limit_s) {
  if (incumbent_.empty() || reduced.numVariables() < 2 || closed()) return;
  searchTied(reduced);
  searchRepeats(reduced);
  const std::optional<std::vector<int32_t>> incumbent = incumbentLabels(reduced);
  if (!incumbent || closed()) return;
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
