#include "intraop/search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "intraop/elimination.h"
#include "intraop/exhaustive_search.h"
#include "intraop/integer_program.h"
#include "intraop/presolve.h"

namespace shardwright {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxExhaustiveNodes = 200'000;
constexpr int32_t kMaxExhaustiveVariables = 400;
// CBC is not started on programs it could not even set up in the time left.
constexpr double kProgramEntriesPerSecond = 15'000.0;

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

bool Search::outOfTime() const { return secondsLeft() <= 0.0; }

bool Search::stopped() const {
  return outOfTime() || (options_.interrupt && options_.interrupt->load());
}

bool Search::closed() const {
  if (incumbent_.empty()) return false;
  if (options_.relative_gap == std::numeric_limits<double>::infinity()) return true;
  if (!lower_bound_) return false;
  const double distance = static_cast<double>(incumbent_cost_ - *lower_bound_);
  return distance <= options_.relative_gap * std::abs(static_cast<double>(incumbent_cost_));
}

Claim Search::run() {
  if (reduce()) return claim();
  const ReducedProblem reduced(reduction_, layout_);
  if (solveExactly(reduced) || enumerate(reduced)) return claim();
  finishWithIntegerProgram(reduced);
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
  if (reduction_.infeasible()) {
    proof_ = incumbent_.empty() ? reduction_.proof() : InfeasibilityProof::kNone;
    return true;
  }
  return false;
}

bool Search::solveExactly(const ReducedProblem& reduced) {
  const Phase phase(*this, "elimination");
  const EliminationLimits limits{options_.max_elimination_work, options_.max_elimination_bytes};
  const Elimination elimination(reduced, limits);
  if (!elimination.fits()) return false;
  const auto result = elimination.solve(costsOf(reduced), [this] { return stopped(); });
  if (!result) return false;
  if (result->optimum == kInfinity) {
    proof_ = InfeasibilityProof::kEnumeration;
    return true;
  }
  raiseBound(result->optimum);
  consider(reduced, result->labels);
  return closed();
}

bool Search::enumerate(const ReducedProblem& reduced) {
  if (reduced.numVariables() > kMaxExhaustiveVariables) return false;
  const Phase phase(*this, "enumeration");
  const auto incumbent = incumbentLabels(reduced);
  // Below the incumbent means cheaper by at least one unit.
  const double cutoff = incumbent ? reduced.costOf(*incumbent) - 0.5 : kInfinity;
  const ExhaustiveResult result =
      searchExhaustively(reduced, cutoff, kMaxExhaustiveNodes, [this] { return stopped(); });
  if (!result.labels.empty()) consider(reduced, result.labels);
  if (!result.finished) return closed();
  if (!result.labels.empty()) {
    raiseBound(result.cost);
  } else if (incumbent) {
    raiseBound(reduced.costOf(*incumbent));
  } else if (incumbent_.empty()) {
    proof_ = InfeasibilityProof::kEnumeration;
  }
  return true;
}

bool Search::finishWithIntegerProgram(const ReducedProblem& reduced) {
  if (!options_.use_integer_program || stopped()) return false;
  if (integerProgramSize(reduced) > kProgramEntriesPerSecond * secondsLeft()) return false;
  const Phase phase(*this, "integer program");
  IntegerProgramOptions program_options;
  program_options.time_limit_s = secondsLeft();
  program_options.interrupt = options_.interrupt;
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

void Search::raiseBound(double bound) {
  const double rounded = std::ceil(bound);
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
