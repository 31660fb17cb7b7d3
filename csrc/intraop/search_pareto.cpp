// Phases that close the gap by Pareto elimination: the choices within a band above the bound are
// few, so they are searched exactly, in bands as wide as they have to be.
#include <algorithm>
#include <cmath>
#include <utility>

#include "intraop/cutting_planes.h"
#include "intraop/lagrangian.h"
#include "intraop/pareto_elimination.h"
#include "intraop/presolve.h"
#include "intraop/search.h"

namespace shardwright {
namespace {

// Work of one elimination whose tables are kept for every vector of multipliers; above this, values
// are removed first.
constexpr double kMaxTableWork = 3e6;
// Work of one elimination on what a band leaves.
constexpr double kMaxBandWork = 1e8;
constexpr double kMaxBandBytes = 2e8;
constexpr size_t kMaxReachedEntries = 400'000;
constexpr size_t kMaxExactPoints = 1'000'000;
constexpr size_t kMaxSums = 5'000'000;
constexpr size_t kMaxQuickPoints = 50'000;
constexpr size_t kQuickFront = 48;  // points per entry when only a good choice is wanted
constexpr int kMaxHalvings = 3;
// Bands above the bound of messages, relative to it.
constexpr double kNarrowestBand = 3e-5;
constexpr double kWidestBand = 0.01;

// The rows that memory is priced on, dearest first.
std::vector<int32_t> pricedRows(const ReducedProblem& problem,
                                const std::vector<double>& multipliers) {
  std::vector<int32_t> rows;
  for (size_t row = 0; row < multipliers.size(); ++row) {
    if (multipliers[row] > 0.0) rows.push_back(static_cast<int32_t>(row));
  }
  std::stable_sort(rows.begin(), rows.end(), [&](int32_t a, int32_t b) {
    const auto price = [&](int32_t row) {
      const auto i = static_cast<size_t>(row);
      return multipliers[i] * static_cast<double>(problem.slackBytes()[i]);
    };
    return price(a) > price(b);
  });
  return rows;
}

double numValues(const ReducedProblem& problem) {
  double count = 0.0;
  for (const ReducedVariable& variable : problem.variables()) count += variable.numValues();
  return count;
}

// Multipliers around the best ones: bounds for partial choices that hold more or less than most.
std::vector<std::vector<double>> multipliersAround(const std::vector<double>& best) {
  std::vector<std::vector<double>> around;
  for (double factor : {1.0, 0.9, 1.1, 0.6, 1.6, 4.0}) {
    around.push_back(best);
    for (double& multiplier : around.back()) multiplier *= factor;
  }
  if (best.size() == 1) return around;
  for (size_t i = 0; i < best.size(); ++i) {
    for (double factor : {0.7, 1.4}) {
      around.push_back(best);
      around.back()[i] *= factor;
    }
  }
  return around;
}

}  // namespace

// A reduction that still holds every choice of at most `ceiling`, and the multipliers found on it.
struct Search::Band {
  Reduction& reduction;
  const ReducedProblem& problem;
  const Elimination& elimination;
  std::vector<double> multipliers;
  double ceiling = kInfinity;
};

bool Search::searchBand(Band& band) {
  const Phase phase(*this, "pareto");
  const double limit = std::min(band.ceiling, improvingCutoff());
  const std::vector<int32_t> rows = pricedRows(band.problem, band.multipliers);
  if (rows.empty() || rows.size() > kMaxTrackedRows || stopped()) return false;
  if (band.elimination.work() > kMaxTableWork) {
    return narrowBand(band, limit);
  }
  std::vector<int32_t> tracked = rows;
  while (tracked.size() <= kMaxTrackedRows && !stopped()) {
    const int32_t overloaded = searchTracked(band, tracked, limit);
    if (closed() || overloaded < 0) return closed();
    tracked.push_back(overloaded);
  }
  return closed();
}

// Keeps what one vector of multipliers leaves possible, in growing bands, and searches that. The
// choices met there tell better multipliers, so that the whole is priced a few times only.
bool Search::narrowBand(const Band& band, double limit) {
  const auto stop = [this] { return stopped(); };
  constexpr int kMaxPricings = 5;
  ParetoOptions options;
  options.max_entries = kMaxReachedEntries;
  options.stop = stop;
  const std::vector<int32_t> rows = pricedRows(band.problem, band.multipliers);
  CuttingPlanes master(rows.size());
  std::vector<double> multipliers;
  for (size_t i = 0; i < rows.size(); ++i) {
    multipliers.push_back(band.multipliers[static_cast<size_t>(rows[i])]);
    master.setUpper(i, 4.0 * multipliers[i]);
  }
  const auto learn = [&](const std::vector<int32_t>& labels) {
    const std::vector<int64_t> overload = band.problem.overloadOf(labels);
    std::vector<double> of_rows;
    for (int32_t row : rows) {
      of_rows.push_back(static_cast<double>(overload[static_cast<size_t>(row)]));
    }
    master.addPoint(band.problem.costOf(labels), std::move(of_rows));
  };
  double best_bound = -kInfinity;
  for (int i = 0; i < kMaxPricings; ++i) {
    ParetoElimination pareto(band.problem, band.elimination, rows);
    meter_.addRows(band.elimination.work());
    if (!pareto.addMultipliers(multipliers, stop)) return false;
    const double bound = pareto.bound();
    raiseBound(std::min(bound, limit + 1.0));
    learn(pareto.labels());
    for (double width = 1e-4 * std::abs(bound) + 16.0; bound > best_bound; width *= 3.0) {
      const double last = std::min(limit, improvingCutoff());
      const double ceiling = std::min(std::floor(bound + width), last);
      if (ceiling < bound || stopped() || closed()) return closed();
      const auto values = pareto.possibleValues(ceiling, options, meter_);
      if (!values) break;
      const BandOutcome outcome =
          searchValues(band.reduction, band.problem, *values, band.multipliers, ceiling);
      if (!outcome.fits) break;
      if (ceiling >= last) return closed();
      for (const std::vector<int32_t>& choice : outcome.choices) {
        if (const auto labels = labelsOf(choice, band.problem, band.reduction)) learn(*labels);
      }
    }
    if (stopped() || closed()) break;
    best_bound = std::max(best_bound, bound);
    const CuttingPlanes::Solution solution = master.solve();
    if (solution.value - best_bound < 1e-5 * std::abs(best_bound)) break;
    multipliers = solution.multipliers;
  }
  return closed();
}

// Searches the given values only, which include those of every choice of at most ceiling.
Search::BandOutcome Search::searchValues(const Reduction& whole, const ReducedProblem& problem,
                                         std::vector<std::vector<int32_t>> values,
                                         const std::vector<double>& multipliers, double ceiling) {
  const auto stop = [this] { return stopped(); };
  // With the incumbent's values there is always a choice, and multipliers stay sound.
  if (const auto labels = labelsOf(incumbent_, problem, whole)) {
    for (size_t v = 0; v < values.size(); ++v) {
      const auto at = std::lower_bound(values[v].begin(), values[v].end(), (*labels)[v]);
      if (at == values[v].end() || *at != (*labels)[v]) values[v].insert(at, (*labels)[v]);
    }
  }
  Reduction narrow = whole;
  for (size_t v = 0; v < values.size(); ++v) {
    narrow.keepValues(problem.variables()[v].reduction_variable, values[v]);
  }
  PresolveOptions presolve_options;
  presolve_options.out_of_time = stop;
  if (!narrow.infeasible()) presolve(narrow, layout_, presolve_options);
  meter_.addMessages(3.0 * problem.numEntries());
  if (narrow.infeasible()) {
    raiseBound(ceiling + 1.0);
    return {true, {}};
  }
  const ReducedProblem part(narrow, layout_);
  const Elimination elimination(part, {kMaxBandWork, kMaxBandBytes});
  if (!elimination.fits()) return {};
  const std::vector<double> start = multipliersOf(part, multipliersByRow(problem, multipliers));
  LagrangianOptions options;
  options.stop = [this] { return stopped() || closed(); };
  options.target = cutoff();
  options.max_evaluations = 40;
  options.on_bound = [&](double bound) { raiseBound(std::min(bound, ceiling + 1.0)); };
  BandOutcome outcome;
  outcome.fits = true;
  options.on_labels = [&](const std::vector<int32_t>& labels) {
    outcome.choices.push_back(part.expand(narrow.pool(), labels));
    considerRepaired(part, narrow, labels);
  };
  const LagrangianResult result = maximiseLagrangian(part, elimination, options, meter_, start);
  // What prices memory best near the bound is a good guess for all of it.
  if (!result.infeasible && result.bound < cutoff()) {
    guessed_multipliers_ = multipliersByRow(part, result.multipliers);
  }
  if (result.infeasible || result.bound > ceiling) {
    raiseBound(ceiling + 1.0);
    return outcome;
  }
  if (closed() || stopped()) return outcome;
  Band band{narrow, part, elimination, result.multipliers, ceiling};
  searchBand(band);
  return outcome;
}

// Returns a row to track as well, or -1.
int32_t Search::searchTracked(Band& band, const std::vector<int32_t>& rows, double limit) {
  const auto stop = [this] { return stopped(); };
  ParetoElimination pareto(band.problem, band.elimination, rows);
  std::vector<double> best;
  for (int32_t row : rows) best.push_back(band.multipliers[static_cast<size_t>(row)]);
  for (const std::vector<double>& multipliers : multipliersAround(best)) {
    meter_.addRows(band.elimination.work());
    if (stopped()) return -1;
    pareto.addMultipliers(multipliers, stop);
  }
  const double bound = pareto.bound();
  if (bound == -kInfinity) return -1;
  ParetoOptions options;
  options.stop = stop;
  options.max_points = kMaxExactPoints;
  options.max_sums = kMaxSums;
  options.max_entries = kMaxReachedEntries;
  int32_t overloaded = -1;
  const auto run = [&](double ceiling, size_t max_front) {
    options.max_front = max_front;
    ParetoResult result = pareto.solve(ceiling, options, meter_);
    if (!result.finished) return result;
    raiseBound(result.bound);
    for (const std::vector<int32_t>& labels : result.labels) {
      considerRepaired(band.problem, band.reduction, labels);
    }
    if (!result.labels.empty()) {
      const std::vector<int64_t> overload = band.problem.overloadOf(result.labels.front());
      const auto worst = std::max_element(overload.begin(), overload.end());
      overloaded = *worst > 0 ? static_cast<int32_t>(worst - overload.begin()) : -1;
    }
    return result;
  };
  // A good choice first, in a quick way: the exact search need not look beyond it.
  double width = std::max(16.0, 2e-6 * std::abs(bound));
  while (!stopped() && !closed()) {
    const double ceiling = std::min({std::floor(bound + width), limit, improvingCutoff()});
    const ParetoResult result = run(ceiling, kQuickFront);
    if (!result.finished || closed() || result.num_points > kMaxQuickPoints) break;
    if (!result.truncated && !result.labels.empty()) return overloaded;
    if (!result.labels.empty() || ceiling >= std::min(limit, improvingCutoff())) break;
    width *= 3.0;
  }
  // Then the exact one, in smaller bands where it is too much.
  double ceiling = std::min({limit, improvingCutoff(), std::floor(bound + 3.0 * width)});
  for (int i = 0; i < kMaxHalvings && ceiling >= bound && !stopped() && !closed(); ++i) {
    const ParetoResult result = run(ceiling, options.max_points);
    if (result.finished) return result.labels.empty() ? -1 : overloaded;
    ceiling = std::floor(bound + 0.5 * (ceiling - bound));
  }
  return -1;
}

bool Search::searchByPareto(const ReducedProblem& reduced, const Elimination& elimination,
                            const std::vector<double>& multipliers) {
  if (reduction_.infeasible()) return false;
  if (numValues(reduced) != numValuesLeft()) {
    // Fixing has renumbered the values since.
    const ReducedProblem present(reduction_, layout_);
    const Elimination fewer(present,
                            {options_.max_elimination_work, options_.max_elimination_bytes});
    if (!fewer.fits()) return false;
    Band band{reduction_, present, fewer,
              multipliersOf(present, multipliersByRow(reduced, multipliers)), kInfinity};
    return searchBand(band);
  }
  Band band{reduction_, reduced, elimination, multipliers, kInfinity};
  return searchBand(band);
}

bool Search::searchNearBound(const ReducedProblem& reduced, const MarginalResult& marginals) {
  if (marginals.costs.empty() || stopped()) return false;
  const Phase phase(*this, "near bound");
  // Bands above the marginals' own bound, as wide as they can be; one that ends below the best
  // bound proves nothing, but still tells good multipliers.
  const double bound = marginals.optimum;
  const double scale = std::max(1.0, std::abs(bound));
  std::vector<std::vector<int32_t>> values(marginals.costs.size());
  double width = std::min(kNarrowestBand * scale, near_width_);
  while (!stopped() && !closed()) {
    const double ceiling = std::min(std::floor(bound + width), improvingCutoff());
    if (ceiling < bound) break;
    for (size_t v = 0; v < values.size(); ++v) {
      values[v].clear();
      for (size_t a = 0; a < marginals.costs[v].size(); ++a) {
        if (marginals.costs[v][a] <= ceiling) values[v].push_back(static_cast<int32_t>(a));
      }
    }
    if (!searchValues(reduction_, reduced, values, multipliersOf(reduced, multipliers_), ceiling)
             .fits) {
      near_width_ = 0.25 * width;
      break;
    }
    near_width_ = width;
    width *= 5.0;
    if (ceiling >= improvingCutoff() || width > kWidestBand * scale) break;
  }
  return !guessed_multipliers_.empty();
}

}  // namespace shardwright
