// What a search knows: clock, incumbent, bound, multipliers, and the claim made of them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "intraop/local_search.h"
#include "intraop/search.h"

namespace shardwright {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

Search::Phase::Phase(Search& search, std::string name)
    : search_(search), outer_(search.phase_name_) {
  charge();
  search_.phase_name_ = std::move(name);
  search_.report();
}

Search::Phase::~Phase() {
  charge();
  search_.phase_name_ = std::move(outer_);
}

void Search::Phase::charge() {
  const Clock::time_point now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - search_.phase_start_).count();
  search_.phase_start_ = now;
  if (search_.phase_name_.empty()) return;
  for (PhaseTime& phase : search_.phases_) {
    if (phase.phase == search_.phase_name_) {
      phase.seconds += seconds;
      return;
    }
  }
  search_.phases_.push_back({search_.phase_name_, seconds});
}

Search::Search(const Problem& problem, const SolveOptions& options)
    : problem_(problem),
      options_(options),
      start_(Clock::now()),
      reduction_(problem),
      layout_(problem),
      message_memory_(reduction_.pool()),
      phase_start_(start_),
      last_report_(start_ - std::chrono::seconds(1)) {}

double Search::seconds() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

double Search::secondsLeft() const { return options_.time_limit_s - seconds(); }

double Search::nominalLeft() const {
  return std::max(0.0, options_.time_limit_s - meter_.seconds());
}

bool Search::outOfTime() const {
  return parent_ ? nominalLeft() <= 0.0 || parent_->outOfTime() : secondsLeft() <= 0.0;
}

bool Search::interrupted() {
  report();
  return options_.interrupt && options_.interrupt->load();
}

bool Search::stopped() { return interrupted() || outOfTime(); }

bool Search::closed() const {
  if (incumbent_.empty()) return false;
  if (options_.relative_gap == std::numeric_limits<double>::infinity()) return true;
  return gapAtMost(options_.relative_gap);
}

bool Search::gapAtMost(double relative_gap) const {
  return distance() <= relative_gap * std::abs(static_cast<double>(incumbent_cost_));
}

double Search::improvingCutoff() const {
  // Costs that were rounded down can be equal and yet one of them smaller.
  return reduction_.costShift() == 0 ? cutoff() - 1.0 : cutoff();
}

double Search::distance() const {
  if (incumbent_.empty() || !lower_bound_) return kInfinity;
  return static_cast<double>(incumbent_cost_ - *lower_bound_);
}

double Search::cutoff() const {
  if (incumbent_.empty()) return kInfinity;
  // With a shift the incumbent's shifted cost is at most this; cutting above it removes nothing
  // that is better. The shift comes before the conversion, which would round to a nearest double.
  return static_cast<double>(incumbent_cost_ >> reduction_.costShift());
}

bool Search::consider(const ReducedProblem& reduced, std::span<const int32_t> labels) {
  if (labels.empty() && reduced.numVariables() > 0) return false;
  if (reduction_.costShift() == 0 && reduced.costOf(labels) >= cutoff()) return false;
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

void Search::closeByDualBound() {
  if (incumbent_.empty()) {
    proof_ = InfeasibilityProof::kDualBound;
  } else {
    raiseBound(cutoff());
  }
}

std::optional<std::vector<int32_t>> Search::labelsOf(const std::vector<int32_t>& choice,
                                                     const ReducedProblem& reduced,
                                                     const Reduction& reduction) {
  if (choice.empty()) return std::nullopt;
  std::vector<int32_t> labels;
  for (const ReducedVariable& variable : reduced.variables()) {
    int32_t label = -1;
    for (int32_t a = 0; a < variable.numValues() && label < 0; ++a) {
      const bool matches =
          std::all_of(variable.members.begin(), variable.members.end(), [&](const Member& member) {
            return reduction.pool().list(member.strategies)[static_cast<size_t>(a)] ==
                   choice[static_cast<size_t>(member.node)];
          });
      if (matches) label = a;
    }
    if (label < 0) return std::nullopt;
    labels.push_back(label);
  }
  if (reduced.costOf(labels) == kInfinity) return std::nullopt;
  return labels;
}

std::vector<int32_t> Search::nearestLabels(const ReducedProblem& reduced) const {
  std::vector<int32_t> labels;
  for (const ReducedVariable& variable : reduced.variables()) {
    std::vector<int32_t> num_equal(variable.costs.size(), 0);
    for (const Member& member : variable.members) {
      const std::vector<int32_t>& strategies = reduction_.pool().list(member.strategies);
      const int32_t chosen = incumbent_[static_cast<size_t>(member.node)];
      for (size_t a = 0; a < num_equal.size(); ++a) num_equal[a] += strategies[a] == chosen ? 1 : 0;
    }
    labels.push_back(static_cast<int32_t>(std::max_element(num_equal.begin(), num_equal.end()) -
                                          num_equal.begin()));
  }
  return labels;
}

const std::optional<std::vector<int32_t>>& Search::incumbentLabels(const ReducedProblem& reduced) {
  if (labels_round_ == round_ && labels_cost_ == incumbent_cost_) return incumbent_labels_;
  labels_round_ = round_;
  labels_cost_ = incumbent_cost_;
  incumbent_labels_.reset();
  if (incumbent_.empty()) return incumbent_labels_;
  // Presolve may have dropped values of the incumbent for others that are as good, so what is
  // nearest is repaired where need be.
  LocalSearch search(reduced, nearestLabels(reduced), meter_, [this] { return stopped(); });
  if (!search.fits() || search.cost() > cutoff()) {
    search.improve(true);
    if (!search.repair(reduced.numVariables())) return incumbent_labels_;
    search.improve(true);
  }
  if (search.cost() < kInfinity) incumbent_labels_ = search.labels();
  return incumbent_labels_;
}

double Search::numValuesLeft() const {
  double count = 0.0;
  for (const Variable& variable : reduction_.variables()) {
    if (variable.alive) count += variable.numValues();
  }
  return count;
}

std::vector<double> Search::multipliersOf(const ReducedProblem& reduced, const MultiplierMap& map) {
  std::vector<double> multipliers;
  for (int32_t row : reduced.layoutRows()) {
    const auto it = map.find(row);
    multipliers.push_back(it == map.end() ? 0.0 : it->second);
  }
  return multipliers;
}

Search::MultiplierMap Search::multipliersByRow(const ReducedProblem& reduced,
                                               const std::vector<double>& multipliers) {
  MultiplierMap map;
  for (size_t i = 0; i < multipliers.size(); ++i) {
    if (multipliers[i] > 0.0) map[reduced.layoutRows()[i]] = multipliers[i];
  }
  return map;
}

void Search::report() {
  if (!options_.on_progress || phase_name_.empty()) return;  // between phases there is no name
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
  } else if (gapAtMost(options_.good_gap)) {
    result.stop = StopCause::kGapReached;
  } else {
    result.stop = StopCause::kFinished;
  }
  return result;
}

}  // namespace shardwright
