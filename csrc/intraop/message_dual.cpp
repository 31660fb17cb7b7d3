#include "intraop/message_dual.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace shardwright {
namespace {

constexpr int kFirstSweeps = 30;     // before memory is priced
constexpr int kWarmSweeps = 5;       // the same, going on from an earlier run
constexpr int kFinalSweeps = 20;     // before values are fixed
constexpr double kAveraging = 0.15;  // share of the new direction
constexpr int kPatience = 25;        // sweeps without gain before the step shrinks
constexpr double kGain = 1e-7;       // relative gain that counts
constexpr int kStallSweeps = 250;    // sweeps judged together
constexpr int kMarginalSweeps = 40;  // sweeps between looks at the marginals

class MessageDual {
 public:
  MessageDual(const ReducedProblem& problem, const MessageDualOptions& options, WorkMeter& meter)
      : problem_(problem),
        options_(options),
        passing_(problem),
        meter_(meter),
        start_(meter.seconds()),
        // Bytes are counted in units of the largest slack, to keep the step's numbers near one.
        unit_(1.0) {
    for (int64_t slack : problem.slackBytes()) {
      unit_ = std::max(unit_, static_cast<double>(slack));
    }
  }

  MessageDualResult run(const std::vector<double>& start) {
    multipliers_ = start;
    multipliers_.resize(static_cast<size_t>(problem_.numRows()), 0.0);
    result_.multipliers = multipliers_;
    direction_.assign(multipliers_.size(), 0.0);
    if (options_.memory) {
      options_.memory->recall(problem_, passing_);
      direction_ = options_.memory->recallDirection(problem_);
      for (double& component : direction_) component /= unit_;
      target_gain_ = options_.memory->targetGain();
    }
    if (price()) {
      const int num_first = target_gain_ > 0.0 ? kWarmSweeps : kFirstSweeps;
      for (int i = 0; i < num_first && !over(); ++i) sweep();
      if (problem_.numRows() == 0 || options_.keep_multipliers) {
        sweepUntilStalled();
      } else {
        climb();
      }
    }
    finish();
    if (options_.memory) {
      options_.memory->store(problem_, passing_);
      for (double& component : direction_) component *= unit_;
      options_.memory->storeAscent(problem_, direction_, target_gain_);
    }
    return std::move(result_);
  }

 private:
  bool over() const {
    return enough_ || meter_.seconds() - start_ > options_.time_limit_s ||
           result_.bound >= options_.target() || (options_.stop && options_.stop());
  }

  // Puts the multipliers into the costs; false when they leave the exact range.
  bool price() {
    auto weighted = weightCosts(problem_, multipliers_);
    if (!weighted) return false;
    passing_.setCosts(std::move(*weighted));
    return true;
  }

  double sweep() {
    double bound = -kInfinity;
    if (options_.enough && result_.num_sweeps % kMarginalSweeps == kMarginalSweeps - 1) {
      MarginalResult marginals = passing_.marginals();
      bound = marginals.optimum;
      if (options_.enough(marginals)) {
        result_.marginals = std::move(marginals);
        enough_ = true;
      }
    } else {
      bound = passing_.sweep();
    }
    meter_.addMessages(2.0 * problem_.numEntries());
    meter_.addLookups(
        4.0 * (problem_.numVariables() + 2.0 * static_cast<double>(problem_.edges().size())));
    ++result_.num_sweeps;
    if (bound > result_.bound) {
      result_.bound = bound;
      result_.multipliers = multipliers_;
      if (options_.on_bound) options_.on_bound(bound);
    }
    return bound;
  }

  void offerLabels() {
    if (options_.on_labels) options_.on_labels(passing_.labels());
  }

  void sweepUntilStalled() {
    double reference = result_.bound;
    for (int i = 1; !over(); ++i) {
      sweep();
      if (i % 10 == 0) offerLabels();
      if (i % 50 != 0) continue;
      if (result_.bound - reference <= smallGain()) {
        result_.stalled = true;
        return;
      }
      reference = result_.bound;
    }
  }

  // A gain that many sweeps should exceed to be worth their time.
  double smallGain() const {
    const double missing = options_.target() - result_.bound;
    return std::max(
        1e-6 * std::abs(result_.bound),
        missing < kInfinity ? std::min(0.01 * missing, 1e-3 * std::abs(result_.bound)) : 0.0);
  }

  // Subgradient ascent whose step aims at a target gain, which follows success and failure.
  void climb() {
    if (target_gain_ <= 0.0) target_gain_ = 0.01 * std::max(1.0, std::abs(result_.bound));
    double previous = -kInfinity;
    int since_gain = 0;
    int num_resets = 0;
    double stall_reference = result_.bound;
    int stall_sweep = result_.num_sweeps;
    while (!over()) {
      if (!price()) return;
      const double best_before = result_.bound;
      const double bound = sweep();
      const double gain = bound - best_before;
      if (gain > 0.0) {
        since_gain = gain > kGain * std::abs(result_.bound) ? 0 : since_gain + 1;
        if (gain > 0.02 * target_gain_) target_gain_ *= 1.1;
      } else {
        ++since_gain;
        if (bound < previous) target_gain_ *= 0.97;
      }
      offerLabels();
      if (bound < result_.bound - 20.0 * target_gain_ || since_gain >= kPatience) {
        target_gain_ *= 0.7;
        since_gain = 0;
        multipliers_ = result_.multipliers;
        for (double& component : direction_) component *= 0.5;
        if (target_gain_ < kGain * std::abs(result_.bound)) {
          target_gain_ = 1e-3 * std::abs(result_.bound) * std::pow(0.5, ++num_resets);
        }
        if (!price()) return;
        for (int i = 0; i < 4 && !over(); ++i) sweep();
      }
      previous = bound;
      step();
      if (result_.num_sweeps - stall_sweep >= kStallSweeps) {
        if (result_.bound - stall_reference <= smallGain()) {
          result_.stalled = true;
          return;
        }
        stall_reference = result_.bound;
        stall_sweep = result_.num_sweeps;
      }
    }
  }

  void step() {
    const std::vector<int64_t> overload = problem_.overloadOf(passing_.labels());
    double norm = 0.0;
    for (size_t row = 0; row < direction_.size(); ++row) {
      direction_[row] = (1.0 - kAveraging) * direction_[row] +
                        kAveraging * static_cast<double>(overload[row]) / unit_;
      if (multipliers_[row] > 0.0 || direction_[row] > 0.0)
        norm += direction_[row] * direction_[row];
    }
    if (norm <= 0.0) return;
    const double length = target_gain_ / norm / unit_;
    for (size_t row = 0; row < direction_.size(); ++row) {
      multipliers_[row] = std::max(0.0, multipliers_[row] + length * direction_[row]);
    }
  }

  void finish() {
    if (enough_) return;
    multipliers_ = result_.multipliers;
    if (!price()) return;
    for (int i = 0; i < kFinalSweeps && !(options_.stop && options_.stop()); ++i) sweep();
    result_.marginals = passing_.marginals();
    if (result_.stalled) result_.joins = passing_.worthJoining();
    if (result_.marginals.optimum > result_.bound) {
      result_.bound = result_.marginals.optimum;
      if (options_.on_bound) options_.on_bound(result_.bound);
    }
  }

  const ReducedProblem& problem_;
  const MessageDualOptions& options_;
  MessagePassing passing_;
  WorkMeter& meter_;
  double start_;
  double unit_;
  std::vector<double> multipliers_;
  std::vector<double> direction_;  // of the ascent, in overload units per row
  double target_gain_ = 0.0;
  bool enough_ = false;
  MessageDualResult result_;
};

}  // namespace

MessageDualResult maximiseByMessages(const ReducedProblem& problem,
                                     const MessageDualOptions& options, WorkMeter& meter,
                                     const std::vector<double>& start) {
  return MessageDual(problem, options, meter).run(start);
}

}  // namespace shardwright
