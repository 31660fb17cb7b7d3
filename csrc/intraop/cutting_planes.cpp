#include "intraop/cutting_planes.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace shardwright {

void CuttingPlanes::addPoint(double cost, std::vector<double> overload) {
  costs_.push_back(cost);
  overloads_.push_back(std::move(overload));
}

// Primal simplex on: min sum w_k cost_k + sum upper_i excess_i, with
// sum w_k overload_k,i - excess_i + slack_i = 0 and sum w_k = 1; all >= 0. The multipliers are the
// duals. Rows are scaled, so plain pivots on a dense tableau are accurate enough; the caller's
// bound comes from the elimination, never from here.
CuttingPlanes::Solution CuttingPlanes::solve() const {
  const size_t num_rows = upper_.size();
  const size_t num_points = costs_.size();
  const size_t num_columns = num_points + 2 * num_rows;
  const size_t rhs = num_columns;
  std::vector<double> row_scale(num_rows, 1.0);
  double cost_scale = 1.0;
  const double base_cost = *std::min_element(costs_.begin(), costs_.end());
  for (size_t k = 0; k < num_points; ++k) {
    cost_scale = std::max(cost_scale, costs_[k] - base_cost);
    for (size_t i = 0; i < num_rows; ++i) {
      row_scale[i] = std::max(row_scale[i], std::abs(overloads_[k][i]));
    }
  }
  // Tableau rows: one per memory row, the convexity row, the objective.
  std::vector<std::vector<double>> t(num_rows + 2, std::vector<double>(num_columns + 1, 0.0));
  std::vector<double>& objective = t[num_rows + 1];
  for (size_t k = 0; k < num_points; ++k) {
    for (size_t i = 0; i < num_rows; ++i) t[i][k] = overloads_[k][i] / row_scale[i];
    t[num_rows][k] = 1.0;
    objective[k] = (costs_[k] - base_cost) / cost_scale;
  }
  for (size_t i = 0; i < num_rows; ++i) {
    t[i][num_points + i] = -1.0;            // excess
    t[i][num_points + num_rows + i] = 1.0;  // slack
    objective[num_points + i] = upper_[i] * row_scale[i] / cost_scale;
  }
  t[num_rows][rhs] = 1.0;
  std::vector<size_t> basis(num_rows + 1);
  const auto pivot = [&](size_t row, size_t column) {
    std::vector<double>& pivot_row = t[row];
    const double factor = 1.0 / pivot_row[column];
    for (double& x : pivot_row) x *= factor;
    for (size_t r = 0; r < t.size(); ++r) {
      if (r == row || t[r][column] == 0.0) continue;
      const double multiple = t[r][column];
      for (size_t c = 0; c <= num_columns; ++c) t[r][c] -= multiple * pivot_row[c];
      t[r][column] = 0.0;
    }
    basis[row] = column;
  };
  // First point in the basis; each memory row takes its slack or, when overloaded, its excess.
  pivot(num_rows, 0);
  for (size_t i = 0; i < num_rows; ++i) {
    pivot(i, t[i][rhs] < 0.0 ? num_points + i : num_points + num_rows + i);
  }
  constexpr double kTolerance = 1e-11;
  const size_t max_pivots = 50 * (num_columns + 10);
  for (size_t step = 0; step < max_pivots; ++step) {
    size_t entering = num_columns;
    double most_negative = -kTolerance;
    for (size_t c = 0; c < num_columns; ++c) {
      if (objective[c] < most_negative) {
        most_negative = objective[c];
        entering = c;
        if (step > max_pivots / 2) break;  // first index: cannot cycle
      }
    }
    if (entering == num_columns) break;
    size_t leaving = num_rows + 1;
    double least_ratio = 0.0;
    for (size_t r = 0; r <= num_rows; ++r) {
      if (t[r][entering] <= kTolerance) continue;
      const double ratio = t[r][rhs] / t[r][entering];
      if (leaving > num_rows || ratio < least_ratio - 1e-14 ||
          (ratio <= least_ratio + 1e-14 && basis[r] < basis[leaving])) {
        leaving = r;
        least_ratio = ratio;
      }
    }
    if (leaving > num_rows) break;
    pivot(leaving, entering);
  }
  Solution solution;
  solution.value = base_cost - objective[rhs] * cost_scale;
  solution.weights.assign(num_points, 0.0);
  for (size_t r = 0; r <= num_rows; ++r) {
    if (basis[r] < num_points) solution.weights[basis[r]] = std::max(0.0, t[r][rhs]);
  }
  // The slack's reduced cost is minus its row's dual, which is minus the multiplier.
  for (size_t i = 0; i < num_rows; ++i) {
    const double multiplier = objective[num_points + num_rows + i] * cost_scale / row_scale[i];
    solution.multipliers.push_back(std::clamp(multiplier, 0.0, upper_[i]));
  }
  return solution;
}

}  // namespace shardwright
