#include "intraop/lagrangian.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "intraop/cutting_planes.h"

namespace shardwright {
namespace {

class LagrangianSearch {
 public:
  LagrangianSearch(const ReducedProblem& problem, const Elimination& elimination,
                   const LagrangianOptions& options, WorkMeter& meter)
      : problem_(problem), elimination_(elimination), options_(options), meter_(meter) {}

  LagrangianResult run(const std::vector<double>& start) {
    std::vector<double> multipliers(static_cast<size_t>(problem_.numRows()), 0.0);
    const bool has_start =
        std::any_of(start.begin(), start.end(), [](double multiplier) { return multiplier > 0.0; });
    if (!has_start && !evaluate(multipliers)) return std::move(result_);
    if (has_start) {
      for (size_t row = 0; row < start.size(); ++row) {
        if (start[row] > 0.0) activate(static_cast<int32_t>(row), 4.0 * start[row]);
      }
      if (!evaluate(start) || !maximiseOverActiveRows()) return std::move(result_);
    }
    while (addViolatedRows()) {
      if (!maximiseOverActiveRows()) return std::move(result_);
    }
    return std::move(result_);
  }

 private:
  struct Point {
    double cost;
    std::vector<double> overload;
  };

  // One elimination; false when the search must end.
  bool evaluate(const std::vector<double>& multipliers) {
    if (result_.num_evaluations >= options_.max_evaluations || stopped()) return false;
    const std::optional<WeightedCosts> weighted = weightCosts(problem_, multipliers);
    if (!weighted) return false;
    const auto found = elimination_.solve(weighted->unary, options_.stop);
    if (!found) return false;
    ++result_.num_evaluations;
    meter_.addRows(elimination_.work());
    meter_.addSteps(problem_.numVariables() + 10.0);
    if (found->optimum == kInfinity) {
      result_.infeasible = true;
      return false;
    }
    last_bound_ = found->optimum - weighted->constant;
    if (last_bound_ > result_.bound) {
      result_.bound = last_bound_;
      result_.multipliers = multipliers;
      if (options_.on_bound) options_.on_bound(last_bound_);
    }
    const std::vector<int64_t> overload = problem_.overloadOf(found->labels);
    Point point{problem_.costOf(found->labels), {overload.begin(), overload.end()}};
    addToMaster(point);
    points_.push_back(std::move(point));
    if (options_.on_labels) options_.on_labels(found->labels);
    // Nothing is gained above the best known cost; the caller compares.
    return result_.bound < options_.target;
  }

  bool stopped() const { return options_.stop && options_.stop(); }

  void addToMaster(const Point& point) {
    std::vector<double> overload;
    for (int32_t row : active_) overload.push_back(point.overload[static_cast<size_t>(row)]);
    master_.addPoint(point.cost, std::move(overload));
  }

  void rebuildMaster() {
    master_ = CuttingPlanes(active_.size());
    for (size_t i = 0; i < active_.size(); ++i) master_.setUpper(i, upper_[i]);
    for (const Point& point : points_) addToMaster(point);
  }

  void activate(int32_t row, double upper) {
    active_.push_back(row);
    upper_.push_back(upper);
    rebuildMaster();
  }

  // Takes in the rows that the present mixture of choices overloads most; false when none is left.
  bool addViolatedRows() {
    std::vector<double> mixture(static_cast<size_t>(problem_.numRows()), 0.0);
    const CuttingPlanes::Solution solution = master_.solve();
    for (size_t k = 0; k < points_.size(); ++k) {
      if (solution.weights[k] <= 0.0) continue;
      for (size_t row = 0; row < mixture.size(); ++row) {
        mixture[row] += solution.weights[k] * points_[k].overload[row];
      }
    }
    std::vector<int32_t> violated;
    for (size_t row = 0; row < mixture.size(); ++row) {
      const double tolerance = 1e-9 * (1.0 + static_cast<double>(problem_.slackBytes()[row]));
      const auto id = static_cast<int32_t>(row);
      if (mixture[row] > tolerance &&
          std::find(active_.begin(), active_.end(), id) == active_.end()) {
        violated.push_back(id);
      }
    }
    if (violated.empty()) return false;
    std::stable_sort(violated.begin(), violated.end(), [&](int32_t a, int32_t b) {
      return mixture[static_cast<size_t>(a)] > mixture[static_cast<size_t>(b)];
    });
    const int32_t min_distance = problem_.numRows() / 20 + 1;
    const size_t before = active_.size();
    for (int32_t row : violated) {
      const bool close =
          std::any_of(active_.begin() + static_cast<ptrdiff_t>(before), active_.end(),
                      [&](int32_t other) { return std::abs(row - other) < min_distance; });
      if (close || active_.size() - before >= 2) continue;
      // First guess: pricing the overload at two percent of the cost.
      const double cost = std::max(std::abs(result_.bound), problem_.quantum() * 1e9);
      active_.push_back(row);
      upper_.push_back(0.02 * cost / mixture[static_cast<size_t>(row)]);
    }
    rebuildMaster();
    return true;
  }

  bool maximiseOverActiveRows() {
    for (int step = 0;; ++step) {
      const CuttingPlanes::Solution solution = master_.solve();
      const double tolerance = std::max(options_.tolerance, 1e-9 * std::abs(result_.bound));
      if (solution.value - result_.bound <= tolerance) {
        if (!widenBox(solution)) return true;
        continue;
      }
      // With many rows the master's corners jump about: meet halfway to the best point.
      const double share = active_.size() > 2 && step % 3 != 0 ? 0.5 : 1.0;
      std::vector<double> multipliers(static_cast<size_t>(problem_.numRows()), 0.0);
      for (size_t i = 0; i < active_.size(); ++i) {
        const auto row = static_cast<size_t>(active_[i]);
        multipliers[row] =
            share * solution.multipliers[i] + (1.0 - share) * result_.multipliers[row];
      }
      const double before = result_.bound;
      if (!evaluate(multipliers)) return false;
      // The same point again: the master cannot be improved in this arithmetic.
      if (share == 1.0 && result_.bound <= before && last_bound_ >= solution.value - tolerance) {
        return true;
      }
      if (share == 1.0 && ++num_stalls_ > 60) return true;
      if (result_.bound > before + tolerance) num_stalls_ = 0;
    }
  }

  // Lets multipliers at their upper end grow; false when none is there.
  bool widenBox(const CuttingPlanes::Solution& solution) {
    bool widened = false;
    for (size_t i = 0; i < active_.size(); ++i) {
      if (solution.multipliers[i] < 0.999 * upper_[i]) continue;
      upper_[i] *= 8.0;
      master_.setUpper(i, upper_[i]);
      widened = true;
    }
    return widened && ++num_widenings_ < 40;
  }

  const ReducedProblem& problem_;
  const Elimination& elimination_;
  const LagrangianOptions& options_;
  WorkMeter& meter_;
  LagrangianResult result_;
  std::vector<int32_t> active_;
  std::vector<double> upper_;
  std::vector<Point> points_;
  CuttingPlanes master_{0};
  double last_bound_ = 0.0;
  int num_stalls_ = 0;
  int num_widenings_ = 0;
};

}  // namespace

LagrangianResult maximiseLagrangian(const ReducedProblem& problem, const Elimination& elimination,
                                    const LagrangianOptions& options, WorkMeter& meter,
                                    const std::vector<double>& start) {
  return LagrangianSearch(problem, elimination, options, meter).run(start);
}

}  // namespace shardwright
