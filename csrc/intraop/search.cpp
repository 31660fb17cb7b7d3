#include "intraop/search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "intraop/elimination.h"
#include "intraop/exhaustive_search.h"
#include "intraop/integer_program.h"
#include "intraop/lagrangian.h"
#include "intraop/local_search.h"
#include "intraop/message_dual.h"
#include "intraop/neighbourhood_search.h"
#include "intraop/presolve.h"

namespace shardwright {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int32_t kMaxExhaustiveVariables = 400;
// Eliminations below this are repeated freely; above it, message passing goes first.
constexpr double kLightWork = 5e7;
constexpr double kWorkPerSecond = 1e9;
constexpr double kNearBoundWork = 3e8;
// Min-marginals keep about one byte per entry visited.
constexpr double kMaxMarginalWork = 6e8;
// CBC is not started on programs it could not even set up in the time left.
constexpr double kProgramEntriesPerSecond = 15'000.0;

size_t numValues(const ReducedProblem& reduced) {
  size_t count = 0;
  for (const ReducedVariable& variable : reduced.variables()) count += variable.costs.size();
  return count;
}

UnaryCosts costsOf(const ReducedProblem& reduced) {
  UnaryCosts costs;
  costs.reserve(reduced.variables().size());
  for (const ReducedVariable& variable : reduced.variables()) costs.push_back(variable.costs);
  return costs;
}

}  // namespace

// Adds the wall time of a scope to a named phase.
class Search::Phase {
 public:
  Phase(Search& search, std::string name) : search_(search), start_(Clock::now()) {
    search_.phase_name_ = std::move(name);
    search_.report();
  }
  ~Phase() {
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    for (PhaseTime& phase : search_.phases_) {
      if (phase.phase == search_.phase_name_) {
        phase.seconds += seconds;
        return;
      }
    }
    search_.phases_.push_back({search_.phase_name_, seconds});
  }
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;

 private:
  Search& search_;
  Clock::time_point start_;
};

Search::Search(const Problem& problem, const SolveOptions& options)
    : problem_(problem),
      options_(options),
      start_(Clock::now()),
      reduction_(problem),
      layout_(problem),
      last_report_(start_ - std::chrono::seconds(1)) {}

double Search::seconds() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

double Search::secondsLeft() const { return options_.time_limit_s - seconds(); }

double Search::nominalLeft() const {
  return std::max(0.0, options_.time_limit_s - meter_.seconds());
}

bool Search::outOfTime() const { return secondsLeft() <= 0.0; }

bool Search::interrupted() {
  report();
  return options_.interrupt && options_.interrupt->load();
}

bool Search::stopped() { return interrupted() || outOfTime(); }

bool Search::closed() const {
  if (incumbent_.empty()) return false;
  if (options_.relative_gap == std::numeric_limits<double>::infinity()) return true;
  if (!lower_bound_) return false;
  const double distance = static_cast<double>(incumbent_cost_ - *lower_bound_);
  return distance <= options_.relative_gap * std::abs(static_cast<double>(incumbent_cost_));
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

double Search::cutoff() const {
  if (incumbent_.empty()) return kInfinity;
  // With a shift the incumbent's shifted cost is at most this; cutting above it removes nothing
  // that is better.
  return std::floor(std::ldexp(static_cast<double>(incumbent_cost_), -reduction_.costShift()));
}

Claim Search::run() {
  constexpr int kMaxRounds = 40;
  for (int round = 0; round < kMaxRounds; ++round) {
    if (reduce()) return claim();
    const ReducedProblem reduced(reduction_, layout_);
    const size_t values_before = numValues(reduced);
    const double cutoff_before = cutoff();
    const EliminationLimits limits{options_.max_elimination_work, options_.max_elimination_bytes};
    const Elimination elimination(reduced, limits);
    if (!elimination.fits() || elimination.work() > kLightWork) {
      if (boundByMessages(reduced, messageSeconds(reduced, elimination, round))) return claim();
      const bool tried_enough =
          elimination.fits() && meter_.seconds() > 1.5 * elimination.work() / kWorkPerSecond;
      if (!tried_enough && numValuesLeft() < 0.9 * static_cast<double>(values_before)) continue;
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
    // A better incumbent lets the next round fix more, which is what makes a heavy elimination
    // light.
    if (elimination.fits() && elimination.work() > kLightWork && cutoff() < cutoff_before &&
        nominalLeft() > 0.2 * options_.time_limit_s) {
      continue;
    }
    // On wide problems the bound keeps rising: more messages, then more blocks, while time is left.
    if (!elimination.fits() && !programFits(reduced) &&
        nominalLeft() > 0.1 * options_.time_limit_s) {
      continue;
    }
    if (!finishWithIntegerProgram(reduced)) improveByNeighbourhoods(reduced, nominalLeft());
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
                                carriedMultipliers(reduced));
  }
  carryMultipliers(reduced, result.multipliers);
  if (result.infeasible || result.bound > ceiling) {
    closeByDualBound();
    return true;
  }
  if (closed()) return true;
  if (incumbent_.empty() || stopped() || result.multipliers.empty()) return false;
  improveByNeighbourhoods(reduced, neighbourhoodSeconds());
  if (closed()) return true;
  if (elimination.unsharedWork() >
      std::min(kMaxMarginalWork, kWorkPerSecond * 0.2 * nominalLeft())) {
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

double Search::messageSeconds(const ReducedProblem& reduced, const Elimination& elimination,
                              int round) const {
  // What fixing leaves after a short round is quicker to bound, so rounds start short and double.
  if (elimination.fits()) {
    return std::min(0.5 * elimination.work() / kWorkPerSecond, 0.25 * nominalLeft());
  }
  constexpr double kFirstSweeps = 100.0;
  WorkMeter sweep;
  sweep.addMessages(2.0 * reduced.numEntries());
  const double first = std::max(0.3, kFirstSweeps * sweep.seconds());
  return std::min(std::ldexp(first, round), 0.5 * nominalLeft());
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
    dual_options.on_labels = [&](const std::vector<int32_t>& labels) {
      searchFrom(reduced, labels);
    };
    result = maximiseByMessages(reduced, dual_options, meter_, carriedMultipliers(reduced));
    carryMultipliers(reduced, result.multipliers);
  }
  if (result.bound > ceiling) {
    closeByDualBound();
    return true;
  }
  if (closed()) return true;
  const UnaryCosts& marginals = result.marginals.costs;
  if (marginals.empty()) return false;
  searchNearBound(reduced, marginals);
  if (closed()) return true;
  // When the incumbent is good enough to fix much, bounding what is left pays more than blocks.
  if (fixableShare(marginals) < 0.2) {
    improveByNeighbourhoods(reduced, neighbourhoodSeconds());
    if (closed()) return true;
  }
  fixByMarginals(reduced, marginals);
  return false;
}

double Search::neighbourhoodSeconds() const {
  // In proportion to what the bound cost, so that quick problems stay quick.
  return std::min(0.15 * nominalLeft(), 0.5 * meter_.seconds() + 0.02);
}

std::vector<double> Search::carriedMultipliers(const ReducedProblem& reduced) const {
  std::vector<double> multipliers;
  for (int32_t row : reduced.layoutRows()) {
    const auto it = multiplier_of_row_.find(row);
    multipliers.push_back(it == multiplier_of_row_.end() ? 0.0 : it->second);
  }
  return multipliers;
}

void Search::carryMultipliers(const ReducedProblem& reduced,
                              const std::vector<double>& multipliers) {
  multiplier_of_row_.clear();
  for (size_t i = 0; i < multipliers.size(); ++i) {
    if (multipliers[i] > 0.0) multiplier_of_row_[reduced.layoutRows()[i]] = multipliers[i];
  }
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

double Search::numValuesLeft() const {
  double count = 0.0;
  for (const Variable& variable : reduction_.variables()) {
    if (variable.alive) count += variable.numValues();
  }
  return count;
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

bool Search::enumerate(const ReducedProblem& reduced) {
  if (reduced.numVariables() > kMaxExhaustiveVariables) return false;
  const Phase phase(*this, "enumeration");
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
  IntegerProgramOptions program_options;
  program_options.time_limit_s = secondsLeft();
  program_options.stop = [this] { return interrupted(); };
  if (const auto labels = incumbentLabels(reduced)) program_options.incumbent = *labels;
  program_options.lower_bound =
      lower_bound_ ? std::ldexp(static_cast<double>(*lower_bound_), -reduction_.costShift()) : 0.0;
  const IntegerProgramResult result = solveIntegerProgram(reduced, program_options);
  if (!result.labels.empty()) consider(reduced, result.labels);
  if (result.infeasible && incumbent_.empty()) {
    proof_ = InfeasibilityProof::kIntegerProgram;
    return true;
  }
  if (result.bound) raiseBound(*result.bound);
  return closed();
}

bool Search::consider(const ReducedProblem& reduced, std::span<const int32_t> labels) {
  if (labels.empty() && reduced.numVariables() > 0) return false;
  const int64_t before = incumbent_cost_;
  const bool had_one = !incumbent_.empty();
  considerChoice(reduced.expand(reduction_.pool(), labels));
  return !incumbent_.empty() && (!had_one || incumbent_cost_ < before);
}

void Search::considerChoice(std::vector<int32_t> choice) {
  const Evaluation found = evaluateChoice(problem_, choice);
  if (!found.valid()) return;
  if (!incumbent_.empty() && found.cost >= incumbent_cost_) return;
  incumbent_ = std::move(choice);
  incumbent_cost_ = found.cost;
  report();
}

void Search::closeByDualBound() {
  if (incumbent_.empty()) {
    proof_ = InfeasibilityProof::kDualBound;
  } else {
    raiseBound(cutoff());
  }
}

void Search::raiseBound(double bound) {
  // Values were only removed from choices that cost more than the incumbent.
  const double rounded = std::min(std::ceil(bound), has_fixed_ ? cutoff() : kInfinity);
  if (!(std::abs(rounded) < 9e15)) return;
  // Rounding down every cost by 2^shift leaves a bound on the true cost.
  const int64_t units = static_cast<int64_t>(rounded) * (int64_t{1} << reduction_.costShift());
  if (!lower_bound_ || units > *lower_bound_) {
    lower_bound_ = units;
    report();
  }
}

std::optional<std::vector<int32_t>> Search::incumbentLabels(const ReducedProblem& reduced) const {
  if (incumbent_.empty()) return std::nullopt;
  std::vector<int32_t> labels;
  for (const ReducedVariable& variable : reduced.variables()) {
    int32_t label = -1;
    for (int32_t a = 0; a < variable.numValues() && label < 0; ++a) {
      const bool matches =
          std::all_of(variable.members.begin(), variable.members.end(), [&](const Member& member) {
            return reduction_.pool().list(member.strategies)[static_cast<size_t>(a)] ==
                   incumbent_[static_cast<size_t>(member.node)];
          });
      if (matches) label = a;
    }
    if (label < 0) return std::nullopt;
    labels.push_back(label);
  }
  if (reduced.costOf(labels) == kInfinity) return std::nullopt;
  return labels;
}

void Search::report() {
  if (!options_.on_progress) return;
  const auto now = Clock::now();
  if (now - last_report_ < std::chrono::milliseconds(100)) return;
  last_report_ = now;
  SolveProgress progress;
  progress.phase = phase_name_;
  if (!incumbent_.empty()) progress.cost = incumbent_cost_;
  progress.lower_bound = lower_bound_;
  progress.seconds = seconds();
  options_.on_progress(progress);
}

Claim Search::claim() const {
  Claim result;
  result.choice = incumbent_;
  result.cost = incumbent_cost_;
  result.lower_bound = lower_bound_;
  result.proof = proof_;
  if (proof_ != InfeasibilityProof::kNone || (closed() && options_.relative_gap == 0.0)) {
    result.stop = StopCause::kFinished;
  } else if (closed()) {
    result.stop = StopCause::kGapReached;
  } else if (options_.interrupt && options_.interrupt->load()) {
    result.stop = StopCause::kInterrupted;
  } else if (incumbent_.empty() || outOfTime()) {
    result.stop = StopCause::kTimeLimit;
  } else {
    result.stop = StopCause::kFinished;
  }
  return result;
}

}  // namespace shardwright
