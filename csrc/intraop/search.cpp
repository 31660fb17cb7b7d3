#include "intraop/search.h"

#include <cmath>

#include "intraop/exhaustive_search.h"
#include "intraop/integer_program.h"
#include "intraop/presolve.h"

namespace shardwright {
namespace {

constexpr int32_t kMaxExhaustiveVariables = 400;
// Eliminations below this are repeated freely; above it, message passing goes first.
constexpr double kLightWork = 5e7;
// CBC is not started on programs it is not likely to finish in the time left.
constexpr double kProgramEntriesPerSecond = 2'000.0;

size_t numValues(const ReducedProblem& reduced) {
  size_t count = 0;
  for (const ReducedVariable& variable : reduced.variables()) count += variable.costs.size();
  return count;
}

}  // namespace

Claim Search::run() {
  constexpr int kMaxRounds = 40;
  for (; round_ < kMaxRounds; ++round_) {
    if (reduce()) return claim();
    const ReducedProblem reduced(reduction_, layout_);
    const size_t values_before = numValues(reduced);
    const double cutoff_before = cutoff();
    const double distance_before = distance();
    const EliminationLimits limits{options_.max_elimination_work, options_.max_elimination_bytes};
    const Elimination elimination(reduced, limits);
    if (!elimination.fits() || elimination.work() > kLightWork) {
      if (boundByMessages(reduced, messageSeconds(elimination))) return claim();
      if (numValuesLeft() < 0.9 * static_cast<double>(values_before)) continue;
      if (elimination.fits() && !guessed_multipliers_.empty() &&
          searchByPareto(reduced, elimination, multipliersOf(reduced, guessed_multipliers_))) {
        return claim();
      }
    }
    if (elimination.fits() && !stopped()) {
      if (reduced.numRows() == 0 ? solveWithoutRows(reduced, elimination)
                                 : boundByLagrangian(reduced, elimination)) {
        return claim();
      }
    }
    if (stopped()) return claim();
    if (enumerate(reduced)) return claim();
    // Another round pays when fixing has removed a good part of the values.
    if (numValuesLeft() < 0.9 * static_cast<double>(values_before)) continue;
    if (gapAtMost(options_.good_gap)) return claim();
    if (!elimination.fits() && guessed_multipliers_.empty() && joinVariables(reduced)) continue;
    // A better incumbent lets the next round fix more, which is what makes a heavy elimination
    // light.
    if (elimination.fits() && elimination.work() > kLightWork && cutoff() < cutoff_before &&
        nominalLeft() > 0.2 * options_.time_limit_s) {
      continue;
    }
    if (!elimination.fits() && !guessed_multipliers_.empty() &&
        distance() < 0.9 * distance_before && nominalLeft() > 0.3 * options_.time_limit_s) {
      continue;
    }
    // On wide problems the bound keeps rising: more messages, then more blocks, while time is left.
    if (!elimination.fits() && !programFits(reduced) &&
        nominalLeft() > 0.1 * options_.time_limit_s) {
      continue;
    }
    // The last phase lasts until the time limit cuts it short.
    if (!finishWithIntegerProgram(reduced)) improveByNeighbourhoods(reduced, kInfinity);
    return claim();
  }
  return claim();
}

bool Search::reduce() {
  const Phase phase(*this, "presolve");
  if (problem_.numNodes() == 0) {
    lower_bound_ = 0;
    return true;
  }
  if (options_.use_presolve) {
    PresolveOptions presolve_options;
    presolve_options.out_of_time = [this] { return stopped(); };
    presolve(reduction_, layout_, presolve_options);
  } else {
    pruneByMemory(reduction_, layout_);
  }
  if (!reduction_.infeasible()) return false;
  if (incumbent_.empty()) {
    proof_ = reduction_.proof();
  } else {
    raiseBound(cutoff());  // nothing as cheap is left
  }
  return true;
}

bool Search::enumerate(const ReducedProblem& reduced) {
  if (reduced.numVariables() > kMaxExhaustiveVariables) return false;
  const Phase phase(*this, "enumeration");
  if (reduced.numVariables() == 0) {
    // Its one choice has no labels, as no choice has.
    consider(reduced, {});
    raiseBound(reduced.offset());
    return true;
  }
  // Below the incumbent means cheaper by at least one unit.
  const ExhaustiveResult result = searchExhaustively(
      reduced, cutoff() - 0.5, options_.max_enumeration_nodes, [this] { return stopped(); });
  if (!result.labels.empty()) consider(reduced, result.labels);
  if (!result.finished) return closed();
  if (!result.labels.empty()) {
    raiseBound(result.cost);
  } else if (!incumbent_.empty()) {
    raiseBound(cutoff());
  } else {
    proof_ = InfeasibilityProof::kEnumeration;
  }
  return true;
}

bool Search::programFits(const ReducedProblem& reduced) const {
  return options_.use_integer_program &&
         integerProgramSize(reduced) <= kProgramEntriesPerSecond * nominalLeft();
}

bool Search::finishWithIntegerProgram(const ReducedProblem& reduced) {
  if (stopped() || !programFits(reduced)) return false;
  const Phase phase(*this, "integer program");
  // A wide gap makes the program's units too coarse for a proof; then the first answer leaves a
  // narrow one, in whose units the second proves.
  for (int pass = 0; pass < 2 && !stopped() && !closed(); ++pass) {
    IntegerProgramOptions program_options;
    program_options.time_limit_s = secondsLeft();
    program_options.stop = [this] { return interrupted(); };
    const std::vector<double> multipliers = multipliersOf(reduced, multipliers_);
    for (int32_t row = 0; row < reduced.numRows(); ++row) {
      if (multipliers[static_cast<size_t>(row)] > 0.0) program_options.rows.push_back(row);
    }
    if (const auto& labels = incumbentLabels(reduced)) program_options.incumbent = *labels;
    program_options.lower_bound =
        lower_bound_ ? static_cast<double>(*lower_bound_ >> reduction_.costShift()) : 0.0;
    const IntegerProgramResult result = solveIntegerProgram(reduced, program_options);
    if (!result.labels.empty()) consider(reduced, result.labels);
    if (result.bound) raiseBound(*result.bound);
    if (!result.finished) break;
  }
  return closed();
}

}  // namespace shardwright
