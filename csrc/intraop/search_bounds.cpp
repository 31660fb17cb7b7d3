// Phases of a search that raise the bound, and the values they allow to remove.
#include <algorithm>
#include <cmath>
#include <utility>

#include "intraop/lagrangian.h"
#include "intraop/message_dual.h"
#include "intraop/search.h"

namespace shardwright {
namespace {

// Min-marginals keep about one byte per entry visited.
constexpr double kMaxMarginalWork = 6e8;

// Share of the values that must go before a smaller problem is worth building.
constexpr double kWorthFixing = 0.25;

// Sweeps over more than this are too slow to join further variables.
constexpr double kMaxJoinedEntries = 2e7;

UnaryCosts costsOf(const ReducedProblem& reduced) {
  UnaryCosts costs;
  costs.reserve(reduced.variables().size());
  for (const ReducedVariable& variable : reduced.variables()) costs.push_back(variable.costs);
  return costs;
}

}  // namespace

bool Search::solveWithoutRows(const ReducedProblem& reduced, const Elimination& elimination) {
  const Phase phase(*this, "elimination");
  meter_.addRows(elimination.work());
  const auto result = elimination.solve(costsOf(reduced), [this] { return stopped(); });
  if (!result) return false;
  if (result->optimum == kInfinity) {
    if (incumbent_.empty()) {
      proof_ = InfeasibilityProof::kEnumeration;
    } else {
      raiseBound(cutoff());
    }
    return true;
  }
  consider(reduced, result->labels);
  raiseBound(result->optimum);
  return closed();
}

bool Search::boundByLagrangian(const ReducedProblem& reduced, const Elimination& elimination) {
  const double ceiling = costCeiling(reduced);
  LagrangianResult result;
  {
    const Phase phase(*this, "lagrangian");
    LagrangianOptions lagrangian_options;
    lagrangian_options.stop = [this] { return stopped() || closed(); };
    // Without costs any positive bound is a proof that nothing fits.
    if (ceiling <= 0.0) lagrangian_options.tolerance = 64.0 * reduced.quantum();
    lagrangian_options.target = incumbent_.empty() ? ceiling + 1.0 : cutoff();
    lagrangian_options.on_bound = [this](double bound) { raiseBound(bound); };
    lagrangian_options.on_labels = [&](const std::vector<int32_t>& labels) {
      searchFrom(reduced, labels);
    };
    result = maximiseLagrangian(reduced, elimination, lagrangian_options, meter_,
                                multipliersOf(reduced, multipliers_));
  }
  multipliers_ = multipliersByRow(reduced, result.multipliers);
  if (result.infeasible || result.bound > ceiling) {
    closeByDualBound();
    return true;
  }
  if (closed()) return true;
  if (searchByPareto(reduced, elimination, result.multipliers)) return true;
  if (incumbent_.empty() || stopped() || result.multipliers.empty()) return false;
  improveByNeighbourhoods(reduced, neighbourhoodSeconds());
  if (closed()) return true;
  if (elimination.unsharedWork() >
      std::min(kMaxMarginalWork, WorkMeter::kRowEntriesPerSecond * 0.2 * nominalLeft())) {
    return false;
  }
  const Phase phase(*this, "fixing");
  const std::optional<WeightedCosts> weighted = weightCosts(reduced, result.multipliers);
  if (!weighted) return false;
  meter_.addRows(4.0 * elimination.unsharedWork());
  auto marginals = elimination.minMarginals(weighted->unary, [this] { return stopped(); });
  if (!marginals || marginals->costs.empty()) return false;
  for (std::vector<double>& costs : marginals->costs) {
    for (double& cost : costs) cost -= weighted->constant;
  }
  fixByMarginals(reduced, marginals->costs);
  return false;
}

double Search::messageSeconds(const Elimination& elimination) const {
  if (elimination.fits()) {
    return std::min(0.5 * elimination.work() / WorkMeter::kRowEntriesPerSecond,
                    0.25 * nominalLeft());
  }
  // Elsewhere the run ends when the bound stalls or when much can be fixed.
  return 0.7 * nominalLeft();
}

bool Search::boundByMessages(const ReducedProblem& reduced, double time_limit_s) {
  const double ceiling = costCeiling(reduced);
  MessageDualResult result;
  {
    const Phase phase(*this, "messages");
    MessageDualOptions dual_options;
    dual_options.time_limit_s = time_limit_s;
    dual_options.target = [&] { return incumbent_.empty() ? ceiling + 1.0 : cutoff(); };
    dual_options.stop = [this] { return stopped() || closed(); };
    dual_options.on_bound = [this](double bound) { raiseBound(bound); };
    dual_options.memory = &message_memory_;
    dual_options.enough = [&](const MarginalResult& marginals) {
      return gapAtMost(options_.good_gap) || fixableShare(marginals.costs) > kWorthFixing ||
             probeNearBound(reduced, marginals);
    };
    dual_options.on_labels = [&](const std::vector<int32_t>& labels) {
      searchFrom(reduced, labels);
    };
    if (!guessed_multipliers_.empty()) {
      dual_options.keep_multipliers = true;
      result = maximiseByMessages(reduced, dual_options, meter_,
                                  multipliersOf(reduced, guessed_multipliers_));
      guessed_multipliers_.clear();
      if (result.bound <= message_bound_) next_probe_seconds_ = 2.0 * meter_.seconds();
    }
    // Also where the guess was a poor one.
    if (result.bound <= message_bound_) {
      dual_options.keep_multipliers = false;
      result =
          maximiseByMessages(reduced, dual_options, meter_, multipliersOf(reduced, multipliers_));
    }
    message_bound_ = std::max(message_bound_, result.bound);
    multipliers_ = multipliersByRow(reduced, result.multipliers);
    joins_ = std::move(result.joins);
  }
  if (result.bound > ceiling) {
    closeByDualBound();
    return true;
  }
  if (closed()) return true;
  const UnaryCosts& marginals = result.marginals.costs;
  if (marginals.empty()) return false;
  if (guessed_multipliers_.empty() && searchNearBound(reduced, result.marginals) && closed())
    return true;
  // When the incumbent is good enough to fix much, bounding what is left pays more than blocks.
  if (guessed_multipliers_.empty() && fixableShare(marginals) < 0.2) {
    improveByNeighbourhoods(reduced, neighbourhoodSeconds());
    if (closed()) return true;
  }
  fixByMarginals(reduced, marginals);
  return false;
}

// Looks near the bound now and then, ever more rarely while that is of no use.
bool Search::probeNearBound(const ReducedProblem& reduced, const MarginalResult& marginals) {
  if (meter_.seconds() < next_probe_seconds_) return false;
  const double start = meter_.seconds();
  const bool found = searchNearBound(reduced, marginals);
  const double spent = meter_.seconds() - start;
  next_probe_seconds_ = meter_.seconds() + (found ? 2.0 * spent : meter_.seconds() + 10.0 * spent);
  return found || closed();
}

bool Search::joinVariables(const ReducedProblem& reduced) {
  if (joins_.empty() || reduction_.infeasible() || reduced.numEntries() > kMaxJoinedEntries ||
      nominalLeft() < 0.25 * options_.time_limit_s) {
    return false;
  }
  for (const auto& [u, v] : joins_) {
    reduction_.join(reduced.variables()[static_cast<size_t>(u)].reduction_variable,
                    reduced.variables()[static_cast<size_t>(v)].reduction_variable);
  }
  joins_.clear();
  return true;
}

double Search::costCeiling(const ReducedProblem& reduced) const {
  const auto largest = [](const std::vector<double>& costs) {
    double result = -kInfinity;
    for (double cost : costs) {
      if (cost != kInfinity) result = std::max(result, cost);
    }
    return result;
  };
  std::vector<double> of_table;
  for (const Matrix& table : reduced.tables()) of_table.push_back(largest(table.costs));
  double ceiling = reduced.offset();
  for (const ReducedVariable& variable : reduced.variables()) ceiling += largest(variable.costs);
  for (const ReducedEdge& edge : reduced.edges()) {
    ceiling += of_table[static_cast<size_t>(edge.table)];
  }
  return ceiling;
}

double Search::fixableShare(const UnaryCosts& marginals) const {
  const double limit = cutoff();
  double num_fixable = 0.0;
  double num_values = 1.0;
  for (const std::vector<double>& costs : marginals) {
    num_values += static_cast<double>(costs.size());
    num_fixable += static_cast<double>(
        std::count_if(costs.begin(), costs.end(), [&](double cost) { return cost > limit; }));
  }
  return num_fixable / num_values;
}

void Search::fixByMarginals(const ReducedProblem& reduced, const UnaryCosts& marginals) {
  const double limit = cutoff();
  if (limit == kInfinity) return;
  std::vector<int32_t> keep;
  for (size_t v = 0; v < reduced.variables().size(); ++v) {
    const int32_t variable = reduced.variables()[v].reduction_variable;
    // Values that an earlier call of this round removed have renumbered the others.
    if (reduction_.variable(variable).costs.size() != marginals[v].size()) continue;
    keep.clear();
    for (size_t a = 0; a < marginals[v].size(); ++a) {
      if (marginals[v][a] <= limit) keep.push_back(static_cast<int32_t>(a));
    }
    if (keep.size() < marginals[v].size()) has_fixed_ = true;
    reduction_.keepValues(variable, keep);
  }
}

}  // namespace shardwright
